"""Objects in a bucket of an S3 server: read whole or by ranges into the caller's memory, written by multipart upload.

A path is a key of the bucket `StorageSpec.root` (`bucket`, `bucket/prefix` or `s3://bucket/prefix`), or a URI of its
own, `s3://bucket/key`. With the option `use_full_object_uri` keys are whole URIs, as argonne's DLIO has them.
Options have DLIO's and mlpstorage's names: docs/objects.md.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import ssl
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit
from xml.sax.saxutils import unescape

from datagen.errors import DatasetError, UserError
from datagen.extras import library
from datagen.storage._http_exchange import Address
from datagen.storage._request_counts import RequestCounts
from datagen.storage._s3_client import Active, Ask, Client, Server, tag_text
from datagen.storage._s3_signing import Credentials, Signer
from datagen.storage.storage_base import Bytes, Entry, Fill, Listed, Option, Reader, StorageBase, StorageSpec

SCHEME = "s3://"
AWS = "aws"
"""What `endpoint_url` says for Amazon's own servers: nobody gets there by leaving something out."""
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
OPTIONS: dict[str, str] = {
    "endpoint_url": "address of the server, such as http://10.0.0.1:9000 (several: with commas), or aws",
    "region": "region of the bucket",
    "s3_force_path_style": "true: HOST/BUCKET/KEY, false: BUCKET.HOST/KEY",
    "s3_max_attempts": "how often a request is made before it is given up",
    "s3_profile": "profile of ~/.aws whose credentials are used",
    "timeout_seconds": "how long an answer may stand still",
    "use_full_object_uri": "true: keys are whole URIs",
    "uri_scheme": "s3",
    "secure": "false: http where the address names no scheme",
    "storage_library": "which library mlpstorage reads with",
    "checksum_writes": "false: do not send the SHA-256 of what is written",
}
"""Options -> what they say."""
SCHEMES = ("s3",)
PART_BYTES = 16 << 20
"""Bytes of a part of an upload; of very large objects later parts are larger, for 10,000 are the most."""
PARTS_AT_A_TIME = 4
DOUBLE_AFTER = 2000
LISTED_AT_A_TIME = 1000
ASKED_TOGETHER = 256
HEADS_IN_FLIGHT = 32


class Storage(StorageBase):
    """One bucket, or several with `s3://` paths."""

    is_remote = True

    def __init__(self, spec: StorageSpec) -> None:
        super().__init__(spec)
        options = Options(dict(spec.options))
        bucket, _, self._prefix = (
            (spec.root.removeprefix(SCHEME) if spec.root != "./" else "").strip("/").partition("/")
        )
        self._bucket, self._options = bucket, options
        self._counts = RequestCounts.kept_in(spec.account)
        self._signer = Signer(Credentials(options.profile), options.region)
        self._tls = options.tls()
        self._clients: dict[str, Client] = {}
        self._lock = threading.Lock()
        self._ahead = threading.local()
        self.server = options.endpoint

    @property
    def counts(self) -> RequestCounts:
        """Return what its requests come to."""
        return self._counts

    def open(self, path: str) -> ObjectReader:
        client, key = self._place(path)
        answer = client.ask(Ask(kind="head", method="HEAD", key=key))
        return ObjectReader(self, client, key, int(answer.headers.get("content-length", "0")), _etag(answer.headers))

    def open_whole(self, path: str) -> Reader:
        client, key = self._place(path)
        begun = client.head_of(self._announced(path) or client.send(self._whole(key)))
        headers = begun.exchange.headers
        size = headers.get("content-range", "").rpartition("/")[2] or headers.get("content-length", "")
        if not size.isdigit():  # an answer in chunks does not say how long it is
            client.drop(begun)
            return self.open(path)
        return ObjectReader(self, client, key, int(size), _etag(headers), begun)

    def announce(self, paths: Iterable[str]) -> None:
        """Send the requests for the first `io_depth` of these files; each answer waits until its file is opened."""
        ahead = self._requests_ahead()
        wanted = list(dict.fromkeys(paths))[: self.spec.io_depth]
        for path in [known for known in ahead if known not in wanted]:
            self._place(path)[0].drop(ahead.pop(path))
        for path in wanted:
            if path not in ahead:
                client, key = self._place(path)
                begun = client.send_ahead(self._whole(key))
                if begun is not None:
                    ahead[path] = begun

    def read_all(self, fills: Sequence[Fill]) -> list[int]:
        """Read pieces of objects, `io_depth` requests in flight, none for more than `range_bytes`."""
        got, asks = [], []
        for reader, buffer, offset in fills:
            assert isinstance(reader, ObjectReader)
            size = max(0, min(len(buffer), reader.size_bytes - offset))
            got.append(size)
            asks += reader.asks(buffer[:size], offset)
        if fills and asks:
            self._ask_all(fills, asks)
        return got

    def _ask_all(self, fills: Sequence[Fill], asks: list[tuple[ObjectReader, Ask]]) -> None:
        first = fills[0][0]
        assert isinstance(first, ObjectReader)
        first.client.ask_all([ask for _, ask in asks], self.spec.io_depth)
        for reader, ask in asks:
            reader.check(ask)

    def create(self, path: str) -> ObjectWriter:
        client, key = self._place(path)
        return ObjectWriter(client, key, checksums=self._options.checksums)

    @contextlib.contextmanager
    def entries(self, folder: str) -> Iterator[Iterator[Entry]]:
        client, prefix = self._place(folder)
        pages = _pages(client, prefix.rstrip("/") + "/" if prefix else "")
        first = next(pages, [])
        if not first:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)

        def listed() -> Iterator[Entry]:
            yield from first
            for page in pages:
                yield from page

        yield listed()

    def size_bytes(self, path: str) -> int:
        client, key = self._place(path)
        return int(client.ask(Ask(kind="head", method="HEAD", key=key)).headers.get("content-length", "0"))

    def sizes(self, paths: Iterable[str]) -> Iterator[int | None]:
        together: list[tuple[Client, Ask]] = []
        for path in paths:
            client, key = self._place(path)
            together.append((client, Ask(kind="head", method="HEAD", key=key, may_be_missing=True)))
            if len(together) == ASKED_TOGETHER:
                yield from _sizes(together)
                together = []
        yield from _sizes(together)

    def remove(self, path: str) -> None:
        client, key = self._place(path)
        client.ask(Ask(kind="head", method="HEAD", key=key))  # removing what is not there is no error in S3
        client.ask(Ask(kind="delete", method="DELETE", key=key))

    def remove_unfinished(self, folder: str) -> None:
        """Abort the uploads below a folder that nobody completed; a server that can't list them has none."""
        client, prefix = self._place(folder)
        try:
            query = (("prefix", prefix.rstrip("/") + "/"), ("uploads", ""))
            text = client.ask(Ask(kind="list", method="GET", query=query)).body.decode(errors="replace")
        except UserError:
            return
        for upload in re.findall(r"<Upload>(.*?)</Upload>", text, flags=re.DOTALL):
            number = (("uploadId", tag_text(upload, "UploadId")),)
            with contextlib.suppress(FileNotFoundError):
                client.ask(Ask(kind="delete", method="DELETE", key=tag_text(upload, "Key"), query=number))

    def preflight(self, folder: str) -> None:
        """Ask for one key: shows whether endpoint, credentials and bucket are right."""
        client, prefix = self._place(folder)
        client.ask(Ask(kind="list", method="GET", query=(("list-type", "2"), ("max-keys", "1"), ("prefix", prefix))))

    def _whole(self, key: str) -> Ask:
        """Return the request for an object from its beginning on: for all of it, or for its first range."""
        wanted = self.spec.range_bytes
        headers = [("range", f"bytes=0-{wanted - 1}")] if wanted else []
        return Ask(kind="get", method="GET", key=key, headers=headers)

    def _announced(self, path: str) -> Active | None:
        return self._requests_ahead().pop(path, None)

    def _requests_ahead(self) -> OrderedDict[str, Active]:
        ahead: OrderedDict[str, Active] | None = getattr(self._ahead, "requests", None)
        if ahead is None:
            ahead = self._ahead.requests = OrderedDict()
        return ahead

    def _place(self, path: str) -> tuple[Client, str]:
        """Return who talks to a path's bucket, and its key there."""
        if path.startswith(SCHEME):
            bucket, _, key = path.removeprefix(SCHEME).partition("/")
        else:
            bucket = self._bucket
            key = "/".join(part for part in (self._prefix, _relative(path)) if part)
        if not bucket:
            raise UserError(
                f"{path!r} names no bucket: set storage.storage_root to one, or dataset.data_folder to s3://BUCKET/..."
            )
        if self._options.full_uri:
            key = f"{SCHEME}{bucket}/{key}"
        return self._clients.get(bucket) or self._client(bucket), key

    def _client(self, bucket: str) -> Client:
        with self._lock:
            if bucket not in self._clients:
                server = self._options.server(bucket)
                self._clients[bucket] = Client(server, self._signer, self._tls, self._counts)
            return self._clients[bucket]


class Options:
    """What `storage.storage_options`, the environment and the profile say."""

    def __init__(self, given: dict[str, Option]) -> None:
        """Raises UserError that lists what is wrong with them."""
        problems = [
            f"storage.storage_options.{name} is unknown to s3; wanted some of {', '.join(OPTIONS)}"
            for name in given
            if name not in OPTIONS
        ]
        scheme = given.get("uri_scheme") or "s3"
        if scheme not in SCHEMES:
            problems.append(
                f"storage.storage_options.uri_scheme is {scheme!r}: for az, gs and others set "
                "storage.storage_type=fsspec"
            )
        if problems:
            raise UserError("\n".join(problems))
        self.profile = str(given.get("s3_profile") or "")
        self.full_uri = _flag(given, "use_full_object_uri", False)
        self.checksums = _flag(given, "checksum_writes", True)
        self.attempts = _number(given, "s3_max_attempts", 5, 1)
        self.timeout_seconds = _number(given, "timeout_seconds", 30, 0.001)
        self.endpoint = self._endpoint(given)
        self.region = str(
            given.get("region") or self._setting("region", "AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
        )
        self._is_aws = self.endpoint == AWS
        if self._is_aws:
            self.endpoint = f"https://s3.{self.region}.amazonaws.com"
        secure = _flag(given, "secure", True)
        self._addresses = tuple(_address(part.strip(), secure) for part in self.endpoint.split(","))
        self._path_style = _flag(given, "s3_force_path_style", not self._is_aws)

    def server(self, bucket: str) -> Server:
        return Server(
            addresses=self._addresses,
            bucket=bucket,
            path_style=self._path_style or "." in bucket,
            attempts=int(self.attempts),
            timeout_seconds=self.timeout_seconds,
            endpoint=self.endpoint,
        )

    def tls(self) -> ssl.SSLContext | None:
        """Return what TLS trusts: the system's authorities, or those of AWS_CA_BUNDLE."""
        if not any(address.is_tls for address in self._addresses):
            return None
        bundle = os.environ.get("AWS_CA_BUNDLE") or None
        try:
            return ssl.create_default_context(cafile=bundle)
        except OSError as error:
            raise UserError(
                f"AWS_CA_BUNDLE is {bundle}: {error.strerror or error}; wanted a file of certificates"
            ) from error

    def _endpoint(self, given: dict[str, Option]) -> str:
        named = str(given.get("endpoint_url") or os.environ.get("S3_ENDPOINT_URIS") or "")
        named = named or str(self._setting("endpoint_url", *ENDPOINT_VARIABLES) or "")
        if not named:
            raise UserError(
                "no S3 server is named: set storage.storage_options.endpoint_url (or AWS_ENDPOINT_URL_S3) to its "
                f"address, such as http://10.0.0.1:9000, or to {AWS} for Amazon's own, where requests cost money"
            )
        return named

    def _setting(self, name: str, *variables: str) -> object:
        """Return a setting of the environment, or of a profile that was asked for."""
        for variable in variables:
            if os.environ.get(variable):
                return os.environ[variable]
        profile = self.profile or os.environ.get("AWS_PROFILE", "")
        if not profile:
            return None
        try:
            session = library("botocore.session", "s3", "storage.storage_options.s3_profile").Session(profile=profile)
            config = session.get_scoped_config()
        except UserError:
            raise
        except Exception as error:  # of botocore's own kinds: no such profile, a file that can't be parsed
            raise UserError(f"profile {profile!r} of ~/.aws: {error}") from error
        return config.get(name)


class ObjectReader:
    """One object. Its first bytes may be on their way already."""

    def __init__(
        self, storage: Storage, client: Client, key: str, size_bytes: int, etag: str, begun: Active | None = None
    ) -> None:
        self.size_bytes = size_bytes
        self.read_calls = 0
        self.app_bytes = 0
        self.client = client
        self._storage, self._key, self._etag = storage, key, etag
        self._begun = begun

    def read_into(self, buffer: memoryview, offset: int) -> int:
        size = max(0, min(len(buffer), self.size_bytes - offset))
        if not size:
            self.read_calls += 1
            return 0
        begun, self._begun = self._begun, None
        at = 0
        under_way = []
        if begun is not None:
            length = begun.exchange.length or 0
            if offset == 0 and length <= size and begun.ask.answer is None:
                begun.ask.target = buffer[:length]
                begun.exchange.into(begun.ask.target)
                under_way.append(begun)
                at = length
            elif offset == 0 and begun.ask.answer is not None and length <= size:
                buffer[:length] = begun.exchange.body
                at = length
            else:
                self.client.drop(begun)
        self.read_calls += at > 0
        self.app_bytes += at
        asks = self.asks(buffer[at:size], offset + at)
        self.client.ask_all([ask for _, ask in asks], self._storage.spec.io_depth, under_way)
        for _, ask in asks:
            self.check(ask)
        return size

    def asks(self, buffer: memoryview, offset: int) -> list[tuple[ObjectReader, Ask]]:
        """Return the requests that fill a buffer."""
        step = self._storage.spec.range_bytes or len(buffer) or 1
        asks = []
        for start in range(0, len(buffer), step):
            piece = buffer[start : start + step]
            headers = []
            if len(piece) < self.size_bytes:
                headers.append(("range", f"bytes={offset + start}-{offset + start + len(piece) - 1}"))
            if self._etag:
                headers.append(("if-match", self._etag))
            asks.append((self, Ask(kind="get", method="GET", key=self._key, headers=headers, target=piece)))
        self.read_calls += len(asks)
        self.app_bytes += len(buffer)
        return asks

    def check(self, ask: Ask) -> None:
        """Raise DatasetError where an answer is of another object than the one that was opened."""
        etag = _etag(ask.answer.headers) if ask.answer is not None else ""
        if etag and self._etag and etag != self._etag:
            raise DatasetError(
                f"{self.client.where(ask)}: the object was changed while it was read (its ETag was {self._etag}, then "
                f"{etag}): leave the dataset alone during a run, and run again"
            )

    def close(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            self.client.drop(begun)


class ObjectWriter:
    """An object under way: one PUT where it is small, else an upload of parts, several at a time.

    Parts with bytes that were skipped are held until these are written.
    """

    def __init__(self, client: Client, key: str, *, checksums: bool) -> None:
        self.position = 0
        self._client, self._key, self._checksums = client, key, checksums
        self._parts: dict[int, bytearray] = {}
        """Parts in memory, by number from 0."""
        self._written: dict[int, int] = {}
        """Bytes that were written to each of them."""
        self._etags: dict[int, str] = {}
        self._upload = ""
        self._size_bytes = 0

    def write(self, data: Bytes) -> None:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PART_BYTES):  # so that of a large piece no more than some parts are copied
            piece = view[start : start + PART_BYTES]
            self.write_at(piece, self.position)
            self.position += len(piece)
            if sum(self._is_full(number) for number in self._parts) >= PARTS_AT_A_TIME:
                self._send([number for number in sorted(self._parts) if self._is_full(number)])

    def skip(self, size_bytes: int) -> None:
        self.position += size_bytes

    def write_at(self, data: Bytes, offset: int) -> None:
        view = memoryview(data).cast("B")
        while view:
            number, start, size = part_of(offset)
            if number in self._etags:
                raise UserError(
                    f"s3://{self._client.server.bucket}/{self._key}: bytes at offset {offset} are to be written after "
                    "their part was sent, which S3 can't do: write this format to a folder"
                )
            part = self._parts.get(number)
            if part is None:
                part = self._parts[number] = bytearray()
            within = offset - start
            piece = view[: size - within]
            part.extend(bytes(max(0, within - len(part))))
            part[within : within + len(piece)] = piece
            self._written[number] = self._written.get(number, 0) + len(piece)
            offset += len(piece)
            view = view[len(piece) :]
        self._size_bytes = max(self._size_bytes, offset)

    def sync(self) -> None:
        """Do nothing: an object that has its name is stored."""

    def commit(self) -> None:
        if not self._upload and self._size_bytes <= PART_BYTES:
            body = memoryview(bytes(self._parts.get(0, b"")))
            self._client.ask(self._put(body, ()))
            self._parts.clear()
            return
        last = part_of(self._size_bytes - 1)[0]
        for number in range(last + 1):
            if number not in self._etags:
                self._fill(number, last)
        for first in range(0, last + 1, PARTS_AT_A_TIME):
            missing = [n for n in range(first, min(first + PARTS_AT_A_TIME, last + 1)) if n not in self._etags]
            self._send(missing)
        parts = "".join(
            f"<Part><PartNumber>{number + 1}</PartNumber><ETag>{self._etags[number]}</ETag></Part>"
            for number in range(last + 1)
        )
        text = f'<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{parts}</CompleteMultipartUpload>'
        self._client.ask(self._put(memoryview(text.encode()), (("uploadId", self._upload),), method="POST"))
        self._upload = ""

    def discard(self) -> None:
        self._parts.clear()
        upload, self._upload = self._upload, ""
        if upload:
            with contextlib.suppress(FileNotFoundError, UserError):
                query = (("uploadId", upload),)
                self._client.ask(Ask(kind="delete", method="DELETE", key=self._key, query=query))

    def _is_full(self, number: int) -> bool:
        return self._written[number] >= _part_bytes(number)

    def _fill(self, number: int, last: int) -> None:
        """Give a part that was left out, or not written to its end, its zeros."""
        part = self._parts.setdefault(number, bytearray())
        start = _part_start(number)
        size = self._size_bytes - start if number == last else _part_bytes(number)
        part.extend(bytes(size - len(part)))

    def _send(self, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        if not self._upload:
            answer = self._client.ask(self._put(memoryview(b""), (("uploads", ""),), method="POST"))
            self._upload = tag_text(answer.body.decode(errors="replace"), "UploadId")
        asks = {}
        for number in numbers:
            query = (("partNumber", str(number + 1)), ("uploadId", self._upload))
            asks[number] = self._put(memoryview(self._parts[number]), query)
        self._client.ask_all(asks.values(), PARTS_AT_A_TIME)
        for number, ask in asks.items():
            assert ask.answer is not None
            self._etags[number] = ask.answer.headers.get("etag", "")
            ask.body = ()
            del self._parts[number]
            self._written.pop(number, None)

    def _put(self, body: memoryview, query: Sequence[tuple[str, str]], method: str = "PUT") -> Ask:
        """Return a request with a body; its SHA-256 lets the server see whether it arrived as it was sent."""
        digest = hashlib.sha256(body).hexdigest() if self._checksums else "UNSIGNED-PAYLOAD"
        parts = (body,) if body else ()
        self._client.counts.add("sent_bytes", len(body))
        return Ask(kind="put", method=method, key=self._key, query=query, body=parts, payload_sha256=digest)


class PartPlace(NamedTuple):
    """Where an offset lies."""

    number: int
    start: int
    size: int


def part_of(offset: int) -> PartPlace:
    """Return the part of an upload that an offset lies in."""
    number = 0
    size, start = PART_BYTES, 0
    while offset >= start + DOUBLE_AFTER * size:
        start += DOUBLE_AFTER * size
        number += DOUBLE_AFTER
        size *= 4
    inside = (offset - start) // size
    return PartPlace(number + inside, start + inside * size, size)


def _part_bytes(number: int) -> int:
    return PART_BYTES << 2 * (number // DOUBLE_AFTER)


def _part_start(number: int) -> int:
    whole, rest = divmod(number, DOUBLE_AFTER)
    return sum(DOUBLE_AFTER * (PART_BYTES << 2 * group) for group in range(whole)) + rest * _part_bytes(number)


def _pages(client: Client, prefix: str) -> Iterator[list[Entry]]:
    """Yield what lies below a prefix, a page a request."""
    token = ""
    while True:
        query = [("delimiter", "/"), ("list-type", "2"), ("max-keys", str(LISTED_AT_A_TIME)), ("prefix", prefix)]
        if token:
            query.append(("continuation-token", token))
        text = client.ask(Ask(kind="list", method="GET", query=query)).body.decode(errors="replace")
        page: list[Entry] = [
            Listed(name)
            for key in re.findall(r"<Contents>.*?<Key>([^<]*)</Key>", text, flags=re.DOTALL)
            if (name := unescape(key)[len(prefix) :])
        ]
        folders = re.findall(r"<CommonPrefixes>\s*<Prefix>([^<]*)</Prefix>", text)
        page += [Listed(unescape(folder)[len(prefix) :].rstrip("/"), True) for folder in folders]
        yield page
        token = tag_text(text, "NextContinuationToken")
        if not token or tag_text(text, "IsTruncated") == "false":
            return


def _sizes(asked: Sequence[tuple[Client, Ask]]) -> Iterator[int | None]:
    for client in {id(client): client for client, _ in asked}.values():
        client.ask_all([ask for one, ask in asked if one is client], HEADS_IN_FLIGHT)
    for _, ask in asked:
        answer = ask.answer
        yield int(answer.headers.get("content-length", "0")) if answer is not None and answer.succeeded else None


def _relative(path: str) -> str:
    """Return a path as the part of a key: `./data` and `/data` are `data`."""
    return os.path.normpath(path).lstrip("/") if path not in ("", ".") else ""


def _etag(headers: dict[str, str]) -> str:
    return headers.get("etag", "")


def _flag(given: dict[str, Option], name: str, default: bool) -> bool:
    value = given.get(name)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise UserError(f"storage.storage_options.{name} is {value!r}: wanted true or false")


def _number(given: dict[str, Option], name: str, default: float, least: float) -> float:
    value = given.get(name)
    try:
        number = default if value is None else float(value)
    except ValueError:
        number = -1.0
    if number < least:
        raise UserError(f"storage.storage_options.{name} is {value!r}: wanted {least:g} or more")
    return number


def _address(url: str, secure: bool) -> Address:
    if "://" not in url:
        url = f"{'https' if secure else 'http'}://{url}"
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.path.strip("/"):
        raise UserError(
            f"storage.storage_options.endpoint_url is {_without_user(url)!r}: wanted the address of a server, such as "
            "http://10.0.0.1:9000"
        )
    if parts.username or parts.password:
        raise UserError(
            f"storage.storage_options.endpoint_url {_without_user(url)!r} has a user in it: give credentials in "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return Address(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80))


def _without_user(url: str) -> str:
    return re.sub(r"//[^/]*@", "//", url)

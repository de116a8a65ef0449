"""Backend for S3 servers: objects are read whole or by ranges into the caller's memory, and written by (multipart) PUT.

A path is a key in the bucket of `StorageSpec.root` (`bucket`, `bucket/prefix` or `s3://bucket/prefix`), or a full URI,
`s3://bucket/key`. With the option `use_full_object_uri` the keys themselves are full URIs, as in argonne's DLIO.
Options have DLIO's and mlpstorage's names: docs/objects.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from datagen.errors import UserError, no_such_file
from datagen.storage._http_exchange import Exchange, number_in
from datagen.storage._request_counts import RequestCounts
from datagen.storage._s3_client import Client, Request, Span
from datagen.storage._s3_options import Options
from datagen.storage._s3_signing import Credentials, Signer
from datagen.storage._s3_xml import PAGE_KEYS, Page, check_completed, page_in, upload_id_in, uploads_in
from datagen.storage.storage_base import Bytes, Entry, FileReads, Fill, Listed, Reader, StorageBase, StorageSpec, Writer

SCHEME = "s3://"
INVALID_NAMES = ("", ".", "..")
MAX_PAGES = 20_000  # maximum pages of a listing: a longer listing is taken for endless
HEAD_BATCH = 256  # `sizes` sends HEADs in batches: large enough to keep all connections busy
HEADS_IN_FLIGHT = 32  # one connection each: 3,200 objects/s at a latency of 10 ms
PART_BYTES, MAX_PARTS = 16 << 20, 10_000  # S3 takes 10,000 parts, hence an object of at most 156 GiB
PARTS_IN_FLIGHT = 4  # parts stay in memory until they are sent: 64 MiB per object
MARK = "x-amz-meta-dlemu-upload"  # metadata header of an object: a random ID of the upload that wrote it


class Storage(StorageBase):
    """One bucket, or several with `s3://` paths."""

    is_remote = True

    def __init__(self, spec: StorageSpec) -> None:
        super().__init__(spec)
        self._options = options = Options(dict(spec.options))
        root = "" if spec.root == "./" else spec.root.removeprefix(SCHEME)
        self._bucket, _, self._prefix = root.strip("/").partition("/")
        self.counts = RequestCounts.kept_in(spec.account)  # of this storage's requests
        self._signer = Signer(Credentials(options.profile), options.region)
        self._tls = options.tls()
        self._clients: dict[str, Client] = {}
        self._folders: dict[str, tuple[Client, str]] = {}  # folder -> its client and the key prefix of its objects
        self._lock = threading.Lock()
        self.server = options.endpoint

    def open(self, path: str) -> ObjectReader:
        client, head = self._head(path)
        response = client.request(head)
        return ObjectReader(self, client, head.key, _size_in(response), response.header("etag"))

    def open_sized(self, path: str, size_bytes: int) -> ObjectReader:
        return ObjectReader(self, *self._locate(path), size_bytes, etag="")

    def read_files(self, files: Sequence[tuple[str, memoryview]], transfer_bytes: int = 0) -> FileReads:
        """Read objects by one GET each, `io_depth` in flight, and the rest of objects above `range_bytes` by more GETs.

        The first GETs need no HEAD before them: their responses state the sizes of the objects.
        """
        range_bytes = self.spec.range_bytes
        span = Span(0, range_bytes) if range_bytes else None
        first_gets = []
        for path, memory in files:
            client, key = self._locate(path)
            target = memory[:range_bytes] if range_bytes else memory
            get = Request(kind="get", method="GET", key=key, span=span, target=target, fills=False)
            first_gets.append((client, get))
        self._request_all(first_gets)
        results, more_gets = [], list[tuple[Client, Request]]()
        for (client, get), (_, memory) in zip(first_gets, files, strict=True):
            response = get.response
            assert response is not None
            got = response.body_bytes
            size = number_in(response.header("content-range").rpartition("/")[2]) or got
            reader = ObjectReader(self, client, get.key, size, response.header("etag"))
            rest = reader.requests(memory[got:size], got)
            more_gets += [(client, request) for request in rest]
            results.append((size, min(size, len(memory)), 1 + len(rest)))
        self._request_all(more_gets)
        return results

    def read_all(self, fills: Sequence[Fill]) -> list[int]:
        """Read byte ranges of objects, with `io_depth` requests in flight of at most `range_bytes` each."""
        sizes, gets = [], list[tuple[Client, Request]]()
        for reader, buffer, offset in fills:
            assert isinstance(reader, ObjectReader)
            size = max(0, min(len(buffer), reader.size_bytes - offset))
            sizes.append(size)
            gets += [(reader.client, request) for request in reader.requests(buffer[:size], offset)]
        self._request_all(gets)
        return sizes

    def create(self, path: str) -> ObjectWriter:
        return ObjectWriter(*self._locate(path), checksums=self._options.checksums)

    @contextlib.contextmanager
    def entries(self, folder: str) -> Iterator[Iterator[Entry]]:
        client, prefix = self._locate(folder)
        listed = itertools.chain.from_iterable(_pages(client, prefix.rstrip("/") + "/" if prefix else ""))
        first = next(listed, None)
        if first is None:
            raise no_such_file(folder)
        yield itertools.chain([first], listed)

    def size_bytes(self, path: str) -> int:
        client, request = self._head(path)
        return _size_in(client.request(request))

    def sizes(self, paths: Iterable[str]) -> Iterator[int | None]:
        waiting = iter(paths)
        while batch := list(itertools.islice(waiting, HEAD_BATCH)):
            heads = [self._head(path, accepted=(404,)) for path in batch]
            self._request_all(heads, HEADS_IN_FLIGHT)
            for _, request in heads:
                response = request.response
                yield _size_in(response) if response is not None and response.succeeded else None

    def _head(self, path: str, accepted: tuple[int, ...] = ()) -> tuple[Client, Request]:
        client, key = self._locate(path)
        return client, Request(kind="head", method="HEAD", key=key, accepted=accepted)

    def remove(self, path: str) -> None:
        client, head = self._head(path)
        client.request(head)  # DELETE of a missing object is no error in S3
        client.request(Request(kind="delete", method="DELETE", key=head.key))

    def uploads(self, folder: str, names: Iterable[str], *, end: bool = False) -> int:
        client, prefix = self._locate(folder)
        queries = [(("prefix", f"{prefix.rstrip('/')}/{name}"), ("uploads", "")) for name in names]
        # Some servers (MinIO) list the uploads of a whole key only
        listings = [Request(kind="list", method="GET", query=query, parse=uploads_in) for query in queries]
        client.request_all(listings, HEADS_IN_FLIGHT)
        unfinished = list[tuple[str, str]]()
        for listing in listings:
            key = listing.query[0][1]
            unfinished += [upload for upload in listing.content if upload[0] == key]  # no longer keys with this prefix
        if end:
            for key, upload_id in unfinished:
                abort(client, key, upload_id)
        return len(unfinished)

    def preflight(self, folder: str) -> None:
        """List one key, which fails if endpoint, credentials or bucket are wrong."""
        client, prefix = self._locate(folder)
        query = (("list-type", "2"), ("max-keys", "1"), ("prefix", prefix))
        client.request(Request(kind="list", method="GET", query=query, parse=page_in))

    def _request_all(self, requests: Sequence[tuple[Client, Request]], depth: int = 0) -> None:
        """Complete requests, each by the client of its bucket, with `depth` (0: `io_depth`) in flight."""
        for client in dict.fromkeys(client for client, _ in requests):
            of_client = [request for other, request in requests if other is client]
            client.request_all(of_client, depth or self.spec.io_depth)

    def _locate(self, path: str) -> tuple[Client, str]:
        """Return the client of a path's bucket, and the path's key there; the prefix of each folder is cached."""
        folder, _, name = path.rpartition("/")
        cached = self._folders.get(folder)
        if cached is not None and name not in INVALID_NAMES:
            return cached[0], cached[1] + name
        client, key = self._resolve(path)
        if folder and name not in INVALID_NAMES and key.endswith(f"/{name}"):
            self._folders[folder] = client, key[: -len(name)]
        return client, key

    def _resolve(self, path: str) -> tuple[Client, str]:
        if path.startswith(SCHEME):
            bucket, _, key = path.removeprefix(SCHEME).partition("/")
        else:
            bucket = self._bucket
            relative = os.path.normpath(path).lstrip("/") if path not in ("", ".") else ""  # ./data, /data: data
            key = "/".join(part for part in (self._prefix, relative) if part)
        if not bucket:
            raise UserError(
                f"{path!r} names no bucket: set storage.storage_root to one, or dataset.data_folder to s3://BUCKET/..."
            )
        if self._options.full_uri:
            key = f"{SCHEME}{bucket}/{key}"
        if bucket not in self._clients:
            with self._lock:
                if bucket not in self._clients:
                    self._clients[bucket] = Client(self._options, bucket, self._signer, self._tls, self.counts)
        return self._clients[bucket], key


class ObjectReader(Reader):
    """One object open for reading."""

    def __init__(self, storage: Storage, client: Client, key: str, size_bytes: int, etag: str) -> None:
        super().__init__(size_bytes)
        self.client = client
        self._storage = storage
        self._key = key
        self._etag = etag

    def read_into(self, buffer: memoryview, offset: int) -> int:
        size = max(0, min(len(buffer), self.size_bytes - offset))
        self.client.request_all(self.requests(buffer[:size], offset), self._storage.spec.io_depth)
        return size

    def requests(self, buffer: memoryview, offset: int) -> list[Request]:
        """Return the GETs that fill a buffer, and count them as reads."""
        step = self._storage.spec.range_bytes or len(buffer) or 1
        requests = []
        for start in range(0, len(buffer), step):
            piece = buffer[start : start + step]
            span = None
            if len(piece) < self.size_bytes:
                span = Span(offset + start, offset + start + len(piece), self.size_bytes)
            requests.append(Request(kind="get", method="GET", key=self._key, span=span, target=piece, etag=self._etag))
        self.read_calls += len(requests)
        self.app_bytes += len(buffer)
        return requests


class ObjectWriter(Writer):
    """An object being written: one PUT if it is small, else a multipart upload with several parts in flight.

    Parts with skipped bytes stay in memory until these are written.
    """

    def __init__(self, client: Client, key: str, *, checksums: bool) -> None:
        self._client = client
        self._key = key
        self._checksums = checksums
        self._mark = os.urandom(12).hex()
        self._parts: dict[int, bytearray] = {}  # parts in memory, by number from 0
        self._written = Counter[int]()  # bytes written to each
        self._etags: dict[int, str] = {}
        self._upload = ""
        self._size_bytes = 0

    def write(self, data: Bytes) -> None:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PART_BYTES):  # so that at most a few parts of large data are copied
            piece = view[start : start + PART_BYTES]
            self.write_at(piece, self.position)
            self.skip(len(piece))
            full = sorted(number for number in self._parts if self._written[number] >= PART_BYTES)
            if len(full) >= PARTS_IN_FLIGHT:
                self._send(full)

    def write_at(self, data: Bytes, offset: int) -> None:
        view = memoryview(data).cast("B")
        while view:
            number, within = divmod(offset, PART_BYTES)
            if number in self._etags:
                raise UserError(
                    f"s3://{self._client.bucket}/{self._key}: bytes at offset {offset} belong to a part that is "
                    "uploaded already, which S3 can't change: write this format to a folder"
                )
            if number >= MAX_PARTS:
                raise UserError(
                    f"s3://{self._client.bucket}/{self._key} exceeds {MAX_PARTS * PART_BYTES} bytes, the most that an "
                    "upload in parts can have: wanted smaller files, or a folder"
                )
            part = self._padded(number, within)
            piece = view[: PART_BYTES - within]
            part[within : within + len(piece)] = piece
            self._written[number] += len(piece)
            offset += len(piece)
            view = view[len(piece) :]
        self._size_bytes = max(self._size_bytes, offset)

    def commit(self) -> None:
        if not self._upload and self._size_bytes <= PART_BYTES:
            self._client.request(self._put(memoryview(bytes(self._parts.get(0, b""))), ()))
            self._parts.clear()
            return
        numbers = range(-(-self._size_bytes // PART_BYTES))
        for number in numbers:
            if number not in self._etags:  # skipped, or not written to its end
                self._padded(number, min(PART_BYTES, self._size_bytes - number * PART_BYTES))
        missing = sorted(self._parts)
        for first in range(0, len(missing), PARTS_IN_FLIGHT):
            self._send(missing[first : first + PARTS_IN_FLIGHT])
        parts = "".join(
            f"<Part><PartNumber>{number + 1}</PartNumber><ETag>{self._etags[number]}</ETag></Part>"
            for number in numbers
        )
        text = f'<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{parts}</CompleteMultipartUpload>'
        complete = self._put(memoryview(text.encode()), (("uploadId", self._upload),), method="POST")
        complete.parse = check_completed
        try:
            self._client.request(complete)
        except (FileNotFoundError, UserError):  # a retry after a lost response finds the upload gone
            if not self._is_there():
                raise
        self._upload = ""

    def discard(self) -> None:
        self._parts.clear()
        upload, self._upload = self._upload, ""
        if upload:
            abort(self._client, self._key, upload)

    def _padded(self, number: int, size_bytes: int) -> bytearray:
        """Return a part in memory, with zeros up to a size where it is shorter."""
        part = self._parts.setdefault(number, bytearray())
        part.extend(bytes(max(0, size_bytes - len(part))))
        return part

    def _is_there(self) -> bool:
        """Return whether the object on the server is the one that this writer uploaded."""
        with contextlib.suppress(FileNotFoundError, UserError):
            head = self._client.request(Request(kind="head", method="HEAD", key=self._key))
            return (head.header(MARK), number_in(head.header("content-length"))) == (self._mark, self._size_bytes)
        return False

    def _send(self, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        if not self._upload:
            begin = self._put(memoryview(b""), (("uploads", ""),), method="POST")
            begin.signed_headers = ((MARK, self._mark),)
            begin.parse = upload_id_in
            self._client.request(begin)
            self._upload = begin.content
        requests = {}
        for number in numbers:
            query = (("partNumber", str(number + 1)), ("uploadId", self._upload))
            requests[number] = self._put(memoryview(self._parts[number]), query)
        self._client.request_all(requests.values(), PARTS_IN_FLIGHT)
        for number, request in requests.items():
            assert request.response is not None
            etag = request.response.header("etag")
            if not etag:
                raise UserError(
                    f"{self._client.where(request)}: the response has no ETag of the part, which completing the "
                    f"upload needs: wanted an S3 server at {self._client.endpoint}"
                )
            self._etags[number] = etag
            request.body = ()
            del self._parts[number]

    def _put(self, body: memoryview, query: Sequence[tuple[str, str]], *, method: str = "PUT") -> Request:
        """Return a request with a body, signed with its SHA-256 so that the server detects damage in transit."""
        digest = hashlib.sha256(body).hexdigest() if self._checksums else "UNSIGNED-PAYLOAD"
        parts = (body,) if body else ()
        self._client.counts.add("sent_bytes", len(body))
        return Request(kind="put", method=method, key=self._key, query=query, body=parts, payload_sha256=digest)


def abort(client: Client, key: str, upload: str) -> None:
    """Abort an upload, if it is unfinished; errors of the server are ignored."""
    with contextlib.suppress(FileNotFoundError, UserError):
        client.request(Request(kind="delete", method="DELETE", key=key, query=(("uploadId", upload),)))


def _pages(client: Client, prefix: str) -> Iterator[list[Entry]]:
    """List a prefix and yield page by page, one request each. Raises UserError for an endless listing."""
    fixed = (("delimiter", "/"), ("encoding-type", "url"), ("list-type", "2"), ("max-keys", str(PAGE_KEYS)))
    continuation, earlier = "", set[str]()
    while True:
        query = [*fixed, ("prefix", prefix)] + ([("continuation-token", continuation)] if continuation else [])
        request = Request(kind="list", method="GET", query=query, parse=page_in)
        client.request(request)
        page: Page = request.content
        yield _entries(client, prefix, page)
        if not page.continuation:
            return
        continuation = page.continuation
        if continuation in earlier or len(earlier) > MAX_PAGES:
            raise UserError(
                f"{client.where(request)}: the listing of {prefix!r} does not end: after {len(earlier) + 1} pages the "
                f"server announces a further one. Wanted a folder of at most {MAX_PAGES * PAGE_KEYS} objects, from a "
                "server whose continuation tokens advance"
            )
        earlier.add(continuation)


def _entries(client: Client, prefix: str, page: Page) -> list[Entry]:
    """Return the entries of a page without their prefix. Raises UserError for a key that is not below the prefix."""
    listed = [(key, Listed(key[len(prefix) :], False, size_bytes)) for key, size_bytes in page.objects]
    listed += [(key, Listed(key[len(prefix) :].removesuffix("/"), True)) for key in page.folders]
    for key, entry in listed:
        if not key.startswith(prefix) or "/" in entry.name:
            raise UserError(
                f"s3://{client.bucket} at {client.endpoint}: a listing of {prefix!r} has {key[:200]!r}, "
                "which is not directly below it: the server does not follow ListObjectsV2 for prefix and delimiter"
            )
    return [entry for _, entry in listed if entry.name not in INVALID_NAMES]  # such keys can't be written as a path


def _size_in(response: Exchange) -> int:
    """Return the object's size from the response to a HEAD; the client has checked that it states one."""
    return number_in(response.header("content-length")) or 0

"""Backend for S3 servers: objects are read whole or by ranges into the caller's memory, and written by (multipart) PUT.

A path is a key in the bucket of `StorageSpec.root` (`bucket`, `bucket/prefix` or `s3://bucket/prefix`), or a full URI,
`s3://bucket/key`. With the option `use_full_object_uri`, the keys themselves are full URIs, as in argonne's DLIO. The
options have DLIO's and mlpstorage's names: docs/objects.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from datagen.errors import UserError, no_such_file
from datagen.storage._http_exchange import Exchange, number_in
from datagen.storage._request_counts import RequestCounts
from datagen.storage._s3_access import read_options
from datagen.storage._s3_client import Client, Request
from datagen.storage._s3_responses import PAGE_KEYS, check_completed, page_in, upload_id_in, uploads_in
from datagen.storage.storage_base import Bytes, Entry, FileReads, Fill, Listed, Reader, StorageBase, StorageSpec, Writer

SCHEME = "s3://"
MAX_PAGES = 20_000  # maximum pages of a listing; if there are more, it counts as endless
HEAD_BATCH = 256  # objects whose sizes are requested together: enough to keep all connections busy
HEADS_IN_FLIGHT = 32  # one connection each: 3,200 objects/s at a latency of 10 ms
PART_BYTES, MAX_PARTS = 16 << 20, 10_000  # hence an object of at most 156 GiB
PARTS_IN_FLIGHT = 4  # of a thread; parts stay in memory until they are sent
MARK = "x-amz-meta-dlemu-upload"  # metadata header of an object: a random ID of the upload that wrote it


class Storage(StorageBase):
    """One bucket, or several with `s3://` paths."""

    is_remote = True
    cuts_reads = True
    held_bytes = PARTS_IN_FLIGHT * PART_BYTES

    def __init__(self, spec: StorageSpec) -> None:
        super().__init__(spec)
        self._options = read_options(dict(spec.options))
        root = "" if spec.root == "./" else spec.root.removeprefix(SCHEME)
        self._bucket, _, prefix = root.strip("/").partition("/")
        self._prefix = prefix and f"{prefix}/"
        self.counts = RequestCounts.in_folder(spec.account)
        self.client = Client(self._options, self.counts)
        self.server = self._options.endpoint_url

    def open(self, path: str) -> ObjectReader:
        head = self._request("HEAD", path)
        response = self.client.request(head)
        return ObjectReader(self, head, _size_in(response), response.header("etag"))

    def open_sized(self, path: str, size_bytes: int) -> ObjectReader:
        return ObjectReader(self, self._request("GET", path), size_bytes)

    def read_files(self, files: Sequence[tuple[str, memoryview]], transfer_bytes: int = 0) -> FileReads:
        """Read objects with `io_depth` GETs in flight: one each, more above `range_bytes`. Ignores `transfer_bytes`."""
        first_gets = []  # no HEAD is needed, because their responses state the sizes of the objects
        for path, memory in files:
            end = min(self.spec.range_bytes, len(memory)) or None  # None, the whole object, if `range_bytes` is 0
            first_gets.append(self._request("GET", path, end=end, target=memory[:end]))
        self.client.request_all(first_gets, self.spec.io_depth)
        results, more_gets = [], list[Request]()
        for get, (_, memory) in zip(first_gets, files, strict=True):
            response = get.response
            filled = response.body_bytes
            size = number_in(response.header("content-range").rpartition("/")[2]) or filled
            remaining = ObjectReader(self, get, size, response.header("etag")).requests(memory[filled:size], filled)
            more_gets += remaining
            results.append((size, min(size, len(memory)), 1 + len(remaining)))
        self.client.request_all(more_gets, self.spec.io_depth)
        return results

    def read_all(self, fills: Sequence[Fill]) -> list[int]:
        """Read byte ranges of objects, with `io_depth` requests in flight of at most `range_bytes` each."""
        sizes, gets = [], list[Request]()
        for reader, buffer, offset in fills:
            assert isinstance(reader, ObjectReader)
            sizes.append(max(0, min(len(buffer), reader.size_bytes - offset)))
            gets += reader.requests(buffer[: sizes[-1]], offset)
        self.client.request_all(gets, self.spec.io_depth)
        return sizes

    def create(self, path: str) -> ObjectWriter:
        return ObjectWriter(self.client, *self._locate(path), checksums=self._options.checksum_writes)

    @contextlib.contextmanager
    def entries(self, folder: str) -> Iterator[Iterator[Entry]]:
        bucket, key = self._locate(folder)
        remaining = itertools.chain.from_iterable(self._pages(bucket, key.rstrip("/") + "/" if key else ""))
        first = next(remaining, None)
        if first is None:
            raise no_such_file(folder)
        yield itertools.chain([first], remaining)

    def size_bytes(self, path: str) -> int:
        return _size_in(self.client.request(self._request("HEAD", path)))

    def sizes(self, paths: Iterable[str]) -> Iterator[int | None]:
        remaining = iter(paths)
        while batch := list(itertools.islice(remaining, HEAD_BATCH)):
            heads = [self._request("HEAD", path, accepted=(404,)) for path in batch]
            self.client.request_all(heads, HEADS_IN_FLIGHT)
            yield from (_size_in(head.response) if head.response.succeeded else None for head in heads)

    def remove(self, path: str) -> None:
        if next(self.sizes([path])) is None:  # DELETE of a missing object is no error in S3
            raise no_such_file(path)
        self.client.request(self._request("DELETE", path))

    def uploads(self, folder: str, names: Iterable[str], *, end: bool = False) -> int:
        bucket, prefix = self._locate(folder)
        keys = [f"{prefix.rstrip('/')}/{name}" for name in names]
        # One listing for each file: some servers (MinIO) list uploads only by the whole key, others longer keys, too
        listings = [
            Request(method="GET", bucket=bucket, query=(("prefix", key), ("uploads", "")), parse=uploads_in)
            for key in keys
        ]
        self.client.request_all(listings, HEADS_IN_FLIGHT)
        pairs = zip(keys, listings, strict=True)
        unfinished = [(key, upload_id) for key, listing in pairs for name, upload_id in listing.content if name == key]
        if end:
            for key, upload_id in unfinished:
                query = (("uploadId", upload_id),)
                _abort(self.client, Request(method="DELETE", bucket=bucket, key=key, query=query))
        return len(unfinished)

    def _pages(self, bucket: str, prefix: str) -> Iterator[list[Listed]]:
        """Yield the listing of a prefix page by page, one request each. Raises UserError if it does not end."""
        options = (("delimiter", "/"), ("encoding-type", "url"), ("list-type", "2"), ("max-keys", str(PAGE_KEYS)))
        token, earlier_tokens = "", set[str]()
        while True:
            query = [*options, ("prefix", prefix)] + ([("continuation-token", token)] if token else [])
            request = Request(method="GET", bucket=bucket, query=query, parse=partial(page_in, prefix))
            self.client.request(request)
            entries, token = request.content
            yield entries
            if not token:
                return
            if token in earlier_tokens or len(earlier_tokens) > MAX_PAGES:
                raise UserError(
                    f"{self.client.where(request)}: the listing of {prefix!r} does not end after "
                    f"{len(earlier_tokens) + 1} pages: wanted fewer objects, or a server whose continuation tokens "
                    "advance"
                )
            earlier_tokens.add(token)

    def _request(self, method: str, path: str, **settings: Any) -> Request:
        bucket, key = self._locate(path)
        return Request(method=method, bucket=bucket, key=key, **settings)

    def _locate(self, path: str) -> tuple[str, str]:
        """Return the bucket and the key of a path. Raises UserError: it names no bucket."""
        if path.startswith(SCHEME):
            bucket, _, key = path.removeprefix(SCHEME).partition("/")
        else:
            # The key of ./data and of /data is `data`
            relative = os.path.normpath(path).lstrip("/") if path not in ("", ".") else ""
            bucket, key = self._bucket, f"{self._prefix}{relative}"
        if not bucket:
            raise UserError(
                f"{path!r} names no bucket: set storage.storage_root to one, or dataset.data_folder to s3://BUCKET/..."
            )
        return bucket, f"{SCHEME}{bucket}/{key}" if self._options.use_full_object_uri else key


class ObjectReader(Reader):
    def __init__(self, storage: Storage, request: Request, size_bytes: int, etag: str = "") -> None:
        """Read the object of an earlier `request`; if its `etag` is given, reads fail once the object has changed."""
        super().__init__(size_bytes)
        self._client, self._spec = storage.client, storage.spec
        self._get = partial(
            Request, method="GET", bucket=request.bucket, key=request.key, size_bytes=size_bytes, etag=etag
        )

    def read_into(self, buffer: memoryview, offset: int) -> int:
        size = max(0, min(len(buffer), self.size_bytes - offset))
        self._client.request_all(self.requests(buffer[:size], offset), self._spec.io_depth)
        return size

    def requests(self, buffer: memoryview, offset: int) -> list[Request]:
        """Return the GETs that fill a buffer from `offset` on, and count them as reads."""
        range_bytes = self._spec.range_bytes or len(buffer) or 1
        requests = []
        for start in range(0, len(buffer), range_bytes):
            target = buffer[start : start + range_bytes]
            end = offset + start + len(target) if len(target) < self.size_bytes else None  # None: the whole object
            requests.append(self._get(begin=offset + start, end=end, target=target))
        self.read_calls += len(requests)
        self.app_bytes += len(buffer)
        return requests


class ObjectWriter(Writer):
    """An object being written: one PUT if it is small, else a multipart upload with several parts in flight."""

    def __init__(self, client: Client, bucket: str, key: str, *, checksums: bool) -> None:
        self._client = client
        self._name = f"{SCHEME}{bucket}/{key}"
        self._request = partial(Request, bucket=bucket, key=key)
        self._checksums = checksums
        self._mark = os.urandom(12).hex()
        self._parts: dict[int, bytearray] = {}  # part number from 0 -> its bytes, until they are sent
        self._written = Counter[int]()  # part number -> bytes written to it so far
        self._etags: dict[int, str] = {}  # part number -> ETag, of the parts that were sent; empty while they are
        self._upload_id = ""  # of the multipart upload; empty before and after it
        self._size_bytes = 0  # end of the last byte written
        self._lock = threading.Lock()

    def write_at(self, data: Bytes, offset: int) -> None:
        view = memoryview(data).cast("B")
        while view:
            number, begin = divmod(offset, PART_BYTES)  # of the part, and where to write in it
            if number >= MAX_PARTS:
                raise UserError(
                    f"{self._name} exceeds {MAX_PARTS * PART_BYTES} bytes, the most that an upload in parts can have: "
                    "wanted smaller files, or a folder"
                )
            chunk = view[: PART_BYTES - begin]
            with self._lock:  # threads that write one checkpoint share this writer, and each sends parts
                self._size_bytes = max(self._size_bytes, offset + len(view))
                if number in self._etags:
                    raise UserError(
                        f"{self._name}: bytes at offset {offset} belong to a part that is uploaded already, which S3 "
                        "can't change: write this format to a folder"
                    )
                self._part_buffer(number, begin)[begin : begin + len(chunk)] = chunk
                self._written[number] += len(chunk)
                unsent = (part for part in list(self._parts) if part not in self._etags)
                complete = [part for part in unsent if self._written[part] >= PART_BYTES]
                if is_due := len(complete) >= PARTS_IN_FLIGHT:
                    self._etags |= dict.fromkeys(complete, "")
            if is_due:
                self._send_parts(complete)
            offset += len(chunk)
            view = view[len(chunk) :]

    def commit(self) -> None:
        if not self._upload_id and self._size_bytes <= PART_BYTES:
            self._client.request(self._put("PUT", memoryview(self._part_buffer(0, self._size_bytes))))
            self._parts.clear()
            return
        numbers = range(-(-self._size_bytes // PART_BYTES))
        missing = [number for number in numbers if not self._etags.get(number)]
        for first in range(0, len(missing), PARTS_IN_FLIGHT):
            self._send_parts(missing[first : first + PARTS_IN_FLIGHT])
        parts = "".join(
            f"<Part><PartNumber>{number + 1}</PartNumber><ETag>{self._etags[number]}</ETag></Part>"
            for number in numbers
        )
        body = f'<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{parts}</CompleteMultipartUpload>'
        query = (("uploadId", self._upload_id),)
        try:
            self._client.request(self._put("POST", body.encode(), query=query, parse=check_completed))
        except (FileNotFoundError, UserError):  # a retry does not find the upload if the first response was lost
            if not self._is_published():
                raise
        self._upload_id = ""

    def discard(self) -> None:
        self._parts.clear()
        upload_id, self._upload_id = self._upload_id, ""
        if upload_id:
            _abort(self._client, self._request(method="DELETE", query=(("uploadId", upload_id),)))

    def _part_buffer(self, number: int, size_bytes: int) -> bytearray:
        """Return a part in memory, extended with zeros to at least `size_bytes`."""
        part = self._parts.setdefault(number, bytearray())
        part.extend(bytes(max(0, size_bytes - len(part))))
        return part

    def _is_published(self) -> bool:
        """Return whether the object on the server is the one that this writer uploaded."""
        with contextlib.suppress(FileNotFoundError, UserError):
            head = self._client.request(self._request(method="HEAD"))
            return (head.header(MARK), _size_in(head)) == (self._mark, self._size_bytes)
        return False

    def _send_parts(self, numbers: Sequence[int]) -> None:
        """Upload parts, and release their memory; begin the multipart upload if these are its first."""
        with self._lock:
            if not self._upload_id:
                mark = ((MARK, self._mark),)
                begin = self._put("POST", b"", query=(("uploads", ""),), signed_headers=mark, parse=upload_id_in)
                self._client.request(begin)
                self._upload_id = begin.content
        requests = []
        for number in numbers:
            query = (("partNumber", str(number + 1)), ("uploadId", self._upload_id))
            part = self._part_buffer(number, min(PART_BYTES, self._size_bytes - number * PART_BYTES))
            requests.append(self._put("PUT", memoryview(part), query=query))
        self._client.request_all(requests, PARTS_IN_FLIGHT)
        for number, request in zip(numbers, requests, strict=True):
            self._etags[number] = request.response.header("etag")
            if not self._etags[number]:
                raise UserError(
                    f"{self._client.where(request)}: the response has no ETag of the part, which completing the "
                    "upload needs"
                )
            del self._parts[number]

    def _put(self, method: str, body: Bytes, **settings: Any) -> Request:
        """Return a request with a body, signed with its SHA-256 so that the server detects damage in transit."""
        digest = hashlib.sha256(body).hexdigest() if self._checksums else "UNSIGNED-PAYLOAD"
        self._client.counts.add("sent_bytes", len(body))
        return self._request(method=method, body=body, payload_sha256=digest, **settings)


def _abort(client: Client, request: Request) -> None:
    """Abort an upload; ignore errors of the server, and that the upload may be gone."""
    with contextlib.suppress(FileNotFoundError, UserError):
        client.request(request)


def _size_in(response: Exchange) -> int:
    """Return the size that the response to a HEAD states; the client has checked that it does."""
    return number_in(response.header("content-length")) or 0

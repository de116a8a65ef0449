"""Writing an S3 object: one PUT if it is small, else a multipart upload with several parts in flight."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Sequence

from datagen.errors import UserError
from datagen.storage._http_exchange import number_in
from datagen.storage._s3_client import Client, Request
from datagen.storage._s3_xml import check_completed, upload_id_in
from datagen.storage.storage_base import Bytes, Writer

PART_BYTES, MAX_PARTS = 16 << 20, 10_000  # S3 takes 10,000 parts, hence an object of at most 156 GiB
PARTS_IN_FLIGHT = 4  # they stay in memory until they are sent: 64 MiB per object
MARK = "x-amz-meta-dlemu-upload"  # metadata header of an object: a random ID of the upload that wrote it


class ObjectWriter(Writer):
    """An object being written: one PUT if it is small, else a multipart upload with several parts in flight.

    Parts with skipped bytes stay in memory until these are written.
    """

    def __init__(self, client: Client, key: str, *, checksums: bool) -> None:
        self._client, self._key, self._checksums = client, key, checksums
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
            self.position += len(piece)
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

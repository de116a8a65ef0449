"""Writing an object: one PUT where it is small, else an upload of parts, several at a time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from datagen.errors import UserError
from datagen.storage._http_exchange import number_in
from datagen.storage._s3_client import Client, Request, Span
from datagen.storage._s3_xml import check_completed, upload_id_in
from datagen.storage.storage_base import Bytes

PART_BYTES = 16 << 20
"""Bytes of a part of an upload; of very large objects later parts are larger, for 10,000 are the most."""
PARTS_AT_A_TIME = 4  # in memory until they are sent: 64 MiB an upload, more of very large objects
DOUBLE_AFTER = 2000  # S3's 10,000 parts then hold 10.4 TiB, and the largest, 4 GiB, is below its 5 GiB
MARK = "x-amz-meta-dlemu-upload"
"""Header of an object that says by which upload it was written: a random number that no other upload has."""
RECORD_NAME = re.compile(r"\.(.+)\.dlemu-([0-9a-f]{24})\.upload", re.DOTALL)
KEY, UPLOAD = "key", "dlemu_upload"
"""What a record has: the object's key, and the number of its upload."""
RECORD_BYTES = 4 << 10
"""Most bytes of a record."""


class ObjectWriter:
    """An object under way: one PUT where it is small, else an upload of parts, several at a time.

    Parts with bytes that were skipped are held until these are written. With `recorded` an object beside it names the
    upload while it is under way: a later process that finds the record may abort it, and no other.
    """

    def __init__(self, client: Client, key: str, *, checksums: bool, recorded: bool = False) -> None:
        self.position = 0
        self._client, self._key, self._checksums, self._recorded = client, key, checksums, recorded
        self._mark = os.urandom(12).hex()
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
                    f"s3://{self._client.server.bucket}/{self._key}: bytes at offset {offset} must be written after "
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
            self._client.request(self._put(body, ()))
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
        complete = self._put(memoryview(text.encode()), (("uploadId", self._upload),), method="POST")
        complete.read = check_completed
        try:
            self._client.request(complete)
        except (FileNotFoundError, UserError):  # after an answer that was lost there is no such upload any more
            if not self._is_there():
                raise
        self._upload = ""
        self._remove_record()

    def discard(self) -> None:
        self._parts.clear()
        upload, self._upload = self._upload, ""
        if upload:
            abort(self._client, self._key, upload)
            self._remove_record()

    def _is_there(self) -> bool:
        """Return whether the object is the one that this upload made."""
        with contextlib.suppress(FileNotFoundError, UserError):
            answer = self._client.request(Request(kind="head", method="HEAD", key=self._key))
            return (answer.header(MARK), number_in(answer.header("content-length"))) == (self._mark, self._size_bytes)
        return False

    def _remove_record(self) -> None:
        if self._recorded:
            with contextlib.suppress(FileNotFoundError, UserError):  # one that stays names an upload that is over
                self._client.request(Request(kind="delete", method="DELETE", key=record_key(self._key, self._mark)))

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
            begin = self._put(memoryview(b""), (("uploads", ""),), method="POST")
            begin.signed_headers, begin.read = ((MARK, self._mark),), upload_id_in
            self._client.request(begin)
            self._upload = begin.content
            if self._recorded:
                record = json.dumps({KEY: self._key, UPLOAD: self._upload}).encode()
                self._client.request(self._put(memoryview(record), (), key=record_key(self._key, self._mark)))
        requests = {}
        for number in numbers:
            query = (("partNumber", str(number + 1)), ("uploadId", self._upload))
            requests[number] = self._put(memoryview(self._parts[number]), query)
        self._client.request_all(requests.values(), PARTS_AT_A_TIME)
        for number, request in requests.items():
            assert request.answer is not None
            etag = request.answer.header("etag")
            if not etag:
                raise UserError(
                    f"{self._client.where(request)}: the response has no ETag of the part, which completing the "
                    f"upload needs: wanted an S3 server at {self._client.server.endpoint}"
                )
            self._etags[number] = etag
            request.body = ()
            del self._parts[number]
            self._written.pop(number, None)

    def _put(
        self, body: memoryview, query: Sequence[tuple[str, str]], *, method: str = "PUT", key: str = ""
    ) -> Request:
        """Return a request with a body; its SHA-256 lets the server see whether it arrived as it was sent."""
        digest = hashlib.sha256(body).hexdigest() if self._checksums else "UNSIGNED-PAYLOAD"
        parts = (body,) if body else ()
        self._client.counts.add("sent_bytes", len(body))
        return Request(kind="put", method=method, key=key or self._key, query=query, body=parts, payload_sha256=digest)


def record_key(key: str, mark: str) -> str:
    """Return where an object's upload is recorded: beside it, under a name that nobody else gives."""
    folder, slash, name = key.rpartition("/")
    return f"{folder}{slash}.{name}.dlemu-{mark}.upload"


def abort_recorded(client: Client, folder: str, name: str) -> None:
    """Abort the upload that a record names, and remove that; an object that is no record stays as it is.

    `folder` is what is before the name.
    """
    match = RECORD_NAME.fullmatch(name)
    if match is None:
        return
    span, key = Span(0, RECORD_BYTES), folder + match[1]
    fine = (404, 416)  # it is gone, or empty
    answer = client.request(
        Request(kind="get", method="GET", key=folder + name, headers=(span.header,), span=span, fine=fine)
    )
    if not answer.succeeded or number_in(answer.header("content-range").rpartition("/")[2]) != len(answer.body):
        return
    try:
        record = json.loads(answer.body)
    except (ValueError, RecursionError):
        return
    upload = record.get(UPLOAD) if isinstance(record, dict) and record.get(KEY) == key else None
    if isinstance(upload, str) and upload:
        abort(client, key, upload)
        client.request(Request(kind="delete", method="DELETE", key=folder + name))


def abort(client: Client, key: str, upload: str) -> None:
    """Abort an upload, where it is still under way and the server lets us."""
    with contextlib.suppress(FileNotFoundError, UserError):
        client.request(Request(kind="delete", method="DELETE", key=key, query=(("uploadId", upload),)))


class PartPlace(NamedTuple):
    """Where an offset lies."""

    number: int
    start: int
    size: int


def part_of(offset: int) -> PartPlace:
    """Return the part of an upload that an offset is in."""
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

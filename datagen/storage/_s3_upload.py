"""Writing an object: one PUT where it is small, else an upload of parts, several at a time."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from datagen.errors import UserError
from datagen.storage._s3_client import Ask, Client, tag_text
from datagen.storage.storage_base import Bytes

PART_BYTES = 16 << 20
"""Bytes of a part of an upload; of very large objects later parts are larger, for 10,000 are the most."""
PARTS_AT_A_TIME = 4
DOUBLE_AFTER = 2000


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
            self._etags[number] = ask.answer.header("etag")
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

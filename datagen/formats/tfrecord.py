"""TFRecord: framed records, each a tf.train.Example with `image` and `size`, and an index as DALI reads it.

A record is: length (8 bytes), masked CRC32C of those 8, the data, masked CRC32C of the data, all little-endian
(tensorflow/core/lib/io/record_writer.h). The index lies at DATA_FOLDER/index/{train,valid}/FILE.idx and has a line
`offset length` for each record, framing included. A file's records have one length, so its index is pure arithmetic.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import BinaryIO

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer
from datagen.content import Content
from datagen.formats._records import RecordSamples, no_side, no_such_record, sample_bytes
from datagen.formats._tfexample import around_image, example_bytes, find_image
from datagen.formats.base import FileJob, MovedError, OpenSide, Sample, Source, damaged
from datagen.layout import Layout
from datagen.spec import BLOCK_BYTES, DatasetSpec
from datagen.storage.base import Writer

CHUNK_BYTES = 1 << 20
"""Bytes made, summed and written at a time: they stay in a core's second-level cache meanwhile."""
HEAD_BYTES = 12
"""Length and its sum, before the data."""
FRAME_BYTES = 16
"""What the framing adds to a record."""
INDEX_LINES = 1 << 14
"""Lines of an index made at a time."""
_CRC_MASK = 0xA282EAD8
_FULL = 0xFFFFFFFF
_HEAD = struct.Struct("<QL")

Bytes = bytes | NDArray[np.uint8]


class Index:
    """The side file that DALI wants."""

    def path(self, layout: Layout, file: int) -> str:
        return f"{self.folder(layout)}/{os.path.basename(layout.name(file))}.idx"

    def folder(self, layout: Layout) -> str:
        return f"{os.path.dirname(layout.folder)}/index/{layout.split}"

    def file_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
        records, places = np.unique(_record_bytes(spec, shapes), return_inverse=True)
        samples = spec.num_samples_per_file
        sizes = [_digits_of_multiples(size, samples) + samples * (len(str(size)) + 2) for size in records.tolist()]
        return np.array(sizes, np.int64)[places]

    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        size = _Frame(job.record_bytes).record_bytes
        samples = job.spec.num_samples_per_file
        for first in range(0, samples, INDEX_LINES):
            last = min(first + INDEX_LINES, samples)
            writer.write("".join(f"{i * size} {size}\n" for i in range(first, last)).encode())


class Format:
    """Reads and writes TFRecord files."""

    sides = (Index(),)
    mapped = False

    def unfit(self, spec: DatasetSpec) -> list[str]:
        if spec.compression != "none":
            return [f"dataset.compression is {spec.compression}: format tfrecord knows none"]
        return []

    def record_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
        return _record_bytes(spec, shapes)

    def file_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
        return _record_bytes(spec, shapes) * spec.num_samples_per_file

    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        frame = _Frame(job.record_bytes)
        if frame.record_bytes > CHUNK_BYTES // 2:
            _write_large(job, frame, writer, buffer)
        else:
            _write_small(job, frame, writer, buffer)

    def open(self, source: Source, samples: int) -> RecordSamples:
        return RecordSamples(source, self.open_records(source, samples, no_side))

    def open_records(self, source: Source, samples: int, side: OpenSide) -> TfrecordFile:
        return TfrecordFile(source, samples, side)

    def load(self, path: str, index: int, samples: int) -> Sample:
        """Read a record as the scripts do that have no TensorFlow: find its framing, then parse the Example."""
        with open(path, "rb") as file:
            at = _seek_record(file, index, samples) + HEAD_BYTES
            data = memoryview(file.read(_HEAD.unpack(file.read(HEAD_BYTES))[0]))
        start, size = _image(path, data, at)
        payload = data[start : start + size]
        return Sample(payload, payload, index * size)


class _Frame:
    """What stands around each image of one length."""

    def __init__(self, image_bytes: int) -> None:
        before, self.behind = around_image(image_bytes)
        self.image_bytes = image_bytes
        self.data_bytes = len(before) + image_bytes + len(self.behind)
        length = struct.pack("<Q", self.data_bytes)
        self.example_head = before
        self.before = length + struct.pack("<L", masked_crc(length)) + before
        self.record_bytes = self.data_bytes + FRAME_BYTES


def _record_bytes(spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
    return example_bytes(sample_bytes(spec, shapes)) + FRAME_BYTES


def masked_crc(data: Bytes) -> int:
    """Return the CRC32C of `data`, masked as TFRecord stores it (tensorflow/core/lib/hash/crc32c.h)."""
    return _mask(google_crc32c.value(data))


def _mask(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _CRC_MASK) & _FULL


def _write_large(job: FileJob, frame: _Frame, writer: Writer, buffer: AlignedBuffer) -> None:
    """Write records in pieces, each of one chunk of content."""
    for record in range(job.spec.num_samples_per_file):
        writer.write(frame.before)
        crc = google_crc32c.value(frame.example_head)
        for piece in _payload(job, record * frame.image_bytes, (record + 1) * frame.image_bytes, buffer):
            crc = google_crc32c.extend(crc, piece)
            writer.write(piece.data)
        crc = google_crc32c.extend(crc, frame.behind)
        writer.write(frame.behind + struct.pack("<L", _mask(crc)))


def _payload(job: FileJob, start: int, stop: int, buffer: AlignedBuffer) -> Iterator[NDArray[np.uint8]]:
    """Make a stretch of the file's payload; each piece is good until the next."""
    chunk = buffer.view(CHUNK_BYTES)
    for block in range(start - start % BLOCK_BYTES, stop, CHUNK_BYTES):
        end = min(block + CHUNK_BYTES, stop)
        job.content.fill(chunk[: end - block], job.running_index, block)
        yield np.frombuffer(chunk, np.uint8)[max(start - block, 0) : end - block]


def _write_small(job: FileJob, frame: _Frame, writer: Writer, buffer: AlignedBuffer) -> None:
    """Write many records at a time: content is made in whole blocks, then put into its frames."""
    together = CHUNK_BYTES // frame.record_bytes
    memory = np.frombuffer(buffer.view(2 * CHUNK_BYTES + BLOCK_BYTES), np.uint8)
    content, room = memory[: CHUNK_BYTES + BLOCK_BYTES], memory[CHUNK_BYTES + BLOCK_BYTES :]
    records = room[: together * frame.record_bytes].reshape(together, frame.record_bytes)
    image = slice(len(frame.before), len(frame.before) + frame.image_bytes)
    records[:, : image.start] = np.frombuffer(frame.before, np.uint8)
    records[:, image.stop : -4] = np.frombuffer(frame.behind, np.uint8)
    samples = job.spec.num_samples_per_file
    for first in range(0, samples, together):
        part = records[: min(together, samples - first)]
        part[:, image] = _images(job.content, job.running_index, first, part.shape[0], frame.image_bytes, content)
        part[:, -4:] = _sums(part[:, HEAD_BYTES:-4])
        writer.write(part.reshape(-1).data)


def _images(
    content: Content, file: int, first: int, count: int, image_bytes: int, room: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Make the payload of neighbouring records as an array (count, image_bytes)."""
    start, stop = first * image_bytes, (first + count) * image_bytes
    block = start - start % BLOCK_BYTES
    content.fill(room[: stop - block], file, block)
    return room[start - block : stop - block].reshape(count, image_bytes)


def _sums(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the masked sum of each row, as four bytes."""
    value = google_crc32c.value
    crcs = np.fromiter((value(row) for row in data), np.uint32, len(data))
    masked = (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(_CRC_MASK)
    return masked.astype("<u4").view(np.uint8).reshape(-1, 4)


def _digits_of_multiples(size: int, count: int) -> int:
    """Return the digits of 0, size, 2 size, ... (count - 1) size, all counted."""
    digits, power = count, 10
    while power <= (count - 1) * size:
        digits += count - -(-power // size)  # those that have one digit more
        power *= 10
    return digits


class TfrecordFile:
    """One file. Its records are taken to have one length until one of them says otherwise; then its index is read."""

    scattered = False

    def __init__(self, source: Source, samples: int, side: OpenSide) -> None:
        self._source = source
        self._samples = samples
        self._side = side
        self._offsets: NDArray[np.int64] | None = None
        self._record_bytes, rest = divmod(source.size_bytes, samples)
        self._before = b""
        self._image_bytes = 0
        if rest or self._record_bytes < FRAME_BYTES:
            self._offsets = self._find_offsets()

    def span(self, index: int, count: int) -> tuple[int, int]:
        if not 0 <= index <= index + count <= self._samples:
            raise no_such_record(self._source.path, index, self._samples)
        if self._offsets is None:
            return index * self._record_bytes, count * self._record_bytes
        start = int(self._offsets[index])
        return start, int(self._offsets[index + count]) - start

    def samples(self, index: int, count: int, data: memoryview, verify: bool) -> list[tuple[int, int]]:
        if self._offsets is not None or verify:
            return self._parsed(index, count, data, verify)
        before, size = self._before, self._record_bytes
        head = len(before)
        if count == 1 and head and data[:head] == before:
            return [(head, self._image_bytes)]
        places = []
        for start in range(0, count * size, size):
            if not head or data[start : start + head] != before:
                return self._parsed(index, count, data, verify)
            places.append((start + head, self._image_bytes))
        return places

    def largest_bytes(self) -> int:
        if self._samples > 1 and self._offsets is None:
            self._offsets = self._find_offsets()
        return self._record_bytes if self._offsets is None else int(np.diff(self._offsets).max())

    def _parsed(self, index: int, count: int, data: memoryview, verify: bool) -> list[tuple[int, int]]:
        """Take records apart one by one, and remember what an ordinary one looks like."""
        places, at = [], 0
        for number in range(index, index + count):
            offset, size = self.span(number, 1)
            record = data[at : at + size]
            self._check_length(record, offset, size)
            if verify:
                _check_sum(self._source.path, record, offset)
            start, image_bytes = _image(self._source.path, record[HEAD_BYTES:-4], offset)
            start += HEAD_BYTES
            self._before, self._image_bytes = bytes(record[:start]), image_bytes
            places.append((at + start, image_bytes))
            at += size
        return places

    def _check_length(self, record: memoryview, offset: int, size: int) -> None:
        length, crc = _HEAD.unpack_from(record)
        if length + FRAME_BYTES != size and self._offsets is None:
            self._offsets = self._find_offsets()
            raise MovedError
        if masked_crc(bytes(record[:8])) != crc:
            raise damaged(self._source.path, "a record's length does not match its sum", offset)
        if length + FRAME_BYTES != size:
            found = f"a record states {length} bytes of data where its index gives {size - FRAME_BYTES}"
            raise damaged(self._source.path, found, offset)

    def _find_offsets(self) -> NDArray[np.int64]:
        """Return where each record begins and the last one ends: from the index if it fits the file, or by a walk."""
        source = self._side(0)
        offsets = None if source is None else _indexed(bytes(source.read(0, source.size_bytes)), self._samples)
        if offsets is None or offsets[-1] != self._source.size_bytes:
            offsets = self._walk()
        return offsets

    def _walk(self) -> NDArray[np.int64]:
        """Go from record to record."""
        source = self._source
        offsets = np.empty(self._samples + 1, np.int64)
        at = 0
        for number in range(self._samples):
            if at == source.size_bytes:
                raise no_such_record(source.path, number, number)
            offsets[number] = at
            at = _next_record(source, at)
        offsets[-1] = at
        return offsets


def _seek_record(file: BinaryIO, index: int, samples: int) -> int:
    """Go to where a record begins and return that place.

    Records of one length lie at its multiples; the sum over the length that a record begins with proves that it does so
    there. Others are found by walking from record to record.
    """
    record_bytes, rest = divmod(os.fstat(file.fileno()).st_size, samples)
    if not rest and index < samples:
        at = file.seek(index * record_bytes)
        head = file.read(HEAD_BYTES)
        if len(head) == HEAD_BYTES and _HEAD.unpack(head) == (record_bytes - FRAME_BYTES, masked_crc(head[:8])):
            return file.seek(at)
    at = file.seek(0)
    for number in range(index + 1):
        head = file.read(HEAD_BYTES)
        if len(head) < HEAD_BYTES:
            raise no_such_record(file.name, index, number)
        if number < index:
            at = file.seek(_HEAD.unpack(head)[0] + 4, os.SEEK_CUR)
    return file.seek(at)


def _next_record(source: Source, at: int) -> int:
    """Return where the record at `at` ends."""
    if at + FRAME_BYTES > source.size_bytes:
        raise damaged(source.path, "the file ends within a record", at)
    head = bytes(source.read(at, HEAD_BYTES))
    length, crc = _HEAD.unpack(head)
    if masked_crc(head[:8]) != crc:
        raise damaged(source.path, "no TFRecord framing: a record's length does not match its sum", at)
    if at + length + FRAME_BYTES > source.size_bytes:
        raise damaged(source.path, f"a record of {length} bytes ends behind the file", at)
    return at + int(length) + FRAME_BYTES


def _indexed(text: bytes, samples: int) -> NDArray[np.int64] | None:
    """Return where the records of an index begin and the last one ends; None when it is no index of so many."""
    try:
        numbers = [int(word) for word in text.split()]
    except ValueError:
        return None
    offsets, sizes = numbers[::2], numbers[1::2]
    if not len(offsets) == len(sizes) >= samples or offsets[0] != 0:
        return None
    ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
    if any(end != start for end, start in zip(ends, offsets[1:], strict=False)):
        return None
    if any(later <= earlier for earlier, later in pairwise(offsets)):
        return None
    return np.array([*offsets, ends[-1]], np.int64)


def _check_sum(path: str, record: memoryview, offset: int) -> None:
    """Check the sum over the data of a record at `offset` of a file; raises DatasetError."""
    data = np.frombuffer(record, np.uint8)
    (data_crc,) = struct.unpack("<L", record[-4:])
    if masked_crc(data[HEAD_BYTES:-4]) != data_crc:
        raise damaged(path, "a record's data does not match its sum (CRC32C)", offset)


def _image(path: str, example: memoryview, offset: int) -> tuple[int, int]:
    """Return start and bytes of the image in an Example; of a record that is no Example, all of it."""
    try:
        return find_image(example)
    except ValueError:
        return 0, len(example)

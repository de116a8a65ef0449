"""Reading TFRecord files: locating records (by equal length, by the index, or by walking the file) and parsing them.

A record is a tf.train.Example of two features, `image` (bytes) and `size` (int64); protobuf messages are coded by hand.
Wire format: protobuf.dev/programming-guides/encoding. Messages: tensorflow/core/example/{example,feature}.proto, where
Example.features = 1; Features.feature = 1, a map whose entries have key = 1 and value = 2; Feature.bytes_list = 1,
.int64_list = 3; BytesList.value = 1; Int64List.value = 1, packed.
"""

from __future__ import annotations

import os
import struct
from itertools import pairwise
from typing import BinaryIO

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from datagen.formats.format_base import Extents, MovedError, OffsetRecords, OpenSide, Source, damaged, no_such_record
from datagen.known_offsets import offsets_in
from datagen.places import even_places

HEAD_BYTES = 12
"""Bytes before a record's data: its length and the checksum of the length."""
FRAME_BYTES = 16
"""Bytes that the framing adds to a record's data."""
HEAD = struct.Struct("<QL")
CRC_MASK = 0xA282EAD8  # kMaskDelta in TensorFlow's crc32c.h; masking lets data contain checksums
_FULL = 0xFFFFFFFF

Bytes = bytes | NDArray[np.uint8]


def masked_crc(data: Bytes) -> int:
    """Return the CRC32C of `data`, masked as TFRecord stores it (tensorflow/core/lib/hash/crc32c.h)."""
    return mask(google_crc32c.value(data))


def mask(crc: int) -> int:
    """Return a CRC32C as TFRecord stores it."""
    return ((crc >> 15 | crc << 17) + CRC_MASK) & _FULL


class TfrecordFile(OffsetRecords):
    """One file. Its records are assumed to have one length; once a record contradicts, its index is read."""

    def __init__(self, source: Source, samples: int, side: OpenSide) -> None:
        record_bytes, rest = divmod(source.size_bytes, samples)
        super().__init__(source, samples, record_bytes)
        self._side = side
        self._before = b""  # the bytes before the image in the last record parsed; most records have the same
        self._image_bytes = 0
        if rest or record_bytes < FRAME_BYTES:
            self._offsets = self._find_offsets()

    def samples(self, index: int, count: int, data: memoryview, verify: bool) -> Extents:
        before, size = self._before, self._record_bytes
        head = len(before)
        if self._offsets is not None or verify or not head:
            return self._parsed(index, count, data, verify)
        if count == 1:
            return [(head, self._image_bytes)] if data[:head] == before else self._parsed(index, count, data, verify)
        heads = np.frombuffer(data, np.uint8, count * size).reshape(count, size)[:, :head]
        if (heads != np.frombuffer(before, np.uint8)).any():
            return self._parsed(index, count, data, verify)
        return even_places(head, size, self._image_bytes, count)

    def largest_bytes(self) -> int:
        if self._samples > 1 and self._offsets is None:
            self._offsets = self._find_offsets()
        return super().largest_bytes()

    def _parsed(self, index: int, count: int, data: memoryview, verify: bool) -> list[tuple[int, int]]:
        """Parse records one by one, and keep the bytes before the image for comparison with later records."""
        places, at = [], 0
        for number in range(index, index + count):
            offset, size = self.span(number, 1)
            record = data[at : at + size]
            self._check_length(record, offset, size)
            if verify:
                _check_data(self._source.path, record, offset)
            start, image_bytes = image_extent(self._source.path, record[HEAD_BYTES:-4], offset)
            start += HEAD_BYTES
            self._before, self._image_bytes = bytes(record[:start]), image_bytes
            places.append((at + start, image_bytes))
            at += size
        return places

    def _check_length(self, record: memoryview, offset: int, size: int) -> None:
        """Check the length that a record states; raises MovedError if records turn out to differ in length."""
        length, crc = HEAD.unpack_from(record)
        if length + FRAME_BYTES != size and self._offsets is None:
            self._offsets = self._find_offsets()
            raise MovedError
        if masked_crc(bytes(record[:8])) != crc:
            raise damaged(self._source.path, "a record's length does not match its checksum", offset)
        if length + FRAME_BYTES != size:
            problem = f"a record states {length} bytes of data where its index gives {size - FRAME_BYTES}"
            raise damaged(self._source.path, problem, offset)

    def _find_offsets(self) -> NDArray[np.int64]:
        """Return the offset of each record and the end of the last: from the index if it fits the file, else walk."""
        source = self._side(0)
        offsets = None if source is None else _parse_index(bytes(source.read(0, source.size_bytes)), self._samples)
        if offsets is None or offsets[-1] != self._source.size_bytes:
            offsets = offsets_in(self._source, self._samples, self._walk)
        return offsets

    def _walk(self) -> NDArray[np.int64]:
        """Return the offsets by reading the head of each record."""
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


def seek_record(file: BinaryIO, index: int, samples: int) -> int:
    """Seek to the start of a record and return its offset.

    If all records have one length, the offset is a multiple of it, which the checksum of the length found there proves.
    Otherwise the file is walked from record to record.
    """
    record_bytes, rest = divmod(file.seek(0, os.SEEK_END), samples)
    if not rest and index < samples:
        at = file.seek(index * record_bytes)
        head = file.read(HEAD_BYTES)
        if len(head) == HEAD_BYTES and HEAD.unpack(head) == (record_bytes - FRAME_BYTES, masked_crc(head[:8])):
            return file.seek(at)
    at = file.seek(0)
    for number in range(index + 1):
        head = file.read(HEAD_BYTES)
        if len(head) < HEAD_BYTES:
            raise no_such_record(file.name, index, number)
        if number < index:
            at = file.seek(HEAD.unpack(head)[0] + 4, os.SEEK_CUR)
    return file.seek(at)


def _next_record(source: Source, at: int) -> int:
    """Return the end of the record at offset `at`."""
    if at + FRAME_BYTES > source.size_bytes:
        raise damaged(source.path, "the file ends within a record", at)
    head = bytes(source.read(at, HEAD_BYTES))
    length, crc = HEAD.unpack(head)
    if masked_crc(head[:8]) != crc:
        raise damaged(source.path, "no TFRecord framing: a record's length does not match its checksum", at)
    if at + length + FRAME_BYTES > source.size_bytes:
        raise damaged(source.path, f"a record of {length} bytes ends beyond the end of the file", at)
    return at + int(length) + FRAME_BYTES


def _parse_index(text: bytes, samples: int) -> NDArray[np.int64] | None:
    """Return the offset of each record and the end of the last one; None if it is not an index of so many records."""
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


def _check_data(path: str, record: memoryview, offset: int) -> None:
    """Raise DatasetError if a record's data does not match its checksum; `offset` is the record's in the file."""
    data = np.frombuffer(record, np.uint8)
    (data_crc,) = struct.unpack("<L", record[-4:])
    if masked_crc(data[HEAD_BYTES:-4]) != data_crc:
        raise damaged(path, "a record's data does not match its checksum (CRC32C)", offset)


def image_extent(path: str, example: memoryview, offset: int) -> tuple[int, int]:
    """Return start and bytes of the image in an Example; the whole record if it is not an Example."""
    try:
        return find_image(example)
    except ValueError:
        return 0, len(example)


IMAGE, SIZE = b"image", b"size"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types
_KEY_OF_FIELD_1, _KEY_OF_FIELD_2, _KEY_OF_FIELD_3 = b"\x0a", b"\x12", b"\x1a"
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


def around_image(image_bytes: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after an image of `image_bytes` bytes in an Example."""
    values = _field(_KEY_OF_FIELD_1, _varint(image_bytes))
    size = _field(_KEY_OF_FIELD_1, SIZE) + _field(_KEY_OF_FIELD_2, _field(_KEY_OF_FIELD_3, values))
    after = _field(_KEY_OF_FIELD_1, size)
    # From the inside out: the length of each message includes the image, which the caller inserts.
    before = _KEY_OF_FIELD_1 + _varint(image_bytes)  # BytesList.value
    for key in (_KEY_OF_FIELD_1, _KEY_OF_FIELD_2):  # Feature.bytes_list, the entry's value
        before = key + _varint(len(before) + image_bytes) + before
    before = _field(_KEY_OF_FIELD_1, IMAGE) + before
    before = _KEY_OF_FIELD_1 + _varint(len(before) + image_bytes) + before  # Features.feature
    return _KEY_OF_FIELD_1 + _varint(len(before) + image_bytes + len(after)) + before, after


def example_bytes(image_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the size of Examples with images of these sizes."""
    unique, places = np.unique(image_bytes, return_inverse=True)
    sizes = np.array([sum(map(len, around_image(size))) for size in unique.tolist()], np.int64) + unique
    return sizes[places]


def find_image(example: memoryview) -> tuple[int, int]:
    """Return start and bytes of the feature `image` in an Example; the whole Example if it has no such feature.

    Raises:
        ValueError: the bytes are not an Example.
    """
    start, stop = _only(example, 0, len(example))
    while start < stop:
        entry_start, entry_stop, start = _message(example, start, stop)
        key, value = _entry(example, entry_start, entry_stop)
        if bytes(example[slice(*key)]) == IMAGE:
            values = _only(example, *value)
            first = _only(example, *values)
            return first[0], first[1] - first[0]
    return 0, len(example)


def _field(key: bytes, value: bytes) -> bytes:
    return key + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: memoryview, at: int, stop: int) -> tuple[int, int]:
    """Return a number and the offset after it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= stop:
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a varint that does not end")


def _message(data: memoryview, at: int, stop: int) -> tuple[int, int, int]:
    """Return start and stop of the first length-delimited field from `at` on, and the offset after it."""
    while at < stop:
        key, at = _read_varint(data, at, stop)
        kind = key & 7
        if kind == _BYTES:
            size, at = _read_varint(data, at, stop)
            if at + size > stop:
                raise ValueError("a field longer than its message")
            return at, at + size, at + size
        if kind == _VARINT:
            _, at = _read_varint(data, at, stop)
        elif kind in _FIXED_BYTES:
            at += _FIXED_BYTES[kind]
        else:
            raise ValueError(f"a protobuf field of unknown wire type {kind}")
    raise ValueError("an empty message")


def _only(data: memoryview, start: int, stop: int) -> tuple[int, int]:
    """Return start and stop of a message's first field."""
    return _message(data, start, stop)[:2]


def _entry(data: memoryview, start: int, stop: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (start, stop) of the key and of the value of a map's entry."""
    key_start, key_stop, at = _message(data, start, stop)
    value_start, value_stop, _ = _message(data, at, stop)
    return (key_start, key_stop), (value_start, value_stop)

"""TFRecord: framed records, each a tf.train.Example with `image` and `size`, and an index for DALI.

A record is: length (8 bytes), masked CRC32C of those 8, the data, masked CRC32C of the data, all little-endian
(tensorflow/core/lib/io/record_writer.h). The index is DATA_FOLDER/index/{train,valid}/FILE.idx, with a line
`offset length` for each record, framing included. All records of a generated file have one length, so their offsets are
computed; those of other files come from the index, or from the length in each record's head.

Protobuf messages are coded by hand. Wire format: protobuf.dev/programming-guides/encoding. Messages:
tensorflow/core/example/{example,feature}.proto, where Example.features = 1; Features.feature = 1, a map whose entries
have key = 1 and value = 2; Feature.bytes_list = 1, .int64_list = 3; BytesList.value = 1; Int64List.value = 1, packed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Iterable
from typing import BinaryIO

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer
from datagen.formats import format_base as base
from datagen.formats._parquet_layout import varint
from datagen.layout import Layout, even_places
from datagen.spec import BLOCK_BYTES, DatasetSpec
from datagen.storage.storage_base import Writer

TENSORFLOW_BYTES = 256 << 10  # default `buffer_size` of tf.data.TFRecordDataset
ENDINGS = ("tfrecord", "tfrecords")
INDEX_LINES = 1 << 14  # lines of an index written at a time
HEAD_BYTES = 12  # bytes before a record's data: its length and the checksum of the length
FRAME_BYTES = 16  # bytes that the framing adds to a record's data
HEAD = struct.Struct("<QL")
MAX_VARINT_BYTES = 10  # 64 bits
CRC_MASK = 0xA282EAD8  # kMaskDelta in TensorFlow's crc32c.h; masking lets data contain checksums


def masked_crc(data: bytes | NDArray[np.uint8]) -> int:
    """Return the CRC32C of `data`, masked as TFRecord stores it (tensorflow/core/lib/hash/crc32c.h)."""
    return mask(google_crc32c.value(data))


def mask(crc: int) -> int:
    """Return a CRC32C as TFRecord stores it."""
    return ((crc >> 15 | crc << 17) + CRC_MASK) & 0xFFFFFFFF


class Index(base.SideFile):
    """The side file with the index for DALI."""

    def path(self, layout: Layout, file: int) -> str:
        return f"{os.path.dirname(layout.folder)}/index/{layout.split}/{os.path.basename(layout.name(file))}.idx"

    def file_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> base.Sizes:
        def index_bytes(size: int) -> int:
            """Return the bytes of the lines: the digits of offsets, the multiples of `size`, and the rest of each."""
            samples = spec.num_samples_per_file
            total, power = samples * (1 + len(str(size)) + 2), 10
            while power <= (samples - 1) * size:
                total += samples - -(-power // size)  # the offsets of at least `power` have one more digit
                power *= 10
            return total

        return base.map_distinct(Format().record_bytes(spec, shapes), index_bytes)

    def write(self, job: base.FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        size = _Frame(job.record_bytes).record_bytes
        numbers = range(job.spec.num_samples_per_file)
        for first in numbers[::INDEX_LINES]:
            lines = (f"{number * size} {size}\n" for number in numbers[first : first + INDEX_LINES])
            writer.write("".join(lines).encode())


class Format(base.RecordFormat):
    sides = (Index(),)
    transfer_bytes = TENSORFLOW_BYTES
    stream_calls = base.StreamCalls(
        lambda _: itertools.repeat(TENSORFLOW_BYTES), TENSORFLOW_BYTES, retries_short_reads=True
    )

    def record_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> base.Sizes:
        return base.map_distinct(base.sample_bytes(spec, shapes), lambda size: _Frame(size).record_bytes)

    def write(self, job: base.FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        frame = _Frame(job.record_bytes)
        if frame.record_bytes <= base.CHUNK_BYTES // 2:
            _write_small(job, frame, writer, buffer)
            return
        size = frame.image_bytes
        for record in range(job.spec.num_samples_per_file):
            frame.write(writer, job.payload(buffer, record * size, (record + 1) * size))

    def open_records(self, inputs: base.RecordInputs) -> TfrecordFile:
        return TfrecordFile(inputs)

    def locate(self, inputs: base.RecordInputs) -> base.Offsets | None:
        """Read the index, if there is one that fits the file, else the headers."""
        index = inputs.open_side(0)
        text = b"" if index is None else bytes(index.read(0, index.size_bytes))
        with contextlib.suppress(ValueError, OverflowError):  # of text that is no index
            lines = np.array(text.split(), np.int64).reshape(-1, 2)  # offset and length of each record
            offsets = np.array([0, *lines.sum(1)], np.int64)
            is_sequence = (lines[:, 0] == offsets[:-1]).all() and (np.diff(offsets[:-1]) > 0).all()
            if is_sequence and len(lines) >= inputs.samples and offsets[-1] == inputs.source.size_bytes:
                return offsets
        return super().locate(inputs)

    def offsets(self, file: BinaryIO) -> list[int]:
        offset, offsets, end = 0, [0], file.seek(0, os.SEEK_END)
        while offset < end:
            file.seek(offset)
            head = file.read(HEAD_BYTES)
            if offset + FRAME_BYTES > end:
                raise base.DamagedError("the file ends within a record", offset)
            length, crc = HEAD.unpack(head)
            if masked_crc(head[:8]) != crc:
                raise base.DamagedError("no TFRecord framing: a record's length does not match its checksum", offset)
            if offset + length + FRAME_BYTES > end:
                raise base.DamagedError(f"a record of {length} bytes ends beyond the end of the file", offset)
            offset += length + FRAME_BYTES
            offsets.append(offset)
        return offsets

    def load(self, path: str, index: int, samples: int) -> base.Sample:
        """Read a record as scripts without TensorFlow do: find it by its framing, then parse the Example.

        All records are taken to have one length if the checksum at that multiple proves it.
        """
        with open(path, "rb") as file:
            record_bytes, rest = divmod(file.seek(0, os.SEEK_END), samples)
            file.seek(index * record_bytes)
            head = file.read(HEAD_BYTES).ljust(HEAD_BYTES, b"\0")
            length, crc = HEAD.unpack(head)
            is_record = length == record_bytes - FRAME_BYTES and masked_crc(head[:8]) == crc
            if rest or index >= samples or not is_record:
                offsets = self.offsets(file)
                if index + 1 >= len(offsets):
                    raise base.no_such_record(index, len(offsets) - 1)
                file.seek(offsets[index])
                (length, _) = HEAD.unpack(file.read(HEAD_BYTES))
            data = memoryview(file.read(length))
        start, size = image_extent(data)
        payload = data[start : start + size]
        return base.Sample(payload, payload, index * size)


class Packer:
    """Writes samples of any sizes as framed tf.train.Examples, and the index for DALI."""

    ending = "tfrecord"

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._index_lines: list[str] = []

    def add(self, sample: base.PackedSample) -> None:
        frame = _Frame(len(sample.data))
        self._index_lines.append(f"{self._writer.position} {frame.record_bytes}\n")
        frame.write(self._writer, [sample.data])

    def finish(self) -> bytes:
        return "".join(self._index_lines).encode()


class _Frame:
    """The bytes before and after an image of a given length in a record."""

    def __init__(self, image_bytes: int) -> None:
        before, self.after = around_image(image_bytes)
        self.image_bytes = image_bytes
        data_bytes = len(before) + image_bytes + len(self.after)
        length = struct.pack("<Q", data_bytes)
        self.before = length + struct.pack("<L", masked_crc(length)) + before
        self.record_bytes = data_bytes + FRAME_BYTES

    def write(self, writer: Writer, image: Iterable[memoryview]) -> None:
        """Write a record with an image given in pieces."""
        writer.write(self.before)
        crc = google_crc32c.value(self.before[HEAD_BYTES:])
        for piece in image:
            crc = google_crc32c.extend(crc, np.frombuffer(piece, np.uint8))
            writer.write(piece)
        writer.write(self.after + struct.pack("<L", mask(google_crc32c.extend(crc, self.after))))


def _write_small(job: base.FileJob, frame: _Frame, writer: Writer, buffer: AlignedBuffer) -> None:
    """Write many records at a time: generate content in whole blocks, then copy it into the frames."""
    records_at_once = base.CHUNK_BYTES // frame.record_bytes
    memory = np.frombuffer(buffer.view(2 * base.CHUNK_BYTES + BLOCK_BYTES), np.uint8)
    content, frames = memory[: base.CHUNK_BYTES + BLOCK_BYTES], memory[base.CHUNK_BYTES + BLOCK_BYTES :]
    rows = frames[: records_at_once * frame.record_bytes].reshape(records_at_once, frame.record_bytes)
    image = slice(len(frame.before), len(frame.before) + frame.image_bytes)
    rows[:, : image.start] = np.frombuffer(frame.before, np.uint8)
    rows[:, image.stop : -4] = np.frombuffer(frame.after, np.uint8)
    samples = job.spec.num_samples_per_file
    for first in range(0, samples, records_at_once):
        records = rows[: samples - first]
        start, size = first * frame.image_bytes, len(records) * frame.image_bytes
        before = start % BLOCK_BYTES
        job.content.fill(content[: before + size], job.running_index, start - before)
        records[:, image] = content[before : before + size].reshape(len(records), frame.image_bytes)
        crcs = np.fromiter(map(google_crc32c.value, records[:, HEAD_BYTES:-4]), np.uint32, len(records))
        masked = (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(CRC_MASK)
        records[:, -4:] = masked.astype("<u4").view(np.uint8).reshape(-1, 4)
        writer.write(records.reshape(-1).data)


class TfrecordFile(base.RecordFile):
    """One file. Most records have the same bytes before the image: these are compared, and only others are parsed."""

    def __init__(self, inputs: base.RecordInputs) -> None:
        size_bytes, samples = inputs.source.size_bytes, inputs.samples
        super().__init__(inputs, size_bytes // samples)
        self._before = b""  # the bytes before the image in the last record parsed
        self._image_bytes = 0
        if inputs.offsets is None and (size_bytes % samples or self._record_bytes < FRAME_BYTES):
            raise base.DamagedError(f"its {size_bytes} bytes are not {samples} records of one length", size_bytes)

    def samples(self, index: int, count: int, data: memoryview, verify: bool) -> base.Extents:
        before, size = self._before, self._record_bytes
        head = len(before)
        if head and self._offsets is None and not verify:
            if count == 1:
                if data[:head] == before:
                    return [(head, self._image_bytes)]
            else:
                heads = np.frombuffer(data, np.uint8, count * size).reshape(count, size)[:, :head]
                if (heads == np.frombuffer(before, np.uint8)).all():
                    return even_places(head, size, self._image_bytes, count)
        return super().samples(index, count, data, verify)

    def extent(self, record: memoryview, offset: int, verify: bool) -> tuple[int, int]:
        """Parse a record, and keep the bytes before its image for comparison with later records."""
        length, crc = HEAD.unpack_from(record)
        if masked_crc(bytes(record[:8])) != crc:
            raise base.DamagedError("a record's length does not match its checksum", offset)
        if length + FRAME_BYTES != len(record):
            there = len(record) - FRAME_BYTES
            raise base.DamagedError(f"a record states {length} bytes of data where there are {there}", offset)
        crc = int.from_bytes(record[-4:], "little")
        if verify and masked_crc(np.frombuffer(record, np.uint8)[HEAD_BYTES:-4]) != crc:
            raise base.DamagedError("a record's data does not match its checksum (CRC32C)", offset)
        start, image_bytes = image_extent(record[HEAD_BYTES:-4])
        start += HEAD_BYTES
        self._before, self._image_bytes = bytes(record[:start]), image_bytes
        return start, image_bytes


IMAGE, SIZE = b"image", b"size"
_KEY_OF_FIELD_1, _KEY_OF_FIELD_2, _KEY_OF_FIELD_3 = b"\x0a", b"\x12", b"\x1a"


def around_image(image_bytes: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after an image of `image_bytes` bytes in an Example."""
    values = _field(_KEY_OF_FIELD_1, varint(image_bytes))
    size = _field(_KEY_OF_FIELD_1, SIZE) + _field(_KEY_OF_FIELD_2, _field(_KEY_OF_FIELD_3, values))
    after = _field(_KEY_OF_FIELD_1, size)
    # From the inside out: the length of each message includes the image, which the caller inserts
    before = _KEY_OF_FIELD_1 + varint(image_bytes)  # BytesList.value
    for key in (_KEY_OF_FIELD_1, _KEY_OF_FIELD_2):  # Feature.bytes_list, the entry's value
        before = key + varint(len(before) + image_bytes) + before
    before = _field(_KEY_OF_FIELD_1, IMAGE) + before
    before = _KEY_OF_FIELD_1 + varint(len(before) + image_bytes) + before  # Features.feature
    return _KEY_OF_FIELD_1 + varint(len(before) + image_bytes + len(after)) + before, after


def image_extent(example: memoryview) -> tuple[int, int]:
    """Return start and bytes of the image in an Example; the whole record if it has no such feature."""
    data = bytes(example)
    key = _field(_KEY_OF_FIELD_1, IMAGE) + _KEY_OF_FIELD_2
    at = data.find(key)
    if at >= 0:
        _, at = _read_varint(data, at + len(key))  # the length of the Feature; in it are a BytesList, and its value
        _, at = _read_varint(data, at + 1)
        size, at = _read_varint(data, at + 1)
        if at + size <= len(data):
            return at, size
    return 0, len(data)


def _field(key: bytes, value: bytes) -> bytes:
    return key + varint(len(value)) + value


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at offset `at`, or 0 beyond the end, and the offset after the number."""
    value = shift = 0
    for byte in data[at : at + MAX_VARINT_BYTES]:
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value, at

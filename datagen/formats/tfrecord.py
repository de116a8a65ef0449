"""TFRecord: framed records, each a tf.train.Example with the features `image` and `size`, and an index for DALI.

A record is: length of the data (8 bytes), masked CRC32C of those 8, the data, masked CRC32C of the data, all
little-endian (tensorflow/core/lib/io/record_writer.h). The index is DATA_FOLDER/index/{train,valid}/FILE.idx, with a
line `offset length` for each record, framing included. All records of a generated file have one length, so their
offsets are computed. Offsets in other files come from the index or, without one, from the header of each record.

Protobuf messages are encoded by hand. Wire format: protobuf.dev/programming-guides/encoding. Messages:
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
HEAD_BYTES = 12  # a record's header: the length of its data, and the checksum of that length
FRAME_BYTES = 16  # header, and the checksum after the data
HEAD = struct.Struct("<QL")
MAX_VARINT_BYTES = 10  # 64 bits
CRC_MASK = 0xA282EAD8  # kMaskDelta in TensorFlow's crc32c.h; masking lets data contain checksums
IMAGE, SIZE = b"image", b"size"  # names of the features
_KEY_OF_FIELD_1, _KEY_OF_FIELD_2, _KEY_OF_FIELD_3 = b"\x0a", b"\x12", b"\x1a"  # of type bytes or message


class Index(base.SideFile):
    """The index for DALI."""

    def path(self, layout: Layout, file: int) -> str:
        return f"{os.path.dirname(layout.folder)}/index/{layout.split}/{os.path.basename(layout.name(file))}.idx"

    def file_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> base.Sizes:
        def index_bytes(size: int) -> int:
            """Return the size of an index of records of `size` bytes, whose offsets are multiples of `size`."""
            samples = spec.num_samples_per_file
            total = samples * (1 + len(str(size)) + 2)  # offsets of one digit, `size`, a space and a line feed
            power = 10
            while power <= (samples - 1) * size:
                shorter = -(-power // size)  # number of offsets below `power`; each of the others has one more digit
                total += samples - shorter
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
        lambda _: itertools.repeat(TENSORFLOW_BYTES), min_stream_bytes=TENSORFLOW_BYTES, retries_short_reads=True
    )

    def record_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> base.Sizes:
        return base.map_distinct(base.sample_bytes(spec, shapes), lambda size: _Frame(size).record_bytes)

    def write(self, job: base.FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        frame = _Frame(job.record_bytes)
        if frame.record_bytes <= base.CHUNK_BYTES // 2:
            _write_small_records(job, frame, writer, buffer)
            return
        size = frame.image_bytes
        for record in range(job.spec.num_samples_per_file):
            frame.write(writer, job.payload(buffer, record * size, (record + 1) * size))

    def open_records(self, inputs: base.RecordInputs) -> TfrecordFile:
        return TfrecordFile(inputs)

    def locate(self, inputs: base.RecordInputs) -> base.Offsets | None:
        """Return the offsets in the index if it matches the file, else those found in the records' headers."""
        index = inputs.open_side(0)
        text = b"" if index is None else bytes(index.read(0, index.size_bytes))
        with contextlib.suppress(ValueError, OverflowError):  # the text is not an index
            lines = np.array(text.split(), np.int64).reshape(-1, 2)  # offset and length of each record
            offsets = np.array([0, *lines.sum(1)], np.int64)
            is_contiguous = (lines[:, 0] == offsets[:-1]).all() and (np.diff(offsets[:-1]) > 0).all()
            if is_contiguous and len(lines) >= inputs.samples and offsets[-1] == inputs.source.size_bytes:
                return offsets
        return super().locate(inputs)

    def offsets(self, file: BinaryIO) -> list[int]:
        end = file.seek(0, os.SEEK_END)
        offset = 0
        offsets = [offset]
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
        """Read a record as scripts without TensorFlow do. All records' headers are read only if lengths differ."""
        with open(path, "rb") as file:
            record_bytes, remainder = divmod(file.seek(0, os.SEEK_END), samples)
            file.seek(index * record_bytes)
            head = file.read(HEAD_BYTES).ljust(HEAD_BYTES, b"\0")
            length, crc = HEAD.unpack(head)
            is_header = length == record_bytes - FRAME_BYTES and masked_crc(head[:8]) == crc
            if remainder or index >= samples or not is_header:
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
    """Writes samples of any size as framed tf.train.Examples, and the index for DALI."""

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
    """The bytes of a record before and after its image of `image_bytes`, and the record's size."""

    def __init__(self, image_bytes: int) -> None:
        before, self.after = around_image(image_bytes)
        self.image_bytes = image_bytes
        data_bytes = len(before) + image_bytes + len(self.after)
        length = struct.pack("<Q", data_bytes)
        self.before = length + struct.pack("<L", masked_crc(length)) + before
        self.record_bytes = data_bytes + FRAME_BYTES

    def write(self, writer: Writer, image: Iterable[memoryview]) -> None:
        """Write a record; `image` yields the image in chunks."""
        writer.write(self.before)
        crc = google_crc32c.value(self.before[HEAD_BYTES:])
        for chunk in image:
            crc = google_crc32c.extend(crc, np.frombuffer(chunk, np.uint8))
            writer.write(chunk)
        writer.write(self.after + struct.pack("<L", mask(google_crc32c.extend(crc, self.after))))


def _write_small_records(job: base.FileJob, frame: _Frame, writer: Writer, buffer: AlignedBuffer) -> None:
    """Write many records at a time: generate whole blocks of content, and copy the images into an array of records."""
    records_at_once = base.CHUNK_BYTES // frame.record_bytes
    memory = np.frombuffer(buffer.view(2 * base.CHUNK_BYTES + BLOCK_BYTES), np.uint8)
    content, memory_of_rows = memory[: base.CHUNK_BYTES + BLOCK_BYTES], memory[base.CHUNK_BYTES + BLOCK_BYTES :]
    rows = memory_of_rows[: records_at_once * frame.record_bytes].reshape(records_at_once, frame.record_bytes)
    image = slice(len(frame.before), len(frame.before) + frame.image_bytes)
    rows[:, : image.start] = np.frombuffer(frame.before, np.uint8)
    rows[:, image.stop : -4] = np.frombuffer(frame.after, np.uint8)
    samples = job.spec.num_samples_per_file
    for first in range(0, samples, records_at_once):
        records = rows[: samples - first]
        start, size = first * frame.image_bytes, len(records) * frame.image_bytes  # of the images in the payload
        skipped = start % BLOCK_BYTES  # content is generated from the start of a block
        job.content.fill(content[: skipped + size], job.running_index, start - skipped)
        records[:, image] = content[skipped : skipped + size].reshape(len(records), frame.image_bytes)
        crcs = np.fromiter(map(google_crc32c.value, records[:, HEAD_BYTES:-4]), np.uint32, len(records))
        masked = (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(CRC_MASK)  # as `mask`
        records[:, -4:] = masked.astype("<u4").view(np.uint8).reshape(-1, 4)
        writer.write(records.reshape(-1).data)


class TfrecordFile(base.RecordFile):
    """An open file. Records of one length are parsed only to verify them, or if other bytes precede the image."""

    def __init__(self, inputs: base.RecordInputs) -> None:
        size_bytes, samples = inputs.source.size_bytes, inputs.samples
        super().__init__(inputs, size_bytes // samples)
        self._before = b""  # the bytes before the image in the last record parsed
        self._image_bytes = 0  # size of that image
        if inputs.offsets is None and (size_bytes % samples or self._record_bytes < FRAME_BYTES):
            raise base.DamagedError(f"its {size_bytes} bytes are not {samples} records of one length", size_bytes)

    def samples(self, index: int, count: int, data: memoryview, verify: bool) -> base.Extents:
        before, record_bytes = self._before, self._record_bytes
        image_start = len(before)
        if image_start and self._offsets is None and not verify:
            if count == 1:
                if data[:image_start] == before:
                    return [(image_start, self._image_bytes)]
            else:
                records = np.frombuffer(data, np.uint8, count * record_bytes).reshape(count, record_bytes)
                if (records[:, :image_start] == np.frombuffer(before, np.uint8)).all():
                    return even_places(image_start, record_bytes, self._image_bytes, count)
        return super().samples(index, count, data, verify)

    def extent(self, record: memoryview, offset: int, verify: bool) -> tuple[int, int]:
        """Parse a record, and keep the bytes before its image to compare later records with."""
        length, length_crc = HEAD.unpack_from(record)
        if masked_crc(bytes(record[:8])) != length_crc:
            raise base.DamagedError("a record's length does not match its checksum", offset)
        if length + FRAME_BYTES != len(record):
            stored_bytes = len(record) - FRAME_BYTES
            raise base.DamagedError(f"a record states {length} bytes of data where there are {stored_bytes}", offset)
        data_crc = int.from_bytes(record[-4:], "little")
        if verify and masked_crc(np.frombuffer(record, np.uint8)[HEAD_BYTES:-4]) != data_crc:
            raise base.DamagedError("a record's data does not match its checksum (CRC32C)", offset)
        start, image_bytes = image_extent(record[HEAD_BYTES:-4])
        start += HEAD_BYTES
        self._before, self._image_bytes = bytes(record[:start]), image_bytes
        return start, image_bytes


def around_image(image_bytes: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after an image of `image_bytes` bytes in an Example."""
    size_value = _field(_KEY_OF_FIELD_1, varint(image_bytes))
    size_entry = _field(_KEY_OF_FIELD_1, SIZE) + _field(_KEY_OF_FIELD_2, _field(_KEY_OF_FIELD_3, size_value))
    after = _field(_KEY_OF_FIELD_1, size_entry)
    # From the innermost message outwards; each length includes the image, which comes between `before` and `after`
    before = _KEY_OF_FIELD_1 + varint(image_bytes)  # BytesList.value
    for key in (_KEY_OF_FIELD_1, _KEY_OF_FIELD_2):  # Feature.bytes_list, the entry's value
        before = key + varint(len(before) + image_bytes) + before
    before = _field(_KEY_OF_FIELD_1, IMAGE) + before
    before = _KEY_OF_FIELD_1 + varint(len(before) + image_bytes) + before  # Features.feature
    return _KEY_OF_FIELD_1 + varint(len(before) + image_bytes + len(after)) + before, after


def image_extent(example: memoryview) -> tuple[int, int]:
    """Return (start, bytes) of the image in an Example, or of the whole Example if it has no feature `image`."""
    data = bytes(example)
    entry_start = _field(_KEY_OF_FIELD_1, IMAGE) + _KEY_OF_FIELD_2
    position = data.find(entry_start)
    if position >= 0:
        _, position = _read_varint(data, position + len(entry_start))  # length of the Feature
        _, position = _read_varint(data, position + 1)  # length of its BytesList
        size, position = _read_varint(data, position + 1)  # length of the list's value
        if position + size <= len(data):
            return position, size
    return 0, len(data)


def _field(key: bytes, value: bytes) -> bytes:
    """Encode a field of type bytes or message."""
    return key + varint(len(value)) + value


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at `position` (0 beyond the end of the data), and the position after it."""
    value = shift = 0
    for byte in data[position : position + MAX_VARINT_BYTES]:
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value, position


def masked_crc(data: bytes | NDArray[np.uint8]) -> int:
    """Return the CRC32C of `data`, masked as TFRecord stores it (tensorflow/core/lib/hash/crc32c.h)."""
    return mask(google_crc32c.value(data))


def mask(crc: int) -> int:
    """Return a CRC32C as TFRecord stores it."""
    return ((crc >> 15 | crc << 17) + CRC_MASK) & 0xFFFFFFFF

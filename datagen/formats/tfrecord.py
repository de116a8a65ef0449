"""TFRecord: framed records, each a tf.train.Example with `image` and `size`, and an index for DALI.

A record is: length (8 bytes), masked CRC32C of those 8, the data, masked CRC32C of the data, all little-endian
(tensorflow/core/lib/io/record_writer.h). The index is DATA_FOLDER/index/{train,valid}/FILE.idx, with a line
`offset length` for each record, framing included. All records of a file have one length, so the index is computed.
"""

from __future__ import annotations

import io
import itertools
import os
import struct
from collections.abc import Iterator
from typing import BinaryIO

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer
from datagen.content import Content
from datagen.formats._tfrecord_file import (
    CRC_MASK,
    FRAME_BYTES,
    HEAD,
    HEAD_BYTES,
    TfrecordFile,
    around_image,
    example_bytes,
    image_extent,
    mask,
    masked_crc,
    seek_record,
)
from datagen.formats.format_base import (
    FileJob,
    LibraryReads,
    OpenSide,
    PackedSample,
    RecordSamples,
    Sample,
    Source,
    StreamCalls,
    no_side,
    sample_bytes,
)
from datagen.layout import Layout
from datagen.spec import BLOCK_BYTES, DatasetSpec
from datagen.storage.storage_base import LibraryFile, Writer

TENSORFLOW_BYTES = 256 << 10
"""Default `buffer_size` of tf.data.TFRecordDataset."""
LIBRARY = LibraryReads(call="tf.data.TFRecordDataset", in_parts=True, transfer_bytes=TENSORFLOW_BYTES)
_LARGE_BYTES = 16 << 20  # a larger length may be damaged: it is limited to the size of the file before reading
CHUNK_BYTES = 1 << 20
"""Bytes generated, checksummed and written at a time: they stay in a core's L2 cache."""
INDEX_LINES = 1 << 14
"""Lines of an index written at a time."""


class Index:
    """The side file with the index for DALI."""

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
    stream_calls = StreamCalls(lambda _: itertools.repeat(TENSORFLOW_BYTES), TENSORFLOW_BYTES, retries_short_reads=True)

    def unfit(self, spec: DatasetSpec) -> list[str]:
        if spec.compression != "none":
            return [f"dataset.compression is {spec.compression}: format tfrecord supports only none"]
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
        """Read a record as scripts without TensorFlow do: find it by its framing, then parse the Example."""
        with open(path, "rb") as file:
            return _load_sample(file, index, samples)

    def load_stream(self, file: LibraryFile, index: int, samples: int) -> Sample:
        buffered = io.BufferedReader(file)
        try:
            return _load_sample(buffered, index, samples)
        finally:
            buffered.detach()  # else it would close the file, which may be read again


class Packer:
    """Writes samples of any sizes as framed tf.train.Examples, and the index for DALI."""

    wants_arrays = False
    ending = "tfrecord"

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._at = 0
        self._lines: list[str] = []

    def add(self, sample: PackedSample) -> None:
        frame = _Frame(len(sample.data))
        crc = google_crc32c.value(frame.example_head)
        crc = google_crc32c.extend(crc, np.frombuffer(sample.data, np.uint8))
        crc = google_crc32c.extend(crc, frame.after)
        self._writer.write(frame.before)
        self._writer.write(sample.data)
        self._writer.write(frame.after + struct.pack("<L", mask(crc)))
        self._lines.append(f"{self._at} {frame.record_bytes}\n")
        self._at += frame.record_bytes

    def finish(self) -> bytes:
        return "".join(self._lines).encode()


def _load_sample(file: BinaryIO, index: int, samples: int) -> Sample:
    at = seek_record(file, index, samples) + HEAD_BYTES
    length = HEAD.unpack(file.read(HEAD_BYTES))[0]
    if length > _LARGE_BYTES:  # because `read` allocates memory for all of it
        length = min(length, file.seek(0, io.SEEK_END) - at)
        file.seek(at)
    data = memoryview(file.read(length))
    start, size = image_extent(file.name, data, at)
    payload = data[start : start + size]
    return Sample(payload, payload, index * size)


class _Frame:
    """The bytes before and after an image of a given length in a record."""

    def __init__(self, image_bytes: int) -> None:
        before, self.after = around_image(image_bytes)
        self.image_bytes = image_bytes
        self.data_bytes = len(before) + image_bytes + len(self.after)
        length = struct.pack("<Q", self.data_bytes)
        self.example_head = before
        self.before = length + struct.pack("<L", masked_crc(length)) + before
        self.record_bytes = self.data_bytes + FRAME_BYTES


def _record_bytes(spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
    return example_bytes(sample_bytes(spec, shapes)) + FRAME_BYTES


def _write_large(job: FileJob, frame: _Frame, writer: Writer, buffer: AlignedBuffer) -> None:
    """Write records larger than a chunk, a chunk of content at a time."""
    for record in range(job.spec.num_samples_per_file):
        writer.write(frame.before)
        crc = google_crc32c.value(frame.example_head)
        for piece in _payload(job, record * frame.image_bytes, (record + 1) * frame.image_bytes, buffer):
            crc = google_crc32c.extend(crc, piece)
            writer.write(piece.data)
        crc = google_crc32c.extend(crc, frame.after)
        writer.write(frame.after + struct.pack("<L", mask(crc)))


def _payload(job: FileJob, start: int, stop: int, buffer: AlignedBuffer) -> Iterator[NDArray[np.uint8]]:
    """Generate bytes `start` to `stop` of the file's payload; each piece is valid until the next one."""
    chunk = buffer.view(CHUNK_BYTES)
    for block in range(start - start % BLOCK_BYTES, stop, CHUNK_BYTES):
        end = min(block + CHUNK_BYTES, stop)
        job.content.fill(chunk[: end - block], job.running_index, block)
        yield np.frombuffer(chunk, np.uint8)[max(start - block, 0) : end - block]


def _write_small(job: FileJob, frame: _Frame, writer: Writer, buffer: AlignedBuffer) -> None:
    """Write many records at a time: generate content in whole blocks, then copy it into the frames."""
    step = CHUNK_BYTES // frame.record_bytes
    memory = np.frombuffer(buffer.view(2 * CHUNK_BYTES + BLOCK_BYTES), np.uint8)
    content, framed = memory[: CHUNK_BYTES + BLOCK_BYTES], memory[CHUNK_BYTES + BLOCK_BYTES :]
    records = framed[: step * frame.record_bytes].reshape(step, frame.record_bytes)
    image = slice(len(frame.before), len(frame.before) + frame.image_bytes)
    records[:, : image.start] = np.frombuffer(frame.before, np.uint8)
    records[:, image.stop : -4] = np.frombuffer(frame.after, np.uint8)
    samples = job.spec.num_samples_per_file
    for first in range(0, samples, step):
        part = records[: min(step, samples - first)]
        part[:, image] = _images(job.content, job.running_index, first, part.shape[0], frame.image_bytes, content)
        part[:, -4:] = _checksums(part[:, HEAD_BYTES:-4])
        writer.write(part.reshape(-1).data)


def _images(
    content: Content, file: int, first: int, count: int, image_bytes: int, out: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Generate the payload of `count` consecutive records as an array (count, image_bytes)."""
    start, stop = first * image_bytes, (first + count) * image_bytes
    block = start - start % BLOCK_BYTES
    content.fill(out[: stop - block], file, block)
    return out[start - block : stop - block].reshape(count, image_bytes)


def _checksums(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the masked CRC32C of each row, as four bytes."""
    value = google_crc32c.value
    crcs = np.fromiter((value(row) for row in data), np.uint32, len(data))
    masked = (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(CRC_MASK)
    return masked.astype("<u4").view(np.uint8).reshape(-1, 4)


def _digits_of_multiples(size: int, count: int) -> int:
    """Return the total number of digits of 0, size, 2 size, ... (count - 1) size."""
    digits, power = count, 10
    while power <= (count - 1) * size:
        digits += count - -(-power // size)  # the multiples of at least `power` have one more digit
        power *= 10
    return digits

"""Records one behind the other without framing, as Megatron-like data sets have them, and two index files of uint64.

FILE holds the records; FILE.off.idx and FILE.sz.idx hold for each the offset and the bytes, little-endian. There may be
hundreds of millions of records a file, so nothing here keeps anything for each of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer
from datagen.formats._records import no_such_record, sample_bytes
from datagen.formats.format_base import FileJob, OpenSide, Source, damaged
from datagen.layout import Layout
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import Writer

CHUNK_BYTES = 1 << 20
"""Bytes made and written, or looked through, at a time."""
ENTRY_BYTES = 8
OFFSETS, SIZES = 0, 1
"""The side files by their numbers."""


class Side:
    """One of the two index files."""

    def __init__(self, suffix: str, number: int) -> None:
        self._suffix = suffix
        self._number = number

    def path(self, layout: Layout, file: int) -> str:
        return layout.path(file) + self._suffix

    def folder(self, layout: Layout) -> str | None:
        return None

    def file_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(shapes), ENTRY_BYTES * spec.num_samples_per_file, np.int64)

    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        size = job.record_bytes
        samples = job.spec.num_samples_per_file
        room = np.frombuffer(buffer.view(CHUNK_BYTES), "<u8")
        if self._number == SIZES:
            room[:] = size
        for first in range(0, samples, room.size):
            entries = room[: min(room.size, samples - first)]
            if self._number == OFFSETS:
                entries[:] = np.arange(first, first + entries.size, dtype=np.uint64) * np.uint64(size)
            writer.write(entries.view(np.uint8).data)


SIDES = (Side(".off.idx", OFFSETS), Side(".sz.idx", SIZES))


def file_bytes(spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the size of data files with records of these shapes."""
    return sample_bytes(spec, shapes) * spec.num_samples_per_file


def unfit(spec: DatasetSpec) -> list[str]:
    """Return what these formats can't do."""
    if spec.compression != "none":
        return [f"dataset.compression is {spec.compression}: format {spec.format} knows none"]
    return []


def write(job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
    """Write a data file: nothing but content."""
    total = job.payload_bytes
    chunk = buffer.view(CHUNK_BYTES)
    for offset in range(0, total, CHUNK_BYTES):
        piece = chunk[: min(CHUNK_BYTES, total - offset)]
        job.content.fill(piece, job.running_index, offset)
        writer.write(piece)


class IndexedFile:
    """One data file: records of one length are found by arithmetic, others by their entries in the index."""

    def __init__(self, source: Source, samples: int, side: OpenSide) -> None:
        self._source = source
        self._samples = samples
        self._record_bytes, rest = divmod(source.size_bytes, samples)
        offsets, sizes = side(OFFSETS), side(SIZES)
        self._index: tuple[Source, Source] | None = None
        if offsets is not None and sizes is not None:
            self._check_length(offsets)
            self._check_length(sizes)
            if rest or not self._is_even(offsets, sizes):
                self._index = offsets, sizes
        elif rest or not self._record_bytes:
            found = f"its {source.size_bytes} bytes do not make {samples} records of one length, and it has no index"
            raise damaged(source.path, found + " (FILE.off.idx, FILE.sz.idx);", 0)

    @property
    def scattered(self) -> bool:
        return self._index is not None

    def span(self, index: int, count: int) -> tuple[int, int]:
        if not 0 <= index <= index + count <= self._samples:
            raise no_such_record(self._source.path, index, self._samples)
        if self._index is None:
            return index * self._record_bytes, count * self._record_bytes
        at = index * ENTRY_BYTES
        start, size = (int.from_bytes(side.read(at, ENTRY_BYTES), "little") for side in self._index)
        if start + size > self._source.size_bytes:
            found = f"by its index record {index} ends at {start + size}, behind the file,"
            raise damaged(self._source.path, found, start)
        return start, size

    def samples(self, index: int, count: int, data: memoryview, verify: bool) -> list[tuple[int, int]]:
        if self._index is None:
            size = self._record_bytes
            return [(start, size) for start in range(0, count * size, size)]
        return [(0, len(data))]

    def largest_bytes(self) -> int:
        if self._index is None:
            return self._record_bytes
        sizes = self._index[SIZES]
        stop = self._samples * ENTRY_BYTES
        read = (sizes.read(at, min(CHUNK_BYTES, stop - at)) for at in range(0, stop, CHUNK_BYTES))
        return max(int(np.frombuffer(piece, "<u8").max()) for piece in read)

    def _check_length(self, side: Source) -> None:
        wanted = self._samples * ENTRY_BYTES
        if side.size_bytes < wanted:
            found = f"the index ends; {self._samples} records want {wanted} bytes,"
            raise damaged(side.path, found, side.size_bytes)

    def _is_even(self, offsets: Source, sizes: Source) -> bool:
        """Say whether the first, middle and last entries are those of records of one length that fill the file."""
        for number in {0, self._samples // 2, self._samples - 1}:
            at = number * ENTRY_BYTES
            offset, size = (int.from_bytes(side.read(at, ENTRY_BYTES), "little") for side in (offsets, sizes))
            if (offset, size) != (number * self._record_bytes, self._record_bytes):
                return False
        return True


def entry(path: str, index: int, samples: int) -> tuple[int, int]:
    """Return offset and bytes of one record, from the whole index in memory, as scripts do it.

    Raises:
        DatasetError: the index is missing, or shorter than stated.
    """
    found = []
    for suffix in (".off.idx", ".sz.idx"):
        entries = np.fromfile(path + suffix, "<u8", samples)
        if entries.size != samples:
            raise damaged(path + suffix, f"an index of {entries.size} records, not {samples},", 0)
        found.append(int(entries[index]))
    return found[0], found[1]

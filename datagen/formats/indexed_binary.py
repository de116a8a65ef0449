"""Records without framing, one after the other, read by calls instead of memory maps (DLIO's `indexed_binary`).

FILE holds the records. FILE.off.idx and FILE.sz.idx hold the offset and the size of each as little-endian uint64, as in
Megatron-like datasets. A file may have hundreds of millions of records, so nothing is kept in memory per record.
"""

from __future__ import annotations

import numpy as np

from datagen.buffers import AlignedBuffer
from datagen.formats import format_base as base
from datagen.layout import Layout, even_places
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import Writer

ENTRY_BYTES = 8  # size of an offset or a size in an index file
OFFSETS, SIZES = 0, 1  # positions of the two index files in `sides`
SUFFIXES = (".off.idx", ".sz.idx")


class Side(base.SideFile):
    """One of the two index files; `kind` says which: OFFSETS or SIZES."""

    def __init__(self, kind: int) -> None:
        self._kind = kind

    def path(self, layout: Layout, file: int) -> str:
        return layout.path(file) + SUFFIXES[self._kind]

    def file_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> base.Sizes:
        return np.full(len(shapes), ENTRY_BYTES * spec.num_samples_per_file, np.int64)

    def write(self, job: base.FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        samples, step = job.spec.num_samples_per_file, base.CHUNK_BYTES // ENTRY_BYTES
        for first in range(0, samples, step):
            entries = np.arange(first, min(first + step, samples), dtype="<u8") * np.uint64(job.record_bytes)
            if self._kind == SIZES:
                entries[:] = job.record_bytes
            writer.write(entries.view(np.uint8).data)


class Format(base.RecordFormat):
    sides = (Side(OFFSETS), Side(SIZES))
    looks_up = True

    def open_records(self, inputs: base.RecordInputs) -> IndexedFile:
        """Open a file; with reader.engine=matched, read like Megatron-LM: a mapped index, one read call per record."""
        return IndexedFile(inputs)

    def load(self, path: str, index: int, samples: int) -> base.Sample:
        """Read both index files whole, then the record."""
        entries = []
        for suffix in SUFFIXES:
            with open(path + suffix, "rb") as side:
                table = np.frombuffer(side.read(), np.uint8)
            if len(table) < samples * ENTRY_BYTES:
                raise base.DamagedError(f"{suffix} indexes {len(table) // ENTRY_BYTES} records, not {samples}", None)
            entries.append(int(table[: samples * ENTRY_BYTES].view("<u8")[index]))
        offset, size = entries
        data = self.load_record(path, offset, size)
        if len(data) != size:
            raise base.DamagedError(f"the file ends within record {index}", offset + len(data))
        return base.Sample(data, data, offset)

    def load_record(self, path: str, offset: int, size: int) -> memoryview:
        """Read a record as training scripts do; fewer than `size` bytes are returned if the file ends within it."""
        return np.fromfile(path, np.uint8, size, offset=offset).data


class IndexedFile(base.RecordFile):
    """An open file. It locates records by arithmetic, or by its index (if they differ in length, or if `matched`)."""

    def __init__(self, inputs: base.RecordInputs) -> None:
        source, samples = inputs.source, inputs.samples
        record_bytes, remainder = divmod(source.size_bytes, samples)
        super().__init__(inputs, record_bytes)
        offsets, sizes = inputs.open_side(OFFSETS), inputs.open_side(SIZES)
        self._index: tuple[base.Source, base.Source] | None = None  # offsets and sizes; None: located by arithmetic
        if offsets is not None and sizes is not None:
            index_bytes = samples * ENTRY_BYTES
            for side in (offsets, sizes):
                if side.size_bytes < index_bytes:
                    problem = f"the index is truncated: {samples} records need {index_bytes} bytes"
                    raise base.damaged(side.path, problem, side.size_bytes)
            # An index can take gigabytes, so three records are compared. If others differ, samples begin elsewhere.
            can_compute = not (inputs.matched or remainder) and all(
                (_entry(offsets, number * ENTRY_BYTES), _entry(sizes, number * ENTRY_BYTES))
                == (number * record_bytes, record_bytes)
                for number in {0, samples // 2, samples - 1}
            )
            if not can_compute:
                self._index = (offsets, sizes)
                self.scattered = True
        elif remainder or not self._record_bytes:
            problem = f"its {source.size_bytes} bytes are not {samples} records of one length"
            raise base.DamagedError(f"{problem}, and it has no index (FILE.off.idx, FILE.sz.idx)", None)

    def span(self, index: int, count: int) -> tuple[int, int]:
        if self._index is None or not 0 <= index <= index + count <= self._samples:
            return super().span(index, count)  # by arithmetic, or the error for a missing record
        position = index * ENTRY_BYTES  # `count` is 1: `scattered` files are read record by record
        offsets, sizes = self._index
        start, size = _entry(offsets, position), _entry(sizes, position)
        if start + size > self.source.size_bytes:
            problem = f"its index puts the end of record {index} at {start + size}, beyond the end of the file"
            raise base.DamagedError(problem, start)
        return start, size

    def samples(self, index: int, count: int, data: memoryview, verify: bool) -> base.Extents:
        if self._index is not None or count == 1:
            return [(0, len(data))]
        return even_places(0, self._record_bytes, self._record_bytes, count)

    def largest_bytes(self) -> int:
        if self._index is None:
            return super().largest_bytes()
        sizes = self._index[SIZES]
        stop, step = self._samples * ENTRY_BYTES, base.CHUNK_BYTES
        chunks = (sizes.read(start, min(step, stop - start)) for start in range(0, stop, step))
        return max(int(np.frombuffer(chunk, "<u8").max()) for chunk in chunks)


def _entry(side: base.Source, position: int) -> int:
    """Return the entry at byte `position` of an index file, from memory if the file is mapped."""
    mapped = side.reader.mapped
    data = side.read(position, ENTRY_BYTES) if mapped is None else mapped[position : position + ENTRY_BYTES]
    return int.from_bytes(data, "little")

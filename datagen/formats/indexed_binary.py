"""Records one behind the other, found by two index files, read by ordinary reads (DLIO's `indexed_binary`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer
from datagen.formats import _indexed
from datagen.formats._records import RecordSamples, no_side, sample_bytes
from datagen.formats.format_base import FileJob, OpenSide, Sample, Source, damaged
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import Writer


class Format:
    """Reads and writes FILE, FILE.off.idx and FILE.sz.idx."""

    sides = _indexed.SIDES
    mapped = False

    def unfit(self, spec: DatasetSpec) -> list[str]:
        return _indexed.unfit(spec)

    def record_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
        return sample_bytes(spec, shapes)

    def file_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
        return _indexed.file_bytes(spec, shapes)

    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        _indexed.write(job, writer, buffer)

    def open(self, source: Source, samples: int) -> RecordSamples:
        return RecordSamples(source, self.open_records(source, samples, no_side))

    def open_records(self, source: Source, samples: int, side: OpenSide) -> _indexed.IndexedFile:
        return _indexed.IndexedFile(source, samples, side)

    def load(self, path: str, index: int, samples: int) -> Sample:
        """Read a record by np.fromfile, after the whole index."""
        offset, size = _indexed.entry(path, index, samples)
        record = np.fromfile(path, np.uint8, size, offset=offset)
        if record.size != size:
            raise damaged(path, f"the file ends within record {index}", offset + record.size)
        return Sample(record.data, record.data, offset)

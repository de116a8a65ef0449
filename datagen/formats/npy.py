"""NumPy's .npy: one array (d1, d2, ..., samples) of records, as np.save writes it (DLIO's datasets)."""

from __future__ import annotations

import numpy as np

from datagen.buffers import AlignedBuffer
from datagen.formats import _array
from datagen.formats import format_base as base
from datagen.formats._buffered import BufferedFile, read_by_stdio
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import Writer

NAME = "the array"


class Format(base.FormatBase):
    """Reads and writes .npy."""

    def file_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> base.Sizes:
        return _array.array_bytes(np.dtype(spec.record_element_type).str, shapes, spec.num_samples_per_file)

    def write(self, job: base.FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        writer.write(_array.header(job))
        for piece in job.payload(buffer):
            writer.write(piece)

    def parse(self, data: memoryview, samples: int, scratch: base.Scratch) -> _array.Samples:
        """Parse the array; a sample is copied only if samples are interleaved."""
        return _array.Samples(_array.parse(data, NAME), samples, NAME, scratch)

    def parse_matched(self, file: BufferedFile, samples: int, scratch: base.Scratch) -> _array.Samples:
        """Read as np.load does: the header by Python's buffered file, the items by np.fromfile."""
        file.read(_array.header_bytes(file.read(_array.PREFIX_BYTES)))
        opened = self.parse(file.image, samples, scratch)
        read_by_stdio(file, file.size_bytes - opened.payload_bytes, opened.payload_bytes)
        return opened

    def load(self, path: str, index: int, samples: int) -> base.Sample:
        with open(path, "rb") as file:  # np.load would leave one that is damaged open
            return _array.sample_of(np.load(file), index, samples)

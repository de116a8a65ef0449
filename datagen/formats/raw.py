"""Files of any kind: each file is one sample, whose bytes are read as they are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datagen.buffers import AlignedBuffer
from datagen.formats._array import CHUNK_BYTES
from datagen.formats.format_base import FileJob, LibraryReads, Sample, Source, sample_bytes
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import LibraryFile, Writer

LIBRARY = LibraryReads(call="open().read")


class Format:
    """Reads and writes bytes."""

    def unfit(self, spec: DatasetSpec) -> list[str]:
        problems = []
        if spec.compression != "none":
            problems.append(f"dataset.compression is {spec.compression}: format raw supports only none")
        if spec.num_samples_per_file != 1:
            problems.append(
                f"dataset.num_samples_per_file is {spec.num_samples_per_file}: a raw file is one sample, set it to 1"
            )
        return problems

    def file_bytes(self, spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
        return sample_bytes(spec, shapes)

    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        chunk = buffer.view(CHUNK_BYTES)
        for offset in range(0, job.payload_bytes, len(chunk)):
            piece = chunk[: min(len(chunk), job.payload_bytes - offset)]
            job.content.fill(piece, job.running_index, offset)
            writer.write(piece)

    def open(self, source: Source, samples: int) -> _Whole:
        return _Whole(self.parse_whole(source.path, source.read(0, source.size_bytes)))

    def parse_whole(self, path: str, data: memoryview) -> Sample:
        return Sample(data, data, 0)

    def load(self, path: str, index: int, samples: int) -> Sample:
        with open(path, "rb") as file:
            return self.parse_whole(path, memoryview(file.read()))

    def load_stream(self, file: LibraryFile, index: int, samples: int) -> Sample:
        return self.parse_whole(file.name, memoryview(file.readall()))


class _Whole:
    """An open file of one sample."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def sample(self, index: int) -> Sample:
        return self._sample

"""Files of any kind: each file is one sample, whose bytes are read as they are."""

from __future__ import annotations

from datagen.buffers import AlignedBuffer
from datagen.formats.format_base import (
    AnyFile,
    FileJob,
    FormatBase,
    Indexes,
    LibraryReads,
    Sample,
    Sizes,
    Source,
    sample_bytes,
)
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import Writer

LIBRARY = LibraryReads(call="open().read")


class Format(FormatBase):
    """Reads and writes bytes."""

    def unfit(self, spec: DatasetSpec) -> list[str]:
        problems = super().unfit(spec)
        if spec.num_samples_per_file != 1:
            problems.append(
                f"dataset.num_samples_per_file is {spec.num_samples_per_file}: a raw file is one sample, set it to 1"
            )
        return problems

    def file_bytes(self, spec: DatasetSpec, shapes: Sizes) -> Sizes:
        return sample_bytes(spec, shapes)

    def write(self, job: FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        for piece in job.payload(buffer):
            writer.write(piece)

    def open(self, source: Source, samples: int) -> _Whole:
        return _Whole(self.parse_whole(source.path, source.read(0, source.size_bytes)))

    def reads_whole(self, *, called: bool) -> bool:
        return True

    def parse_whole(self, path: str, data: memoryview) -> Sample:
        return Sample(data, data, 0)

    def load_open(self, file: AnyFile, index: int, samples: int, indexes: Indexes) -> Sample:
        return self.parse_whole(file.name, memoryview(file.read() or b""))


class _Whole:
    """An open file of one sample."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def sample(self, index: int) -> Sample:
        return self._sample

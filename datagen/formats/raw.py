"""Files of any kind: each file is one sample, whose bytes are read as they are."""

from __future__ import annotations

from datagen.buffers import AlignedBuffer
from datagen.formats import format_base as base
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import Writer


class Format(base.FormatBase):
    one_sample = True

    def file_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> base.Sizes:
        return base.sample_bytes(spec, shapes)

    def write(self, job: base.FileJob, writer: Writer, buffer: AlignedBuffer) -> None:
        for piece in job.payload(buffer):
            writer.write(piece)

    def parse(self, data: memoryview, samples: int, scratch: base.Scratch) -> RawFile:
        return RawFile(data)


class RawFile(base.OpenFile):
    __slots__ = ("_data",)

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def sample(self, index: int) -> base.Sample:
        return base.Sample(self._data, self._data, 0)

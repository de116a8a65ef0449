"""Files of any kind: each file is one sample, whose bytes are read as they are."""

from __future__ import annotations

from datagen.formats import format_base as base
from datagen.spec import DatasetSpec


class Format(base.FormatBase):
    one_sample = True

    def file_bytes(self, spec: DatasetSpec, shapes: base.Sizes) -> base.Sizes:
        return base.sample_bytes(spec, shapes)

    def parse(self, data: memoryview, samples: int, scratch: base.Scratch) -> base.OneSample:
        return base.OneSample(base.Sample(data, data, 0))

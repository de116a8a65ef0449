"""What the record formats share: a file of records seen as samples, and records of one length found by arithmetic."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from datagen.errors import DatasetError
from datagen.formats.format_base import MovedError, RecordFile, Sample, Source
from datagen.spec import DatasetSpec


def sample_bytes(spec: DatasetSpec, shapes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of the samples in files with records of these shapes (files, axes)."""
    return cast("NDArray[np.int64]", shapes.prod(axis=1) * spec.element_bytes)


def no_side(_number: int) -> Source | None:
    """Stand in where side files are out of reach."""
    return None


class RecordSamples:
    """A file of records as an `OpenFile`: reads each record when it is asked for."""

    def __init__(self, source: Source, records: RecordFile) -> None:
        self._source = source
        self._records = records

    def sample(self, index: int) -> Sample:
        """Return a sample; its payload is the sample itself."""
        try:
            return self._read(index)
        except MovedError:
            return self._read(index)

    def _read(self, index: int) -> Sample:
        data = self._source.read(*self._records.span(index, 1))
        ((start, size),) = self._records.samples(index, 1, data, False)
        payload = data[start : start + size]
        return Sample(payload, payload, index * size)


def no_such_record(path: str, index: int, samples: int) -> DatasetError:
    """Say that a file has fewer records than the settings state."""
    return DatasetError(
        f"{path} has no record {index}: it holds {samples}. "
        "Set dataset.num_samples_per_file to what its files hold, or make the dataset again with `dlemu datagen`"
    )

"""Files of several samples stay open between batches, where their structure costs reads."""

from __future__ import annotations

from typing import Any

import h5py
import pytest

from datagen.buffers import AlignedBuffer
from datagen.fetch import Fetcher, FetchSpec
from datagen.formats.format_base import MAX_KEPT_FILES
from datagen.inspection import inspect
from datagen.spec import Hdf5
from datagen.storage import posix
from tests.datagen.conftest import MakeSpec, make

SAMPLES = 4


class CountingStorage(posix.Storage):
    """Counts what is opened and what stays open."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.open_now = 0

    def open(self, path: str) -> posix.FileReader:
        reader = super().open(path)
        self.opened.append(path)
        self.open_now += 1
        close = reader.close

        def closed() -> None:
            self.open_now -= 1
            close()

        reader.close = closed  # type: ignore[method-assign]  # of this one reader
        return reader


class Fetching:
    """A fetcher over a dataset, and what it opened."""

    def __init__(self, small: MakeSpec, decode: Any = "none", **settings: Any) -> None:
        values = {"num_samples_per_file": SAMPLES, "num_files_eval": 0, "record_length_bytes_stdev": 0}
        self.dataset = make(small(**(values | settings)))
        found = inspect(self.dataset)
        self.spec = FetchSpec.for_dataset(found, found.train, decode=decode, verify=True)
        self.storage = CountingStorage()
        self.fetcher = Fetcher(self.spec, self.storage)

    def fetch(self, *samples: int) -> tuple[list[bytes], int]:
        """Return the samples' bytes, and how many were read."""
        out = AlignedBuffer().view(self.spec.slot_bytes(len(samples)))
        fetched = self.fetcher.fetch(samples, out)
        return [bytes(out[start : start + size]) for start, size in fetched.places], fetched.app_bytes

    def wanted(self, sample: int) -> bytes:
        file, index = self.spec.layout.locate(sample)
        with h5py.File(self.spec.layout.path(file)) as h5:
            data: bytes = h5["records_0"][index].tobytes()
            return data


LAYOUTS: list[dict[str, Any]] = [
    {},
    {"compression": "gzip"},
    {"hdf5": Hdf5(chunk_dims=(3, 20, 141))},
]
BATCHES = [(0, 1), (2, 3), (4, 0, 5, 1), (6, 6), (3, 7, 2)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "gzip", "chunks"])
def test_each_file_of_hdf5_is_opened_once_and_every_sample_is_right(layout: dict[str, Any], small: MakeSpec) -> None:
    case = Fetching(small, format="hdf5", decode="full", **layout)
    for batch in BATCHES:
        samples, _ = case.fetch(*batch)
        assert samples == [case.wanted(sample) for sample in batch]
    assert sorted(case.storage.opened) == [case.spec.layout.path(file) for file in (0, 1)]
    case.fetcher.close()
    assert case.storage.open_now == 0


def test_the_structure_is_read_once_and_samples_each_time(small: MakeSpec) -> None:
    case = Fetching(small, format="hdf5", record_length_bytes=200_000)  # of small ones HDF5 keeps what it read
    size = len(case.wanted(0))
    assert case.fetch(0)[1] > size
    assert [case.fetch(sample)[1] for sample in (1, 1, 2)] == [size] * 3


def test_no_more_files_stay_open_than_an_engine_may_keep(small: MakeSpec) -> None:
    files = MAX_KEPT_FILES + 3
    case = Fetching(small, format="hdf5", num_files_train=files, record_length_bytes=400)
    for file in range(files):
        case.fetch(file * SAMPLES)
    assert case.storage.open_now == MAX_KEPT_FILES
    case.fetch((files - 1) * SAMPLES)
    assert len(case.storage.opened) == files
    case.fetch(0)
    assert len(case.storage.opened) == files + 1


def test_a_format_without_structure_to_keep_is_closed_with_each_batch(small: MakeSpec) -> None:
    case = Fetching(small, format="npz")
    for _ in range(2):
        case.fetch(0, 1)
        assert case.storage.open_now == 0
    assert len(case.storage.opened) == 2

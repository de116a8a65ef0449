from __future__ import annotations

from pathlib import Path

import pytest

from datagen.fetch import Fetcher, FetchSpec
from datagen.inspection import inspect
from datagen.layout import layouts
from datagen.spec import DatasetSpec
from datagen.verify import verify
from tests.datagen.conftest import MakeSpec, make
from tests.datasets import storage_named


@pytest.fixture
def dataset(small: MakeSpec) -> DatasetSpec:
    return make(small(format="synthetic", num_files_train=12, num_samples_per_file=3))


def test_files_hold_their_running_index(dataset: DatasetSpec) -> None:
    train, valid = layouts(dataset)
    assert [Path(train.path(number)).read_text() for number in range(12)] == [str(number) for number in range(12)]
    assert [Path(valid.path(number)).read_text() for number in range(3)] == ["12", "13", "14"]
    found = inspect(dataset)
    assert found.manifest is not None
    assert found.manifest.bytes == found.total_bytes == 10 + 2 * 5
    assert verify(dataset) == []


@pytest.mark.parametrize("storage", ["posix", "direct"])
@pytest.mark.parametrize("resize", [0, 3000])
def test_samples_are_made_in_memory(dataset: DatasetSpec, storage: str, resize: int) -> None:
    found = inspect(dataset)
    fetch = FetchSpec(found, found.train, storage=storage_named(storage), resize_bytes=resize, verify=True)
    fetched = Fetcher(fetch).fetch([0, 35], memoryview(bytearray(fetch.slot_bytes(2))))
    assert [size for _, size in fetched.places] == [resize or 141 * 141] * 2
    assert (fetched.app_bytes, fetched.read_calls, fetched.read_ns) == (0, 0, 0)

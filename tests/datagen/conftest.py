"""Small datasets, and functions that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from datagen.buffers import AlignedBuffer
from datagen.fetch import Fetched, Fetcher, FetchSpec
from datagen.inspection import inspect
from datagen.layout import Samples
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import FOLDERS, StorageBase
from tests.datasets import make_files
from tests.object_stores import own_server

MakeSpec = Callable[..., DatasetSpec]
make = make_files


@pytest.fixture
def small(tmp_path: Path) -> MakeSpec:
    """Return a function that returns a spec of a few small npz files; keyword arguments replace its fields."""

    def spec(**changes: Any) -> DatasetSpec:
        values: dict[str, Any] = {
            "data_folder": str(tmp_path / "data"),
            "format": "npz",
            "num_files_train": 6,
            "num_files_eval": 3,
            "record_length_bytes": 20000.0,
            "record_length_bytes_stdev": 6000.0,
        }
        return DatasetSpec(**(values | changes))

    return spec


def fetch_of(spec: DatasetSpec, **options: Any) -> FetchSpec:
    """Return the spec for reading the training files of a dataset."""
    dataset = inspect(spec, storage=options.get("storage", FOLDERS))
    return FetchSpec(dataset, dataset.train, **options)


def fetched(fetch: FetchSpec, samples: Samples, files: StorageBase | None = None) -> tuple[Fetched, list[bytes]]:
    """Read a batch, from `files` if given; return the result, and the bytes of each sample."""
    out = AlignedBuffer().view(fetch.slot_bytes(len(samples)))
    out[:] = b"\xaa" * len(out)
    result = Fetcher(fetch, files).fetch(samples, out)
    return result, [bytes(out[start : start + size]) for start, size in result.places]


@pytest.fixture
def server() -> Iterator[Any]:
    with own_server() as object_server:
        yield object_server

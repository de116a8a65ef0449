"""Small datasets to test on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from datagen.generate import finish, generate, prepare
from datagen.spec import DatasetSpec
from tests.object_stores import own_server

MakeSpec = Callable[..., DatasetSpec]


def make(spec: DatasetSpec, threads: int = 1) -> DatasetSpec:
    """Make a dataset from start to end."""
    prepare(spec)
    generate(spec, threads=threads)
    finish(spec)
    return spec


@pytest.fixture
def small(tmp_path: Path) -> MakeSpec:
    """Return a function that gives a spec of a few small npz files; keywords change it."""

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


@pytest.fixture
def server() -> Iterator[Any]:
    """An S3 server that keeps its objects in memory."""
    with own_server() as served:
        yield served

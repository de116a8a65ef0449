"""Small datasets for tests of everything above datagen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datagen.generate import finish, generate, prepare
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import StorageSpec, has_paths, storage_spec


def make_dataset(folder: Path, **settings: Any) -> DatasetSpec:
    """Make a small npz dataset whose samples differ in size."""
    defaults: dict[str, Any] = {
        "format": "npz",
        "num_files_train": 24,
        "record_length_bytes": 40_000,
        "record_length_bytes_stdev": 15_000,
    }
    spec = DatasetSpec(**(defaults | settings | {"data_folder": str(folder)}))
    prepare(spec)
    generate(spec)
    finish(spec)
    return spec


def storage_named(name: str) -> StorageSpec:
    """Return the spec of a storage by the name of its file."""
    return storage_spec(name) if has_paths(name) else StorageSpec(type=name)

"""Makes small datasets, and a small disk for them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from datagen import registry
from datagen.formats.format_base import FormatBase, UnreadFormat
from datagen.generate import finish, generate, prepare
from datagen.spec import DatasetSpec
from datagen.storage.storage_base import FOLDER_TYPES, FOLDERS, StorageSpec, storage_spec


def make_dataset(folder: Path, **settings: Any) -> DatasetSpec:
    """Make a small npz dataset whose samples differ in size."""
    defaults: dict[str, Any] = {
        "format": "npz",
        "num_files_train": 24,
        "record_length_bytes": 40_000,
        "record_length_bytes_stdev": 15_000,
    }
    return make_files(DatasetSpec(**(defaults | settings | {"data_folder": str(folder)})))


def make_files(spec: DatasetSpec, storage: StorageSpec = FOLDERS, **how: Any) -> DatasetSpec:
    """Make a complete dataset; `how` are keyword arguments of `generate`."""
    prepare(spec, storage)
    generate(spec, storage, **how)
    assert finish(spec, storage).complete
    return spec


def formats_with_files() -> list[str]:
    """Return the names of the formats whose samples are in files."""
    return [name for name in registry.names("datagen.formats") if not isinstance(format_named(name), UnreadFormat)]


def format_named(name: str) -> FormatBase:
    format_: FormatBase = registry.find("datagen.formats", name, "Format")()
    return format_


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of a size, such as 64k, on a folder; skip the test if that fails."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def storage_named(name: str) -> StorageSpec:
    """Return the spec of a storage by the name of its file."""
    return storage_spec(StorageSpec(type=name)) if name in FOLDER_TYPES else StorageSpec(type=name)

"""Looking at a user's files leaves the page cache as it was: a run that follows reads them from the storage."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from datagen.inspection import inspect
from datagen.own_folder import inspect_own_folder
from datagen.spec import DatasetSpec
from datagen.storage.posix import _in_memory, cache_restored
from datagen.storage.storage_base import FOLDERS, open_storage


def shard(path: Path) -> None:
    """Samples of several sizes: only their headers say where they begin."""
    with tarfile.open(path, "w") as tar:
        for number in range(40):
            member = tarfile.TarInfo(f"{number:06}.npy")
            member.size = 100_000 + 512 * number
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    with path.open("rb") as file:
        os.fsync(file.fileno())


def forget(path: Path) -> None:
    open_storage(FOLDERS).evict(str(path), write_first=True)
    if _in_memory(str(path)):
        pytest.skip(f"{path} lies on a file system whose pages can't be dropped")


def cached_bytes_after_a_look(path: Path) -> bool:
    spec = inspect_own_folder(DatasetSpec(data_folder=str(path.parent), source="folder", format=""), FOLDERS).spec
    inspect(spec)
    return _in_memory(str(path))


def test_looking_leaves_a_cold_file_cold_and_a_cached_one_cached(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    shard(path)
    assert cached_bytes_after_a_look(path), "it was just written"
    forget(path)
    assert not cached_bytes_after_a_look(path)
    with cache_restored([str(path)]):
        path.read_bytes()
    assert not _in_memory(str(path))
    path.read_bytes()
    with cache_restored([str(path), str(tmp_path / "gone")]):
        path.read_bytes()
    assert _in_memory(str(path))

"""Datasets of more files than memory holds the sizes of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from datagen import generate as files
from datagen.errors import SpaceError
from datagen.generate import prepare
from datagen.spec import DatasetSpec


def test_files_whose_sizes_no_memory_holds_are_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = DatasetSpec(data_folder=str(tmp_path / "d"), format="npz", num_files_train=1000, record_length_bytes=100)
    memory = SimpleNamespace(available=1000 * files.FILE_BYTES - 1)
    monkeypatch.setattr(files, "psutil", SimpleNamespace(virtual_memory=lambda: memory))
    with pytest.raises(SpaceError, match=r"1,000 files .* fewer files \(dataset.num_files_train\)"):
        prepare(spec)
    assert not (tmp_path / "d").exists()
    memory.available += 1
    prepare(spec)

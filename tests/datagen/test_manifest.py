"""The manifest comes back as it was written, people can read it, and it tells datasets apart by their files alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from datagen.errors import DatasetError
from datagen.manifest import MANIFEST_NAME, Manifest, read, write
from datagen.spec import DatasetSpec, ParquetColumn, ParquetSpec
from datagen.storage import posix

STORAGE = posix.Storage()
COLUMNS = (ParquetColumn(name="id", dtype="int64"), ParquetColumn(name="label", dtype="int8", read=False))
SPEC = DatasetSpec(format="parquet", num_files_train=3, parquet=ParquetSpec(columns=COLUMNS), seed=5)
MADE = Manifest(spec=SPEC, complete=True, files=3, bytes=2**40, made_at="2026-01-02T03:04:05+00:00")


def test_it_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write(str(tmp_path), MADE, STORAGE)
    assert read(str(tmp_path), STORAGE) == replace(MADE, spec=replace(SPEC, data_folder=str(tmp_path)))
    write(str(tmp_path), replace(MADE, complete=False), STORAGE)
    again = read(str(tmp_path), STORAGE)
    assert again is not None
    assert not again.complete
    assert [path.name for path in tmp_path.iterdir()] == [MANIFEST_NAME], "nothing half written stays"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "is not a dataset's manifest"),
        ("{}", "has schema_version None, wanted 1"),
        ('{"schema_version": 2}', "has schema_version 2, wanted 1: another version of dlemu made the dataset"),
        ('{"schema_version": 1, "spec": {}, "content_version": 2}', "has content_version 2, wanted 1: another version"),
        ('{"schema_version": 1, "content_version": 1, "spec": {"fromat": "npz"}}', "is not a dataset's manifest"),
    ],
)
def test_what_is_no_manifest_is_named_with_its_path(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / MANIFEST_NAME
    path.write_text(text)
    with pytest.raises(DatasetError, match=named) as caught:
        read(str(tmp_path), STORAGE)
    assert str(path) in str(caught.value)

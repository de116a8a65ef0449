"""What is found of a dataset, made by dlemu or by DLIO, and what its manifest says of it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from datagen.errors import DatasetError, UserError
from datagen.inspection import inspect
from datagen.layout import layouts
from datagen.manifest import MANIFEST_NAME, Manifest, read, write
from datagen.spec import DatasetSpec, ParquetColumn, ParquetSpec
from datagen.storage import posix
from tests.datagen.conftest import MakeSpec, make

STORAGE = posix.Storage()


def as_if_by_dlio(spec: DatasetSpec) -> None:
    """Make a dataset, and take away what says that dlemu did."""
    make(spec)
    os.unlink(os.path.join(spec.data_folder, MANIFEST_NAME))


def test_what_was_made_is_found(small: MakeSpec) -> None:
    spec = make(small())
    found = inspect(spec)
    train, valid = layouts(spec)
    sizes = [os.path.getsize(layout.path(i)) for layout in (train, valid) for i in range(layout.num_files)]
    assert (found.train, found.valid) == (train, valid)
    assert found.spec == spec
    assert found.max_file_bytes == max(sizes)
    assert found.total_bytes == sum(sizes)
    assert found.notes == ()
    manifest = read(spec.data_folder, STORAGE)
    assert manifest is not None
    assert found.manifest == manifest
    assert (manifest.complete, manifest.files, manifest.bytes) == (True, 9, sum(sizes))


def test_a_larger_set_is_used_in_part_also_moved_and_cropped_anew(small: MakeSpec, tmp_path: Path) -> None:
    spec = make(small(num_files_train=12))
    os.rename(spec.data_folder, tmp_path / "other")
    moved = replace(spec, data_folder=str(tmp_path / "other"), record_length_bytes_resize=99)
    found = inspect(replace(moved, num_files_train=5))
    assert found.train.path(0).startswith(str(tmp_path / "other"))
    assert found.train.num_files == 5
    assert found.train.path(4).endswith("img_04_of_12.npz")
    assert found.valid is not None
    assert found.valid.first_running_index == 12
    assert "first 5 by name" in found.notes[0]


def test_a_dataset_of_dlio(small: MakeSpec) -> None:
    spec = small(num_files_train=12, num_subfolders_train=4)
    as_if_by_dlio(spec)
    found = inspect(replace(spec, num_files_train=10, num_subfolders_train=0, file_prefix="other"))
    assert found.manifest is None
    assert [found.train.path(i) for i in range(10)] == [layouts(spec)[0].path(i) for i in range(10)]
    assert found.spec.num_files_train == 12
    assert found.max_sample_bytes > 0


def test_a_dataset_of_dlio_with_sizes_of_its_own(small: MakeSpec) -> None:
    spec = small(num_files_eval=0, num_samples_per_file=2)
    train = layouts(spec)[0]
    os.makedirs(train.folder)
    for i in range(6):
        np.savez(train.path(i), x=np.zeros((10, 10 + i, 2), np.uint8), y=[0] * 2)
    found = inspect(spec)
    assert found.max_file_bytes == os.path.getsize(train.path(5))
    assert any("sizes differ from the settings" in note for note in found.notes)


def fails(spec: DatasetSpec, match: str) -> str:
    with pytest.raises(DatasetError, match=match) as caught:
        inspect(spec, lambda: "dlemu datagen workload=w")
    return str(caught.value)


def test_no_folder_and_an_empty_one_are_said_to_be_that(small: MakeSpec) -> None:
    spec, advice = small(), "Make it with: dlemu datagen workload=w"
    assert advice in fails(spec, "is not a folder")
    Path(spec.data_folder).mkdir(parents=True)
    Path(spec.data_folder, ".hidden").touch()
    assert advice in fails(spec, f"no dataset in {spec.data_folder}: it is empty")


def test_missing_files_are_named(small: MakeSpec) -> None:
    spec = make(small(num_files_train=10))
    for i in (2, 3, 5, 7):
        os.unlink(layouts(spec)[0].path(i))
    message = fails(spec, "holds 6 npz files, 10 requested: 4 missing")
    assert "img_02_of_10.npz, img_03_of_10.npz, img_05_of_10.npz, ..." in message
    assert "dlemu datagen workload=w" in message
    assert inspect(replace(spec, num_files_train=2)).train.num_files == 2


@pytest.mark.parametrize("manifest", [True, False])
def test_fewer_files_than_asked_for_and_a_wrong_size_are_named(small: MakeSpec, manifest: bool) -> None:
    spec = small()
    (make if manifest else as_if_by_dlio)(spec)
    more = replace(spec, num_files_train=7)
    message = fails(more, "holds 6 npz files, 7 requested, and a dataset is not extended")
    assert message.endswith(
        "set dataset.num_files_train=6 to use what is there, or dataset.data_folder to a new folder"
    )
    with pytest.raises(UserError):
        make(more)
    path = layouts(spec)[0].path(4)
    size = os.path.getsize(path)
    os.truncate(path, 100)
    fails(spec, f"{path} has 100 bytes, wanted {size}")


@pytest.mark.parametrize("train", ["train/", ""])
@pytest.mark.parametrize("folders", [("",), ("cats", "dogs")])
@pytest.mark.parametrize("ending", ["jpg", "JPEG"])
def test_pictures_of_others_are_found_in_class_folders_and_without_them(
    small: MakeSpec, train: str, folders: tuple[str, ...], ending: str
) -> None:
    spec = small(num_files_train=4, num_files_eval=0, format="jpeg")
    for number in range(4):
        path = Path(spec.data_folder, train, folders[number % len(folders)], f"n0{number}.{ending}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a picture")
    found = inspect(spec).train
    assert sorted(found.path(i) for i in range(4)) == sorted(map(str, Path(spec.data_folder).rglob("*.*")))
    fails(replace(spec, num_files_train=64), "holds 4 jpeg files, 64 requested.* set dataset.num_files_train=4")
    fails(replace(spec, format="npz"), "none of .npz: set dataset.format=jpeg, or dataset.data_folder to another")


def test_pictures_for_validation_are_not_trained_on(small: MakeSpec) -> None:
    spec = small(num_files_train=1, num_files_eval=1, format="jpeg")
    for name in ("cats/a.jpg", "valid/b.jpg"):
        path = Path(spec.data_folder, name)
        path.parent.mkdir(parents=True)
        path.touch()
    found = inspect(spec)
    assert found.valid is not None
    assert (found.train.names, found.valid.names) == (("cats/a.jpg",), ("b.jpg",))


def test_what_a_workload_leaves_out_of_a_parquet_file_is_the_datasets(small: MakeSpec) -> None:
    columns = tuple(ParquetColumn(name=f"c{number}") for number in range(40))
    parquet = ParquetSpec(columns=columns, row_group_size=16)
    made = make(small(format="parquet", num_samples_per_file=64, parquet=parquet))
    assert inspect(replace(made, parquet=ParquetSpec())).spec.parquet == parquet
    assert inspect(replace(made, parquet=ParquetSpec(columns=columns))).spec.parquet == parquet
    other = replace(made, parquet=ParquetSpec(columns=columns[:30], row_group_size=32))
    message = fails(other, r"parquet\.row_group_size is 16 in the dataset and 32 in the settings")
    assert "parquet.columns of the dataset differs from the settings" in message
    assert len(message) < 500


# The manifest

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

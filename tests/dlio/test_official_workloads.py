"""Every workload file of mlpstorage v3.0 loads, with notes on what has no effect here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from datagen.errors import UserError
from dlemu.config import load

MLPSTORAGE = os.environ.get("DLEMU_MLPSTORAGE_V3", "")
"""A checkout of https://github.com/mlcommons/storage at v3.0."""


@pytest.mark.skipif(not MLPSTORAGE, reason="DLEMU_MLPSTORAGE_V3 names no checkout of mlcommons/storage v3.0")
def test_each_official_workload_loads() -> None:
    folder = Path(MLPSTORAGE) / "configs/dlio"
    names = sorted(path.stem for path in (folder / "workload").glob("*.yaml"))
    refused = {}
    for name in names:
        try:
            load([f"workload={name}"], config_dir=str(folder))
        except UserError as error:
            refused[name] = str(error)
    assert len(names) > 20
    assert not refused


def written(tmp_path: Path, **sections: object) -> str:
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload/mine.yaml").write_text(yaml.safe_dump({"model": "resnet50", **sections}))
    return str(tmp_path)


def test_variables_of_the_environment_among_a_storages_options_need_not_be_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    options = {"region": "${AWS_REGION}", "access_key_id": "${AWS_ACCESS_KEY_ID}"}
    storage = {"storage_type": "s3", "storage_root": "bucket", "storage_options": options}
    workload = load(["workload=mine"], config_dir=written(tmp_path, storage=storage))
    assert workload.storage.storage_options == {"region": "eu-north-1"}


def test_a_variable_elsewhere_is_a_reference_to_a_setting(tmp_path: Path) -> None:
    folder = written(tmp_path, dataset={"data_folder": "${AWS_REGION}"})
    with pytest.raises(UserError, match="AWS_REGION"):
        load(["workload=mine"], config_dir=folder)


def test_where_no_section_of_dlios_is_meant_a_note_says_so(tmp_path: Path) -> None:
    stray = {"storage_type": "object", "protocol": "s3", "storage_root": "bucket/unet3d"}
    folder = written(tmp_path, reader=stray, dataset=dict(stray), generator={"num_workers": 16})
    notes = " ".join(load(["workload=mine"], config_dir=folder).notes)
    assert all(key in notes for key in ("reader.protocol", "dataset.storage_root", "generator.num_workers"))

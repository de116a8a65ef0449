"""What is told of a dataset that is made and verified."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datagen import manifest
from datagen.errors import DatasetError, UserError
from datagen.generate import prepare
from datagen.manifest import Manifest
from datagen.storage.storage_base import open_storage
from datagen.thread_pool import Progress as Share
from dlemu.config import load
from dlemu.ranks import Comm
from dlemu.runner.datasets import _progress, make_dataset, verify_dataset
from dlemu.runner.events import DatasetVerified, Event


def test_what_a_resumed_dataset_had_already_does_not_count_as_speed() -> None:
    events: list[Event] = []
    report = _progress(Comm(), "in place", events.append)
    assert report is not None
    report(Share(90, 900_000_000, 1_000_000_000, 100, 0.0))
    report(Share(91, 910_000_000, 1_000_000_000, 100, 10.0))
    assert str(events[-1]) == " 91 % 91 files in place  1 MB/s  0:01:30 left"


def test_nothing_is_made_on_a_host_that_does_not_share_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlemu.ranks.process_control.time", SimpleNamespace(sleep=lambda seconds: None))
    workload = load([f"dataset.data_folder={tmp_path}", "dataset.num_files_train=6", "dataset.record_length_bytes=999"])
    prepare(workload.dataset)
    storage = open_storage(workload.storage_spec)
    comm: Any = SimpleNamespace(rank=1, size=2, node=1, local_rank=0, local_size=1)
    seen = manifest.read(str(tmp_path), storage)
    comm.broadcast, comm.all_reduce_max, comm.gather = lambda _: seen, lambda _: 0, lambda _: None
    make_dataset(workload, comm, lambda _: None)
    assert len(list((tmp_path / "train").iterdir())) == 3
    other = Manifest(spec=workload.dataset, made_at="1999-01-01T00:00:00+00:00")
    comm.broadcast = lambda _: other
    shutil.rmtree(tmp_path / "train")
    with pytest.raises(UserError, match="which this host does not share with rank 0"):
        make_dataset(workload, comm, lambda _: None)
    assert not (tmp_path / "train").exists()
    manifest.write(str(tmp_path), Manifest(spec=workload.dataset, complete=True), storage)
    (tmp_path / "train").mkdir()
    make_dataset(workload, comm, lambda _: None)  # a whole copy


def test_what_is_wrong_is_told_before_it_is_raised(tmp_path: Path) -> None:
    workload = load([f"dataset.data_folder={tmp_path}", "dataset.num_files_train=6", "dataset.record_length_bytes=999"])
    events: list[Event] = []
    make_dataset(workload, Comm(), events.append)
    verify_dataset(workload, Comm(), events.append)
    verified = events[-1]
    assert isinstance(verified, DatasetVerified)
    assert verified.findings == ()
    min((tmp_path / "train").glob("img*")).unlink()
    with pytest.raises(DatasetError, match=r"1 of 6 files in .* are wrong"):
        verify_dataset(workload, Comm(), events.append)
    verified = events[-1]
    assert isinstance(verified, DatasetVerified)
    assert [finding.message for finding in verified.findings] == ["there is no such file"]

"""What is told of a dataset that is made and verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from datagen.errors import DatasetError
from dlemu.comm.local import LocalComm
from dlemu.config import load
from dlemu.runner.datasets import make_dataset, verify_dataset
from dlemu.runner.events import DatasetMade, DatasetProgress, DatasetVerified, Event


def test_made_kept_and_verified(tmp_path: Path) -> None:
    workload = load([f"dataset.data_folder={tmp_path}", "dataset.num_files_train=6", "dataset.record_length_bytes=999"])
    events: list[Event] = []
    make_dataset(workload, LocalComm(), events.append)
    *progress, made = events
    files = sorted((tmp_path / "train").iterdir())
    assert isinstance(made, DatasetMade)
    assert (made.folder, made.files, made.kept_files) == (str(tmp_path), 6, 0)
    assert made.bytes == sum(file.stat().st_size for file in files)
    assert isinstance(progress[-1], DatasetProgress)
    assert (progress[-1].verb, progress[-1].ranks, progress[-1].done.files) == ("made", 1, 6)
    files[2].unlink()
    make_dataset(workload, LocalComm(), events.append)
    again = events[-1]
    assert isinstance(again, DatasetMade)
    assert (again.files, again.kept_files) == (1, 5)
    verify_dataset(workload, LocalComm(), events.append)
    assert events.pop() == DatasetVerified(folder=str(tmp_path), files=6, findings=())


def test_what_is_wrong_is_told_before_it_is_raised(tmp_path: Path) -> None:
    workload = load([f"dataset.data_folder={tmp_path}", "dataset.num_files_train=6", "dataset.record_length_bytes=999"])
    events: list[Event] = []
    make_dataset(workload, LocalComm(), events.append)
    min((tmp_path / "train").iterdir()).unlink()
    with pytest.raises(DatasetError, match=r"1 of 6 files in .* are wrong"):
        verify_dataset(workload, LocalComm(), events.append)
    assert isinstance(events[-1], DatasetVerified)
    assert [finding.kind for finding in events[-1].findings] == ["missing"]


def test_files_of_others_are_named_and_nothing_is_wrong(tmp_path: Path) -> None:
    workload = load([f"dataset.data_folder={tmp_path}", "dataset.num_files_train=6", "dataset.record_length_bytes=999"])
    events: list[Event] = []
    make_dataset(workload, LocalComm(), events.append)
    (tmp_path / "train" / "mine.npz").touch()
    verify_dataset(workload, LocalComm(), events.append)
    assert isinstance(events[-1], DatasetVerified)
    assert [(finding.severity, finding.kind) for finding in events[-1].findings] == [("warning", "foreign")]

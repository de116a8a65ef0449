"""A rehearsal as a user runs it, at a size that a laptop makes in seconds; and what its check says then."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from dlemu.contrib.mlperf.check.judge import check_folder
from tests.e2e.harness import assert_gone, dlemu, family, rank_of, start, training, until, wait

pytestmark = pytest.mark.slow

LAPTOP = {
    *("dataset.size", "dataset.made", "dataset.phases", "settings.changed", "workload.differs", "overrides.unknown"),
    *("overrides.open", "hosts.few", "runs.gap", "runs.spread", "au.low", "dataset.filesystem"),
}
"""What is true of few small samples in one temporary folder, on a busy machine."""


def words(folder: Path, *changes: str) -> list[str]:
    return [
        *("mlperf", "run", "--org", "acme", "--system", "box"),
        *("workload=unet3d", "accelerator=b200", "ranks=2"),
        *("dataset.num_files_train=64", "dataset.record_length_bytes=20000"),
        *("dataset.record_length_bytes_stdev=5000", "dataset.record_length_bytes_resize=1000"),
        f"dataset.data_folder={folder / 'data'}",
        "reader.data_loader=threads",  # each of the runs would import torch
        *("reader.batch_size=4", "reader.read_threads=1", "train.epochs=1", "train.computation_time=0.02"),
        *("metric.ceiling_seconds=0", "metric.scaling_seconds=0", "workflow.checkpoint=false"),
        "metric.au=0.02",  # these tests are not about speed: a busy machine passes them too
        f"output.folder={folder / 'out'}",
        *changes,
    ]


def record(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "out" / "rehearsal.json").read_text())
    return told


def broken(folder: Path) -> set[str]:
    findings = [one for one in check_folder(str(folder / "out")).findings if one.severity != "info"]
    assert all("data_loader" in one.seen for one in findings if one.rule == "overrides.open"), findings
    return {one.rule for one in findings}


def test_a_rehearsal_ends_with_its_runs_or_leaves_what_they_measured(tmp_path: Path) -> None:
    settings = [word for word in words(tmp_path) if "=" in word and not word.startswith("output")]
    assert dlemu("datagen", *settings, cwd=tmp_path).status == 0
    slow = words(tmp_path, "reader.preprocess_time=0.03", "reader.preprocess=sleep")
    process = start(*slow, cwd=tmp_path)
    first = until(lambda: _live(tmp_path, "warm-up"), "the warm-up's steps")
    (train,) = psutil.Process(process.pid).children()
    rank_of(train.pid, 1).kill()
    killed = wait(process)
    assert killed.status == 3, killed.err
    assert "start again in a new folder" in killed.err
    (call,) = record(tmp_path)["calls"]
    assert call["folder"] == str(first.relative_to(tmp_path / "out"))
    assert "killed" in call["failure"] or "SIGKILL" in call["failure"]
    told = dlemu(*slow, cwd=tmp_path)
    assert (told.status, "holds a rehearsal already" in told.err) == (2, True)

    (tmp_path / "out").rename(tmp_path / "killed")
    process = start(*slow, cwd=tmp_path)
    until(lambda: _live(tmp_path, "run-1"), "the first run's steps")
    processes = family(process)
    process.send_signal(signal.SIGINT)
    assert wait(process).status == 130
    assert_gone(processes)
    ended = [(call["label"], call["failure"] is None) for call in record(tmp_path)["calls"]]
    assert ended == [("warm-up", True), ("run 1", False)]

    (tmp_path / "out").rename(tmp_path / "stopped")
    done = dlemu(*words(tmp_path), cwd=tmp_path)
    assert done.status == 1, done.err  # small samples break rules
    assert "5 of 5 runs pass: AU" in done.out
    assert "cores an accelerator" in done.out
    assert "A rehearsal by dlemu" in done.out
    assert record(tmp_path)["complete"]
    assert broken(tmp_path) <= LAPTOP


def _live(folder: Path, label: str) -> Path | None:
    """The folder of a run all of whose ranks have logged steps."""
    found = [path for path in (folder / "out" / "runs").glob(f"*-{label}") if training(path, ranks=2)]
    return found[0] if found else None


def test_mistakes_are_told_before_the_first_run(tmp_path: Path) -> None:
    for change, said in (
        (["train.epoch=1"], "did you mean train.epochs?"),
        (["accelerator=v100"], "not in the rules of v3.0"),
        (["--system", "a box"], "letters, digits"),
        (["launcher=mpirun -n 2"], "{ranks}"),
    ):
        ended = dlemu(*words(tmp_path), *change, cwd=tmp_path)
        assert (ended.status, said in ended.err) == (2, True), ended.err
    ended = dlemu(*words(tmp_path), cwd=tmp_path)
    assert (ended.status, "dlemu datagen" in ended.err) == (2, True)
    assert not (tmp_path / "out").exists()

"""A sweep over runs of checkpoints: each point in a folder of its own, which goes again; its figures are the run's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import dlemu
from datagen.errors import UserError
from dlemu.checkpoints.stored import folder_name
from dlemu.config import load
from dlemu.jobs.checkpoint.parts import figures as figures_of
from dlemu.jobs.checkpoint.run import CHECKPOINTS, read_checkpoint_run
from dlemu.runner.job import JobRequest, run_alone
from dlemu.studies.sweep import run as run_sweep
from tests.run.test_checkpoint_jobs import SMALL, run


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have points run here, without a process of their own; return the checkpoint folder of each."""
    folders: list[str] = []

    def run_here(words: Sequence[str], folder: str, look: Callable[[], None], start: object, command: str) -> None:
        workload = load([*words, f"output.folder={folder}"])
        folders.append(workload.checkpoint.checkpoint_folder)
        assert command == "checkpoint"
        run_alone(JobRequest(load=lambda: workload, wants_verdict=False), lambda event: None, CHECKPOINTS)
        if workload.ranks == 3:
            raise UserError("three are too many")

    monkeypatch.setattr(run_sweep, "run_train", run_here)
    return folders


def words(folder: Path, *more: str) -> list[str]:
    folders = {"checkpoint.checkpoint_folder": str(folder / "saved"), "output.folder": str(folder / "sweep")}
    settings = SMALL | folders
    changed = {word.partition("=")[0] for word in more}
    return [*(f"{key}={value}" for key, value in settings.items() if key not in changed), *more]


def test_each_point_writes_into_a_folder_of_its_own_that_goes_again(tmp_path: Path, saved: list[str]) -> None:
    told: list[object] = []
    several = words(tmp_path, "ranks=1,2,3", "checkpoint.format=raw,torch")
    swept = dlemu.sweep(several, on_progress=told.append)
    assert len(told) >= 6
    assert [path.rpartition("-")[0] for path in saved] == [f"{tmp_path}/saved/point-{n:02}" for n in range(1, 7)]
    assert os.listdir(tmp_path / "saved") == [], "also where a point failed"
    assert [point.failure for point in swept.points] == [*[None] * 4, *["three are too many"] * 2]
    assert swept.exit_status == 2
    for point in swept.points[:4]:
        done = read_checkpoint_run(str(tmp_path / "sweep" / point.folder))
        assert point.figures == figures_of(done)
    figures = [point.figures for point in swept.points[:4] if point.figures]
    assert [each.ranks for each in figures] == [1, 1, 2, 2]
    assert all(each.metrics["write_slowest_gib_per_second"].mean > 0 for each in figures)
    assert figures[0].metrics["checkpoint_gib"] == figures[1].metrics["checkpoint_gib"], "whatever the format adds"
    assert dlemu.load_result(tmp_path / "sweep") == swept
    compared = dlemu.compare(str(tmp_path / "sweep"), str(tmp_path / "sweep"))
    assert [pair.settings for pair in compared.runs] == [point.settings for point in swept.points[:4]]
    assert compared.verdict.startswith("with 2 ranks, checkpoint.format=torch writing: ")


def test_checkpoints_that_are_only_read_stay(tmp_path: Path, saved: list[str]) -> None:
    run(tmp_path, "wrote", num_checkpoints_read="0", num_checkpoints_write="1")
    reading = ("checkpoint.num_checkpoints_write=0", "checkpoint.num_checkpoints_read=1", "checkpoint.readers=1,2")
    swept = dlemu.sweep(words(tmp_path, *reading))
    assert saved == [str(tmp_path / "saved")] * 2
    assert os.listdir(tmp_path / "saved") == [folder_name(1)]
    assert [point.failure for point in swept.points] == [None, None]


def test_what_no_point_could_do_is_told_before_the_first(
    tmp_path: Path, saved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = "model.parallelism={tensor: 2, pipeline: 1, zero_stage: 1}"
    with pytest.raises(UserError, match=r"ranks=3: .*not a multiple of the 2 ranks that share one copy"):
        dlemu.sweep(words(tmp_path, "ranks=2,3", cut))
    monkeypatch.setattr("dlemu.jobs.training.result.inspect", lambda *_, **__: None)
    with pytest.raises(UserError, match="some points are a run of checkpoints and some a training run"):
        dlemu.sweep(words(tmp_path, "workflow={train: true},{train: false, checkpoint: true}"))
    assert not saved

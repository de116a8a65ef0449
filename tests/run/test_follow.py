"""A run that goes on, watched from outside: its figures, what they leave out, and how its end is reported."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from datagen.errors import UserError
from dlemu.jobs.training.live import LiveTraining
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.run import TRAINING
from dlemu.jobs.training.steplog import StepRows, log_name
from dlemu.results.file_names import FACTS, LIVE, SUMMARY
from dlemu.results.live import going_on, write_live_facts
from dlemu.results.progress import Figure
from dlemu.runner.follow import FAILED, QUIET_SECONDS, RunFollower
from tests.runs import make_job, make_log


def begun(folder: Path) -> tuple[TrainingJob, StepRows]:
    """A run's folder as it is before the first step, and the rows that its ranks are going to write."""
    job = make_job(folder=str(folder), ranks=2, epochs=2, steps=12)
    (folder / LIVE).mkdir(parents=True)
    write_live_facts(str(folder), TRAINING.facts_ahead(job), advice="")
    return job, make_log(job).rows


def write(folder: Path, rows: StepRows, steps: int) -> None:
    """Write the first steps of each rank, in files as large as the ranks make them."""
    for rank in range(2):
        mine = rows[rows["rank"] == rank].copy()
        mine[steps:] = 0
        mine.tofile(folder / LIVE / log_name(rank))


def value(figures: tuple[Figure, ...], name: str) -> float:
    return next(figure.value for figure in figures if figure.name == name)


def test_the_figures_are_those_of_the_rows_so_far(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _, rows = begun(folder)
    write(folder, rows, 0)
    follower = LiveTraining(str(folder / LIVE / FACTS), str(folder / LIVE))
    assert follower.look() is None, "no step yet"

    write(folder, rows, 6)
    follower = LiveTraining(str(folder / LIVE / FACTS), str(folder / LIVE))
    seen = follower.look()
    assert seen is not None
    assert seen.done_ratio == pytest.approx(6 / 24)
    assert seen.at == "epoch 1/2, step 6/12"
    counted = rows[(rows["epoch"] == 1) & (rows["step"] > 1) & (rows["step"] <= 6)]
    every = sum(int(counted[name].sum()) for name in ("wait_ns", "compute_ns", "sync_ns"))
    assert value(seen.figures, "au_ratio") == pytest.approx(counted["compute_ns"].sum() / every)
    assert set(seen.ranks) == {0, 1}
    together = sum(value(figures, "read_bytes_per_second") for figures in seen.ranks.values())
    assert value(seen.figures, "read_bytes_per_second") == pytest.approx(together)
    assert 0 < value(seen.figures, "wait_ratio") < 1
    assert seen.seconds_left is not None
    first, last = (rows[(rows["rank"] == 0) & (rows["step"] == step)][0] for step in (1, 6))
    assert seen.seconds_left == pytest.approx(3 * (last["met_ns"] - first["asked_ns"]) / 1e9, rel=0.3)


def test_a_rank_that_goes_on_is_followed_row_by_row(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _, rows = begun(folder)
    write(folder, rows, 3)
    follower = LiveTraining(str(folder / LIVE / FACTS), str(folder / LIVE))
    assert (before := follower.look()) is not None
    for rank in range(2):
        mine = rows[rows["rank"] == rank]
        with open(folder / LIVE / log_name(rank), "r+b") as file:
            file.write(mine[:20].tobytes())
    after = follower.look()
    assert after is not None
    assert (before.at, after.at) == ("epoch 1/2, step 3/12", "epoch 2/2, step 8/12")
    counted = rows[(rows["epoch"] == 2) & (rows["step"] > 1) & (rows["step"] <= 8)]
    every = sum(int(counted[name].sum()) for name in ("wait_ns", "compute_ns", "sync_ns"))
    assert value(after.figures, "au_ratio") == pytest.approx(counted["compute_ns"].sum() / every), "of this epoch"


def test_an_end_is_reported_by_the_status_of_the_command(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "goldens" / "results" / "train"
    text = json.loads((golden / SUMMARY).read_text())
    for changes, status in (
        ({"outcome": "pass", "complete": True, "failure": None}, 0),
        ({"outcome": "fail", "complete": True, "failure": None}, 1),
        ({"outcome": "no verdict", "complete": True, "failure": None}, 4),
        ({"outcome": "no verdict", "complete": False, "failure": "rank 1 was killed"}, FAILED),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        (folder / SUMMARY).write_text(json.dumps(text | changes))
        seen = RunFollower(str(folder)).look()
        assert (seen.state, seen.status) == ("ended", status)
        assert seen.sentence == (changes["failure"] or text["verdict"])


def test_a_run_that_was_killed_is_named_once_nothing_changes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    _, rows = begun(folder)
    write(folder, rows, 6)
    with going_on(str(folder)):
        assert RunFollower(str(folder)).look().state == "runs"
    fresh = RunFollower(str(folder)).look()
    assert fresh.state == "runs", "one of another host holds no lock that is seen here, and one that failed is saved"
    for entry in os.scandir(folder / LIVE):
        os.utime(entry.path, (1e9, 1e9))
    follower = RunFollower(str(folder))
    seen = follower.look()
    assert (seen.state, seen.status) == ("dead", FAILED)
    assert f"`dlemu report {folder}`" in seen.sentence
    assert "ended before it could write its result, killed or without space" in seen.sentence
    assert QUIET_SECONDS > 10, "saving a failed run takes its time"


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UserError, match="holds no run"):
            RunFollower(str(folder))

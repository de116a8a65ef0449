"""A run that goes on, watched from outside: its figures, what they leave out, and how its end is reported."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from datagen.errors import DlemuError, UserError
from dlemu.jobs.training.measured import Facts
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.result import TRAINING
from dlemu.jobs.training.steplog import StepRows, log_name
from dlemu.metrics.au import au_percent, kept_rows
from dlemu.results import FACTS, LIVE, SUMMARY
from dlemu.results.answer_files import decode_versioned
from dlemu.results.live import Figure, Follower, Progress, mark_in_progress, write_live_facts
from dlemu.runner.events import Event, Reporter
from dlemu.runner.follow import follow_run
from tests.runs import make_job, make_log, present, with_blocks


def begun(folder: Path, **settings: Any) -> tuple[TrainingJob, StepRows]:
    """A run's folder as it is before the first step, and the rows that its ranks are going to write."""
    job = make_job(folder=str(folder), ranks=2, epochs=2, steps=12, **settings)
    (folder / LIVE).mkdir(parents=True)
    write_live_facts(str(folder), TRAINING.facts(job), advice="")
    return job, make_log(job).rows


def write(folder: Path, rows: StepRows, steps: int) -> None:
    """Write the first steps of each rank, in files as large as the ranks make them."""
    for rank in range(2):
        mine = rows[rows["rank"] == rank].copy()
        mine[steps:] = 0
        mine.tofile(folder / LIVE / log_name(rank))


def follow(folder: Path) -> Follower:
    return TRAINING.follow(decode_versioned(str(folder / LIVE / FACTS), Facts), str(folder / LIVE))


def test_the_numbers_are_those_of_the_rows_so_far(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job, rows = begun(folder, **with_blocks(5))
    for stamp in ("free_ns", "asked_ns", "started_ns", "finished_ns", "ready_ns", "met_ns"):
        rows[stamp][rows["epoch"] == 2] += 10**10  # by then the first epoch's rates are no longer recent
    write(folder, rows, 0)
    follower, near = follow(folder), cast("Any", pytest.approx)
    assert follower() is None, "no step yet"
    for steps in (1, 2, 5, 6, 12, 13, 20, 24):
        write(folder, rows, steps)
        seen = follower()
        ranks = [rows[rows["rank"] == rank][:steps] for rank in range(2)]
        recent = [mine[mine["epoch"] == mine["epoch"][-1]] for mine in ranks]
        so_far = kept_rows(np.concatenate(recent), job.workload.metric.exclude_start_steps, 0)
        samples, read, waited = (
            sum(1e9 * mine[name].sum() / (mine["met_ns"][-1] - mine["free_ns"][0]) for mine in recent)
            for name in ("samples", "app_bytes", "wait_ns")
        )
        assert seen == Progress(
            at=f"epoch {1 + (steps > 12)}/2, step {steps - 12 * (steps > 12)}/12",
            done=steps,
            total=24,
            au_percent=near(au_percent(so_far)) if len(so_far) else None,
            seconds_left=near((24 - steps) / steps * (ranks[0]["met_ns"][-1] - ranks[0]["asked_ns"][0]) / 1e9),
            mb_per_second=near(read / 1e6),
            figures=(Figure("samples", near(samples), "/s"), Figure("wait", near(waited / 2e7), "%")),
        )
        assert present(seen).is_over == (steps == 24)


def test_a_run_reports_itself_at_most_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    events, looks = list[Event](), []

    def look() -> Progress:
        looks.append(time.monotonic())
        if len(looks) == 2:
            raise FileNotFoundError
        return Progress(at="here", done=len(looks), total=3)

    monkeypatch.setattr("dlemu.runner.events.REPORT_SECONDS", 0.05)
    reporter = Reporter(look, events.append)
    while len(looks) < 3:
        reporter()
    assert events == [Progress(at="here", done=1, total=3), Progress(at="here", done=3, total=3)]
    assert looks[2] - looks[0] >= 0.05, "a look that finds nothing is repeated at once"


def test_an_end_is_reported_by_the_status_of_the_command(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "goldens" / "results" / "train"
    text = json.loads((golden / SUMMARY).read_text())
    for changes, status in (
        ({"outcome": "pass", "complete": True, "failure": None}, 0),
        ({"outcome": "fail", "complete": True, "failure": None}, 1),
        ({"outcome": "no verdict", "complete": True, "failure": None}, 4),
        ({"outcome": "no verdict", "complete": False, "failure": "rank 1 was killed"}, DlemuError.exit_status),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        (folder / SUMMARY).write_text(json.dumps(text | changes))
        seen = next(follow_run(str(folder)))
        assert (seen.state, seen.status) == ("ended", status)
        assert seen.sentence == (changes["failure"] or text["verdict"])


def test_a_run_that_was_killed_is_named_once_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    _, rows = begun(folder)
    write(folder, rows, 6)
    with mark_in_progress(str(folder)):
        assert next(follow_run(str(folder))).state == "runs"
    fresh = follow_run(str(folder))
    assert next(fresh).state == "runs", "one of another host has no lock that is seen here, one that failed is saved"
    monkeypatch.setattr("dlemu.runner.follow.QUIET_SECONDS", 0.0)
    assert next(fresh).state == "dead", "only time has passed"
    for entry in os.scandir(folder / LIVE):
        os.utime(entry.path, (1e9, 1e9))
    seen = next(follow_run(str(folder)))
    assert (seen.state, seen.status) == ("dead", DlemuError.exit_status)
    assert f"`dlemu report {folder}`" in seen.sentence
    assert "ended before it could write its result, killed or without space" in seen.sentence


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UserError, match="holds no run"):
            next(follow_run(str(folder)))

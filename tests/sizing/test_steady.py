"""What can go on for ever is told from what was read ahead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.studies.size import trials
from dlemu.studies.size.trials import steady_series
from tests.validation.virtual_drives import Drive, Training, train

MS = 1_000_000


def run(read_ms: list[float], queue: int = 3) -> StepRows:
    """One rank whose reader takes so long for each batch, one after the other, at most `queue` batches ahead."""
    times = iter(read_ms)
    drive = Drive(channels=1, serve=lambda *_: next(times) / 1e3)
    return train(drive, Training(workers=1, ahead=queue + 1, steps=len(read_ms), step_seconds=0.1, batch_bytes=1.0))


@pytest.mark.parametrize(("read_ms", "busy", "windows"), [(60.0, 100, 19), (125.0, 80, 24)])
def test_a_storage_that_keeps_up_or_is_too_slow(read_ms: float, busy: float, windows: int) -> None:
    series = steady_series(run([read_ms] * 200), ahead=4, window_seconds=1.0)
    assert len(series.busy) == windows
    assert series.busy.mean() == pytest.approx(busy, abs=0.5)
    assert series.sustained.mean() == pytest.approx(busy, abs=1)


def test_a_queue_that_runs_dry_counts_what_is_read() -> None:
    """What was read before the window lasts for all of it, though reading is too slow."""
    series = steady_series(run([1.0] * 11 + [110.0] * 89, queue=10), ahead=11, window_seconds=0.5)
    assert series.busy.mean() == pytest.approx(100)
    assert series.sustained.mean() == pytest.approx(100 / 1.1, abs=1)


def test_the_end_of_an_epoch_counts_no_leftovers() -> None:
    """At its end an epoch lives on its queue, with nothing more to read."""
    rows = run([100.0] * 50, queue=10)
    series = steady_series(rows, ahead=11, window_seconds=0.5)
    assert len(series.busy) == 2 * (50 - 1 - 11 - 1) // 10
    assert series.fed.mean() == pytest.approx(100, abs=1)


def test_of_many_ranks_few_logs_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(100):
        (tmp_path / f"rank_{rank}.steps").touch()
    monkeypatch.setattr(trials, "read_log", lambda path: np.zeros(1, STEP_DTYPE))
    monkeypatch.setattr(trials, "TRAINING", 0)
    assert len(trials._live_rows(str(tmp_path))) == 50


def test_windows_by_hand() -> None:
    """From the end of the first step, at 13 s, to the begin of the fifth, at 49 s, in windows of 9 s.

    Steps of 10 s but for waits of 0, 2, 4 and 6 s before them, each batch read in the 5 s before it came.
    """
    rows = np.zeros(6, STEP_DTYPE)
    rows["rank"], rows["epoch"], rows["block"], rows["step"] = 0, 1, 1, np.arange(1, 7)
    rows["wait_ns"], rows["compute_ns"] = np.array([3, 0, 2, 4, 6, 8]) * 1000 * MS, 10_000 * MS
    rows["free_ns"] = np.array([0, 13, 23, 35, 49, 65]) * 1000 * MS
    rows["finished_ns"] = rows["free_ns"] + rows["wait_ns"]
    rows["started_ns"] = rows["finished_ns"] - 5000 * MS
    series = steady_series(rows, ahead=1, window_seconds=9)
    # It computes from 13 to 23, 25 to 35, 39 to 49 s.
    assert series.busy == pytest.approx([100 * part / 9 for part in (9, 1 + 6, 4 + 1, 9)])
    # Batches, of 10 s computation each, are read from 20 to 25, 34 to 39 and 50 to 55 s.
    assert series.fed == pytest.approx([100 * 10 * part / 5 / 9 for part in (2, 3, 5, 0)])
    assert series.sustained is series.fed, "20 s of 36 are less than 29"

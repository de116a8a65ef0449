"""What was measured outlives whatever goes wrong in what is computed of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datagen.errors import SpaceError
from dlemu.jobs.training.result import TRAINING, read_run
from dlemu.ranks.failure import describe
from dlemu.runner.events import Event, NotSaved, Saved, ignore
from dlemu.runner.job import save
from dlemu.runner.ranks import Ranks, RunFailedError, failed_run
from dlemu.runner.run_folder import Kept, check_folder
from tests.runs import make_job, make_log


def broken(event: Event) -> None:
    """What can't export a run."""
    assert isinstance(event, Saved)
    raise ZeroDivisionError("a defect")


def test_a_defect_in_what_is_computed_leaves_the_measured_run(tmp_path: Path) -> None:
    job = make_job(folder=str(tmp_path))
    log = make_log(job)
    with pytest.raises(ZeroDivisionError):
        save(TRAINING, job, log, broken)
    order = ["rank", "epoch", "step"]
    assert np.array_equal(np.sort(read_run(str(tmp_path)).rows, order=order), np.sort(log.rows, order=order))
    with pytest.raises(SpaceError, match="results of another run"):
        check_folder(str(tmp_path))


def test_a_disk_that_is_full_at_the_end_is_reported_once_with_the_way_to_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(folder=str(tmp_path))
    log = make_log(job)

    def full(run: object) -> None:
        raise SpaceError("the disk is full")

    def save_again(failure: str) -> Kept | None:
        save(TRAINING, job, log, ignore, failure)
        return None

    monkeypatch.setattr("dlemu.runner.job.write_measured", full)
    events: list[Event] = []
    with pytest.raises(SpaceError) as first:
        save(TRAINING, job, log, events.append)
    assert [type(event) for event in events] == [NotSaved], "the result is printed nevertheless"
    said = f"the disk is full; once there is space, `dlemu report {tmp_path}` shows the result"
    assert str(first.value) == said
    with pytest.raises(RunFailedError) as ended, Ranks().guard(job.folder, save_again):
        raise failed_run(describe(0, first.value))
    assert str(ended.value) == said

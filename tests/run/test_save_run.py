"""What was measured outlives whatever goes wrong in what is computed of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from datagen.errors import SpaceError
from dlemu.jobs.training.folder import read_run
from dlemu.jobs.training.run import TRAINING
from dlemu.runner.events import Event, Saved
from dlemu.runner.job import save
from dlemu.runner.run_folder import check_folder
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

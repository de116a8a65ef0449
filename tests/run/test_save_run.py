"""What was measured outlives whatever goes wrong in what is computed of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from datagen.errors import SpaceError
from dlemu.config.schema import Workload
from dlemu.results.checkpoint_run import CheckpointRun
from dlemu.results.folder import read_run
from dlemu.results.run import Run
from dlemu.run.events import Event
from dlemu.run.run_folder import check_folder
from dlemu.run.save_run import save
from tests.runs import make_job, make_log


class Broken:
    """A frontend whose own files can't be made."""

    overrides: Sequence[str] = ()
    wants_verdict = True

    def fit(self, workload: Workload, ranks: int) -> Workload:
        return workload

    def advise(self, workload: Workload, ranks: int, files_there: int) -> str:
        return ""

    def load(self) -> Workload:
        raise NotImplementedError

    def begin(self, workload: Workload, ranks: int) -> None: ...

    def tell(self, event: Event) -> None: ...

    def write(self, run: Run) -> None:
        raise ZeroDivisionError("a defect")

    def write_checkpoints(self, run: CheckpointRun) -> None: ...


def test_a_defect_in_what_is_computed_leaves_the_measured_run(tmp_path: Path) -> None:
    job = make_job(folder=str(tmp_path))
    log = make_log(job)
    with pytest.raises(ZeroDivisionError):
        save(job, log, Broken())
    order = ["rank", "epoch", "step"]
    assert np.array_equal(np.sort(read_run(str(tmp_path)).rows, order=order), np.sort(log.rows, order=order))
    with pytest.raises(SpaceError, match="results of another run"):
        check_folder(str(tmp_path))

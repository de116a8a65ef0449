"""From what was measured to the run's folder."""

from __future__ import annotations

from dataclasses import dataclass

from datagen.owned import OwnFolder
from dlemu.comm import within
from dlemu.emulator.job import Job
from dlemu.emulator.trainer import RunLog, salvage
from dlemu.results.folder import write_measured, write_summary
from dlemu.results.run import Run, make_run
from dlemu.run.events import TrainFrontend
from dlemu.run.run_folder import drop_folder, drop_live

SAVING_SECONDS = 60.0
"""What saving may take at least, whatever `timeout_seconds`: of many steps it takes a while."""


@dataclass(frozen=True)
class Kept:
    """What is left of a run that failed: a folder like any other, marked incomplete."""

    folder: str
    steps: int
    """Rows of all ranks."""
    says: str = ""
    """What is kept, of a run without steps."""

    @property
    def sentence(self) -> str:
        if self.says:
            return self.says
        return f"{self.steps} steps were measured before that; they are kept, marked incomplete, in {self.folder}"


def save(job: Job, log: RunLog, frontend: TrainFrontend, failure: str | None = None) -> None:
    """Write the run's folder; one that failed leaves the same, marked incomplete.

    Raises SpaceError; DlemuError when the folder takes nothing for `timeout_seconds`.
    """
    seconds = max(SAVING_SECONDS, job.workload.timeout_seconds)
    within(seconds, lambda: _save(make_run(job, log, failure), frontend), f"writing the results into {job.folder}")


def _save(run: Run, frontend: TrainFrontend) -> None:
    write_measured(run)  # before anything is computed of it: what was measured outlives a failure of what follows
    frontend.write(run)
    write_summary(run)
    drop_live(run.folder)


def save_failed(job: Job, folder: OwnFolder, frontend: TrainFrontend, failure: str) -> Kept | None:
    """Save what the ranks of a failed run left in its live folder; drop the folder when that is nothing."""
    log = salvage(job.live_folder)
    if log is None or not len(log.rows):
        drop_folder(folder)
        return None
    save(job, log, frontend, failure)
    return Kept(job.folder, len(log.rows))

"""From what was measured to the run's folder."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from dlemu.emulator.job import Job
from dlemu.emulator.run import RunLog, salvage
from dlemu.run.events import TrainFrontend
from dlemu.run.run_folder import RunFolder, drop_live


@dataclass(frozen=True)
class Kept:
    """What is left of a run that failed: a folder like any other, marked incomplete."""

    folder: str
    steps: int
    """Rows of all ranks."""

    @property
    def sentence(self) -> str:
        return f"{self.steps} steps were measured before that; they are kept, marked incomplete, in {self.folder}"


def save(job: Job, log: RunLog, frontend: TrainFrontend, failure: str | None = None) -> None:
    """Write the run's folder; one that failed leaves the same, marked incomplete.

    A run that was asked to end early is written as the one it became: `train.total_training_steps` as many as it took.
    """
    if log.journal.stopped_early:
        job = job.cut_to(log.journal.stopped_early.steps)
    frontend.write(job, log, failure)
    drop_live(job.folder)


def save_failed(job: Job, folder: RunFolder, frontend: TrainFrontend, failure: str) -> Kept | None:
    """Save what the ranks of a failed run left in its live folder; drop the folder when that is nothing."""
    log = salvage(job)
    if log is None:
        folder.drop()
        return None
    save(job, log, frontend, failure)
    return Kept(job.folder, len(log.rows))


def read_summary(folder: str) -> dict[str, Any]:
    """Return the summary of a run that was saved."""
    with open(os.path.join(folder, "summary.json"), encoding="utf-8") as lines:
        summary: dict[str, Any] = json.load(lines)
    return summary

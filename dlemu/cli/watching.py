"""What rank 0 shows while a run goes on."""

from __future__ import annotations

import time

import numpy as np
from rich.console import Console

from dlemu.comm import Comm
from dlemu.emulator.job import Job
from dlemu.emulator.loop import StepRange, Watcher
from dlemu.emulator.steplog import TRAINING, StepLog
from dlemu.metrics.au import au_percent, kept_rows
from dlemu.report.progress import TrainingProgress

_EVERY_SECONDS = 0.5


def watcher(job: Job, comm: Comm) -> Watcher | None:
    """Return what shows the progress on rank 0, None on the others."""
    if comm.rank != 0:
        return None
    return _Watch(job)


class _Watch:
    """Looks at rank 0's own log at most twice a second; the other ranks' bytes are taken to be as many."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._steps = [epoch.steps for epoch in job.schedule]
        self._progress = TrainingProgress(Console(stderr=True), self._steps)
        self._due = 0.0

    def __call__(self, step_range: StepRange, step: int, log: StepLog) -> None:
        last = step_range.phase == TRAINING and step == self._steps[step_range.epoch - 1]
        now = time.monotonic()
        if step_range.phase != TRAINING or (now < self._due and not last):
            return
        self._due = now + _EVERY_SECONDS
        rows = log.rows[log.rows["epoch"] == step_range.epoch]
        au = au_percent(kept_rows(rows, self._job.workload.metric.exclude_start_steps, 0))
        self._progress.step(step_range.epoch, step, au, self._mb_per_second(rows))

    def _mb_per_second(self, rows: np.ndarray[tuple[int], np.dtype[np.void]]) -> float:
        if not len(rows):
            return 0.0
        elapsed_ns = int(rows["met_ns"][-1] - rows["asked_ns"][0])
        return self._job.ranks * int(rows["app_bytes"].sum()) * 1e3 / max(1, elapsed_ns)

"""Progress events of a running training job, from rank 0's own step log."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from dlemu.jobs.training.loop import StepRange, Watcher
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.steplog import TRAINING, StepLog, StepRows
from dlemu.runner.events import Event, TrainingBegan, TrainingStep

PROGRESS_SECONDS = 0.5
"""Minimum time between two `TrainingStep` events of an epoch; the epoch's last step is always reported."""


class EpochSums:
    """Sums over one rank's steps of the current epoch; each row is read once, however long the epoch."""

    def __init__(self, exclude_start_steps: int) -> None:
        self._exclude, self._rows_seen, self._epoch = exclude_start_steps, 0, 0
        self._begin_epoch(0)

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch, self._block, self._block_rows = epoch, 0, 0
        self.compute_ns = self.all_ns = self.read_bytes = 0
        self._first_ns = self._last_ns = 0

    def add(self, rows: StepRows, epoch: int) -> None:
        """Add the rows logged since the last call, `rows` being the whole log; a new `epoch` first resets the sums."""
        if epoch != self._epoch:
            self._begin_epoch(epoch)
        new, self._rows_seen = rows[self._rows_seen :], len(rows)
        new = new[(new["epoch"] == epoch) & (new["phase"] == TRAINING)]
        for block in np.unique(new["block"]).tolist():
            part = new[new["block"] == block]
            if block != self._block:
                self._block, self._block_rows = block, 0
            counted = part[max(0, self._exclude - self._block_rows) :]
            self._block_rows += len(part)
            self.compute_ns += int(counted["compute_ns"].sum())
            self.all_ns += sum(int(counted[name].sum()) for name in ("wait_ns", "compute_ns", "sync_ns"))
        if len(new):
            self._first_ns = self._first_ns or int(new["asked_ns"][0])
            self._last_ns = int(new["met_ns"][-1])
            self.read_bytes += int(new["app_bytes"].sum())

    @property
    def au_percent(self) -> float | None:
        """AU of the epoch so far, without the steps excluded at the start of blocks; None while no step counts."""
        return 100 * self.compute_ns / self.all_ns if self.all_ns else None

    @property
    def elapsed_ns(self) -> int:
        """Time from the start of the epoch's first wait to the end of its last step so far."""
        return self._last_ns - self._first_ns


def progress_of(job: TrainingJob, notify: Callable[[Event], None]) -> Watcher:
    """Return a watcher of the loop that reports rank 0's progress, at most every PROGRESS_SECONDS."""
    epoch_steps = tuple(epoch.steps for epoch in job.schedule)
    notify(TrainingBegan(epoch_steps=epoch_steps))
    due, sums = 0.0, EpochSums(job.workload.metric.exclude_start_steps)

    def watch(step_range: StepRange, step: int, log: StepLog) -> None:
        nonlocal due
        if step_range.phase != TRAINING:
            return
        steps, now = epoch_steps[step_range.epoch - 1], time.monotonic()
        if now < due and step < steps:
            return
        due = now + PROGRESS_SECONDS
        sums.add(log.rows, step_range.epoch)
        notify(
            TrainingStep(
                epoch=step_range.epoch,
                epochs=len(epoch_steps),
                step=step,
                steps=steps,
                au_percent=sums.au_percent,
                mb_per_second=job.ranks * sums.read_bytes * 1e3 / max(1, sums.elapsed_ns),
            )
        )

    return watch

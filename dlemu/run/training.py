"""A training run, from the workload to the folder of its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from dlemu.comm import Comm, within
from dlemu.config.schema import Workload
from dlemu.emulator.job import Job
from dlemu.emulator.loop import StepRange, Watcher
from dlemu.emulator.preflight import check_host
from dlemu.emulator.steplog import TRAINING, StepLog, StepRows
from dlemu.emulator.trainer import run_rank
from dlemu.loaders.loader_base import Loader
from dlemu.run.checkpoint_story import checkpoint_with
from dlemu.run.datasets import make_dataset
from dlemu.run.events import Doing, Event, OnlyDataMade, TrainFrontend, TrainingBegan, TrainingStep
from dlemu.run.prepare import check, check_before_making, loader_class, only_checkpoints, only_makes_data, prepare
from dlemu.run.ranks import Ranks, with_ranks
from dlemu.run.save_run import save, save_failed

T = TypeVar("T")

PROGRESS_SECONDS = 0.5
"""Least time between two `TrainingStep`s of an epoch."""


def train(frontend: TrainFrontend) -> str | None:
    """Run, and return the result's folder; None where there is none: after data alone, on other ranks than rank 0.

    A workload that asks for checkpoints alone is run as `dlemu.run.checkpoint_story` does.

    Raises UserError for what is wrong before the ranks start, and RunFailedError (with what was kept) after that. Under
    mpirun or srun it ends this process when a rank fails, after `RankFailed` was told.
    """
    return with_ranks(frontend, partial(_train, frontend))


def _train(frontend: TrainFrontend, ranks: Ranks) -> str | None:
    asked = ranks.configure(lambda: _checked(frontend))
    if only_checkpoints(asked):
        return checkpoint_with(frontend, ranks, asked)
    workload = ranks.agree(lambda: frontend.fit(asked, ranks.count))
    advice = partial(frontend.advise, workload, ranks.count) if frontend.wants_verdict else None
    if workload.workflow.generate_data:
        if workload.workflow.train:
            ranks.agree(lambda: _in_time(workload, lambda: check_before_making(workload, ranks.count, advice)))
        if ranks.leads:
            frontend.begin(workload, ranks.count)
        ranks.run(lambda comm: make_dataset(workload, comm, frontend.tell))
        if only_makes_data(workload):
            if ranks.leads:
                frontend.tell(OnlyDataMade())
            return None
    prepared = ranks.agree(lambda: _in_time(workload, lambda: prepare(workload, ranks.count, advice)))
    job = prepared.job
    with ranks.guard(job, partial(save_failed, job, prepared.folder, frontend)):
        ranks.on_each_host(lambda local_ranks: _in_time(workload, lambda: check_host(job, local_ranks)))
        make_loader = loader_class(workload)
        if ranks.leads and not workload.workflow.generate_data:
            frontend.begin(workload, ranks.count)
        ranks.run(partial(_run_rank, job, make_loader, frontend))
    return job.folder if ranks.leads else None


def _in_time(workload: Workload, check: Callable[[], T]) -> T:
    """Do what looks at the storage before the ranks start; raises DlemuError when it does not answer in time."""
    return within(workload.timeout_seconds, check, f"looking at the dataset in {workload.dataset.data_folder}")


def _checked(frontend: TrainFrontend) -> Workload:
    workload = frontend.load()
    check(workload)
    return workload


def _run_rank(job: Job, make_loader: type[Loader], frontend: TrainFrontend, comm: Comm) -> None:
    if comm.rank != 0:
        run_rank(job, comm, make_loader)
        return
    log = run_rank(job, comm, make_loader, progress_of(job, frontend.tell), lambda what: frontend.tell(Doing(what)))
    if log is not None:
        frontend.tell(Doing(f"computing the result of {len(log.rows):,} steps"))
        save(job, log, frontend)


class _EpochSums:
    """What one rank's steps of the epoch that goes on add up to; a row is looked at once, however many there are."""

    def __init__(self, exclude_start_steps: int) -> None:
        self._exclude, self._rows_seen, self._epoch = exclude_start_steps, 0, 0
        self._begin_epoch(0)

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch, self._block, self._block_rows = epoch, 0, 0
        self._compute_ns = self._all_ns = self.read_bytes = 0
        self._first_ns = self._last_ns = 0

    def add(self, rows: StepRows, epoch: int) -> None:
        """Add the rows that were logged since the last look; those of another epoch than this one count no more."""
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
            self._compute_ns += int(counted["compute_ns"].sum())
            self._all_ns += sum(int(counted[name].sum()) for name in ("wait_ns", "compute_ns", "sync_ns"))
        if len(new):
            self._first_ns = self._first_ns or int(new["asked_ns"][0])
            self._last_ns = int(new["met_ns"][-1])
            self.read_bytes += int(new["app_bytes"].sum())

    @property
    def au_percent(self) -> float | None:
        """Of the steps that count; None while none does."""
        return 100 * self._compute_ns / self._all_ns if self._all_ns else None

    @property
    def elapsed_ns(self) -> int:
        """From the epoch's first wait to the end of its last step."""
        return self._last_ns - self._first_ns


def progress_of(job: Job, tell: Callable[[Event], None]) -> Watcher:
    """Return what looks at rank 0's own log once in a while and tells what it sees."""
    epoch_steps = tuple(epoch.steps for epoch in job.schedule)
    tell(TrainingBegan(epoch_steps=epoch_steps))
    due, sums = 0.0, _EpochSums(job.workload.metric.exclude_start_steps)

    def look(step_range: StepRange, step: int, log: StepLog) -> None:
        nonlocal due
        if step_range.phase != TRAINING:
            return
        steps, now = epoch_steps[step_range.epoch - 1], time.monotonic()
        if now < due and step < steps:
            return
        due = now + PROGRESS_SECONDS
        sums.add(log.rows, step_range.epoch)
        tell(
            TrainingStep(
                epoch=step_range.epoch,
                epochs=len(epoch_steps),
                step=step,
                steps=steps,
                au_percent=sums.au_percent,
                mb_per_second=job.ranks * sums.read_bytes * 1e3 / max(1, sums.elapsed_ns),
            )
        )

    return look

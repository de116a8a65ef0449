"""Progress of a running training job: rank 0 reports it from its own step log, other processes from those of all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dlemu.jobs.training.loop import StepRange, Watcher
from dlemu.jobs.training.measured import Facts
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.steplog import STEP_DTYPE, TRAINING, StepLog, StepRows, log_name
from dlemu.results.measured import read_facts
from dlemu.results.progress import RECENT_SECONDS, Figure, Progress
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


_MAX_RECENT_ROWS = 4096
"""Maximum number of rows read for the rates of the last seconds."""
_CHUNK_ROWS = 4096
"""Rows examined at a time for the end of the log: its file is mapped, and only pages that are accessed are read."""


@dataclass(frozen=True)
class _Recent:
    """What a rank did in the last RECENT_SECONDS."""

    seconds: float
    read_bytes: float
    samples: float
    wait_ratio: float


class _RankLog:
    """One rank's log, mapped; the sums of an epoch read each row once."""

    def __init__(self, path: str, exclude_start_steps: int) -> None:
        self._rows: StepRows = np.memmap(path, dtype=STEP_DTYPE, mode="r")
        self._used, self._grew_at = 0, time.monotonic()
        self.sums = EpochSums(exclude_start_steps)
        self.steps = 0
        """Training steps so far."""

    def look(self) -> None:
        """Read the rows that were added since the last call."""
        before = self._used
        while self._used < len(self._rows):  # the unused rest of the file may be large
            steps = self._rows["step"][self._used : self._used + _CHUNK_ROWS]
            written = int(np.count_nonzero(np.logical_and.accumulate(steps > 0)))
            self._used += written
            if written < len(steps):
                break
        if self._used == before:
            return
        self._grew_at = time.monotonic()
        new = self._rows[before : self._used]
        self.steps += int(np.count_nonzero(new["phase"] == TRAINING))
        for epoch in np.unique(new["epoch"]).tolist():
            end = before + int(np.flatnonzero(new["epoch"] == epoch)[-1]) + 1
            self.sums.add(self._rows[:end], epoch)  # skips the rows that it was given before

    @property
    def last(self) -> np.void | None:
        """The last row, None while there is none."""
        return self._rows[self._used - 1] if self._used else None

    @property
    def first_ns(self) -> int:
        """Start of the first step's wait, on the rank's clock."""
        return int(self._rows["asked_ns"][0])

    @property
    def now_ns(self) -> int:
        """The current time on the clock of the rank's host: that of the last row plus the time since it appeared."""
        return int(self._rows["met_ns"][self._used - 1] + (time.monotonic() - self._grew_at) * 1e9)

    def recent(self) -> _Recent:
        """Return what the rank did in the last RECENT_SECONDS; a step that began before counts in proportion."""
        rows = np.array(self._rows[max(0, self._used - _MAX_RECENT_ROWS) : self._used])
        end_ns = self.now_ns
        begin_ns = max(end_ns - RECENT_SECONDS * 1e9, int(rows["free_ns"][0]))
        took_ns = np.maximum(1, rows["met_ns"] - rows["free_ns"])
        share = np.clip((rows["met_ns"] - begin_ns) / took_ns, 0, 1)
        timeline = share @ (rows["wait_ns"] + rows["compute_ns"] + rows["sync_ns"])
        return _Recent(
            seconds=max(1e-9, (end_ns - begin_ns) / 1e9),
            read_bytes=float(share @ rows["app_bytes"]),
            samples=float(share @ rows["samples"]),
            wait_ratio=float(share @ rows["wait_ns"] / timeline) if timeline else 0.0,
        )


class LiveTraining:
    """Follows the ranks of a training run."""

    def __init__(self, facts_path: str, live_folder: str) -> None:
        """Raises UserError for damaged facts."""
        facts = read_facts(facts_path, Facts)
        self._folder, self._ranks = live_folder, facts.ranks
        self._epoch_steps = [epoch.steps for epoch in facts.schedule]
        self._exclude = facts.workload.metric.exclude_start_steps
        self._logs: dict[int, _RankLog] = {}

    def look(self) -> Progress | None:
        """Return the run's progress; None before the first step."""
        for rank in range(self._ranks):
            path = os.path.join(self._folder, log_name(rank))
            if rank not in self._logs and os.path.exists(path) and os.path.getsize(path) >= STEP_DTYPE.itemsize:
                self._logs[rank] = _RankLog(path, self._exclude)
        for log in self._logs.values():
            log.look()
        begun = {rank: log for rank, log in self._logs.items() if log.last is not None}
        if not begun:
            return None
        slowest = min(begun.values(), key=lambda log: log.steps)
        recent = {rank: log.recent() for rank, log in begun.items()}
        done = slowest.steps / max(1, sum(self._epoch_steps))
        seconds = (slowest.now_ns - slowest.first_ns) / 1e9
        return Progress(
            at=self._at(slowest),
            done_ratio=done,
            seconds_left=seconds * (1 - done) / done if done else None,
            figures=_figures(list(begun.values()), list(recent.values())),
            ranks={rank: _figures([log], [recent[rank]]) for rank, log in begun.items()},
        )

    def _at(self, log: _RankLog) -> str:
        assert log.last is not None  # `log` is of a rank that has begun
        epoch, phase = int(log.last["epoch"]), "" if log.last["phase"] == TRAINING else "evaluation after "
        done = log.steps - sum(self._epoch_steps[: epoch - 1])
        steps = self._epoch_steps[min(epoch, len(self._epoch_steps)) - 1]
        return f"{phase}epoch {epoch}/{len(self._epoch_steps)}, step {done}/{steps}"


def _figures(logs: list[_RankLog], recent: list[_Recent]) -> tuple[Figure, ...]:
    compute_ns, all_ns = sum(log.sums.compute_ns for log in logs), sum(log.sums.all_ns for log in logs)
    au = [Figure("au_ratio", compute_ns / all_ns)] if all_ns else []
    return (
        *au,
        Figure("read_bytes_per_second", sum(part.read_bytes / part.seconds for part in recent)),
        Figure("samples_per_second", sum(part.samples / part.seconds for part in recent)),
        Figure("wait_ratio", sum(part.wait_ratio for part in recent) / len(recent)),
    )

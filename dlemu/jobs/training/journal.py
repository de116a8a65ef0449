"""The journal of a training run: what rank 0 writes during the run, so that it is known even if the run is killed."""

from __future__ import annotations

from dataclasses import dataclass

from dlemu.checkpoints.io_rows import SavedCheckpoint
from dlemu.metrics.limit import Scaling
from dlemu.results.journal import RunJournal


@dataclass(frozen=True, kw_only=True)
class StoppedEarly:
    """How far a run came that the user stopped early."""

    steps: int
    """Training steps that each rank completed."""
    planned_steps: int


@dataclass(frozen=True, kw_only=True)
class CpuApart:
    """CPU seconds of a rank and its workers, not for reading; `cpu_seconds` includes all of them but the first two."""

    start: float = 0.0
    """Until the rank's loader had started: imports, processes, plans."""
    trials: float = 0.0
    """Measuring the ceiling before the first epoch, and trying more readers after the last."""
    checkpoints: float = 0.0
    """Used by the threads that made and wrote checkpoints."""
    preprocessing: float = 0.0
    """Used up by workers on purpose, as emulated preprocessing: `reader.preprocess=burn`."""
    steps: float = 0.0
    """Used up by the trainer on purpose: `train.step_cpu_time`."""


@dataclass(frozen=True, kw_only=True)
class Journal(RunJournal):
    """What the result of a training run needs besides the step logs and the telemetry."""

    ceiling_au_percent: float | None = None
    """AU that the same loop reached without storage; None when it was not measured."""
    cpu_apart: tuple[CpuApart, ...] = ()
    """One per rank."""
    checkpoints: tuple[SavedCheckpoint, ...] = ()
    eviction_seconds: tuple[float, ...] = ()
    """Duration of each eviction of the dataset from the page cache."""
    stopped_early: StoppedEarly | None = None
    """None for a run that ran to its planned end."""
    scaling: Scaling | None = None
    """Rates of other numbers of readers after the run; None where they were not tried."""
    clock_offsets_ns: tuple[tuple[int, ...], ...] = ()
    """At the start of each epoch: what to add to each host's CLOCK_MONOTONIC to get the first host's, in node order."""

"""What rank 0 notes while a run goes on, so that a run that is cut short still shows what it did."""

from __future__ import annotations

from dataclasses import dataclass

from dlemu.checkpoints.saved import SavedCheckpoint
from dlemu.metrics.limit import Scaling
from dlemu.results.journal import RunJournal


@dataclass(frozen=True, kw_only=True)
class StoppedEarly:
    """Of a run that was stopped early."""

    steps: int
    """Training steps that each rank took."""
    planned_steps: int


@dataclass(frozen=True, kw_only=True)
class CpuApart:
    """CPU seconds of a rank, with its workers, that no reading took."""

    start: float = 0.0
    """Until its loader had started: imports, processes, plans."""
    trials: float = 0.0
    """In the ceiling before the first epoch and in the trial of more readers after the last."""
    checkpoints: float = 0.0
    """Of the threads that made and wrote checkpoints; that and what follows `cpu_seconds` has, too."""
    preprocessing: float = 0.0
    """Used up on purpose by workers: `reader.preprocess_time`, burned."""
    steps: float = 0.0
    """Used up on purpose by the trainer: `train.step_cpu_time`."""


@dataclass(frozen=True, kw_only=True)
class Journal(RunJournal):
    """Everything that a result of training needs besides the step logs."""

    ceiling_au_percent: float | None = None
    cpu_apart: tuple[CpuApart, ...] = ()
    """Of each rank."""
    checkpoints: tuple[SavedCheckpoint, ...] = ()
    eviction_seconds: tuple[float, ...] = ()
    """How long dropping the dataset's pages took, each time."""
    stopped_early: StoppedEarly | None = None
    """None for a run that was not stopped early."""
    scaling: Scaling | None = None
    """What more readers got after the run, where that was tried."""
    clock_offsets_ns: tuple[tuple[int, ...], ...] = ()
    """At the start of each epoch: what to add to each host's CLOCK_MONOTONIC to get the first host's, in node order."""

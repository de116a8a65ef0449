"""A run in the terms of other benchmarks: `dlemu.dlio` makes DLIO's files from what a kind's `exported` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dlemu.config.schema import Workload
from dlemu.metrics.rows import StepTable
from dlemu.results.live import RunJournal

if TYPE_CHECKING:  # most runs have no checkpoints
    from dlemu.checkpoints.checkpoint_plan import CheckpointPlan
    from dlemu.checkpoints.io_rows import SavedCheckpoint

Phase = Literal["write", "read"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportedRun:
    """What any complete run has."""

    workload: Workload
    journal: RunJournal
    """Its `ended_ns` is set, as the run has ended."""

    @property
    def ranks(self) -> int:
        return len(self.journal.rank_nodes)


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportedSteps(ExportedRun):
    """A run that took steps on a dataset."""

    training: StepTable
    evaluation: StepTable
    num_files_train: int
    num_files_eval: int
    saved: tuple[SavedCheckpoint, ...] = ()
    """Checkpoints written between the steps."""


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    """One rank's part of one checkpoint, written or read."""

    phase: Phase
    checkpoint: int
    """Number of the checkpoint, from 1."""
    rank: int
    start_ns: int
    """Start, after a barrier of the ranks, by rank 0's monotonic clock."""
    end_ns: int
    """When this rank was done; with `checkpoint.rank_sync`, when the last rank was."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportedCheckpoints(ExportedRun):
    """A run that only saved and loaded checkpoints."""

    plan: CheckpointPlan
    records: tuple[CheckpointRecord, ...]

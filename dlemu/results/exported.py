"""Runs in a form that other benchmarks share: `JobParts.exported` returns them, and `dlemu.dlio` makes DLIO's files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlemu.config.schema import Workload
from dlemu.metrics.rows import StepTable
from dlemu.results.live import RunJournal

if TYPE_CHECKING:  # most runs have no checkpoints
    from dlemu.checkpoints.checkpoint_plan import CheckpointPlan
    from dlemu.checkpoints.io_rows import IoRows, SavedCheckpoint


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportedRun:
    """The fields of any complete run."""

    workload: Workload
    journal: RunJournal
    """Notes of rank 0; `ended_ns` is set, as the run is complete."""

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


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportedCheckpoints(ExportedRun):
    """A run that only saved and loaded checkpoints."""

    plan: CheckpointPlan
    rows: IoRows
    """A row for each rank and checkpoint, written or read, sorted by start; times are of rank 0's monotonic clock."""

"""A run as programs of others know it: what their result files are made of, whichever kind of job measured it.

A kind of job that another benchmark has, too, declares a part `exported` that returns one of these; `dlemu.dlio` makes
DLIO's files of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dlemu.config.schema import Workload
from dlemu.metrics.rows import StepTable
from dlemu.results.journal import RunJournal

if TYPE_CHECKING:  # most runs save none
    from dlemu.checkpoints.checkpoint_plan import CheckpointPlan
    from dlemu.checkpoints.saved import SavedCheckpoint

Phase = Literal["write", "read"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportedRun:
    """What any complete run tells."""

    workload: Workload
    journal: RunJournal
    """Of a run that ended: `ended_ns` is there."""

    @property
    def ranks(self) -> int:
        """Emulated accelerators."""
        return len(self.journal.rank_nodes)


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportedSteps(ExportedRun):
    """A run that took steps on a dataset."""

    training: StepTable
    evaluation: StepTable
    num_files_train: int
    num_files_eval: int
    saved: tuple[SavedCheckpoint, ...] = ()
    """Checkpoints between the steps."""


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    """One rank's part of one checkpoint, written or read."""

    phase: Phase
    checkpoint: int
    """Its number, from 1."""
    rank: int
    """Of the run."""
    start_ns: int
    """On rank 0's monotonic clock, over which those of other hosts are laid: when the ranks had met."""
    end_ns: int
    """When the rank was done, or with `checkpoint.rank_sync` the last one."""
    bytes: int
    """Of its files, all that they hold."""
    fsync_ns: int = 0
    """Of that time, spent in fsync."""
    files: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportedCheckpoints(ExportedRun):
    """A run that saved and loaded checkpoints and did nothing else."""

    plan: CheckpointPlan
    records: tuple[CheckpointRecord, ...]
    """Of all ranks."""

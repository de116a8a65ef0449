"""What is known of a checkpoint run besides its rows and telemetry: the facts (facts.json) to interpret them."""

from __future__ import annotations

from dataclasses import dataclass

from dlemu.checkpoints.checkpoint_plan import CheckpointPlan, CheckpointSizes, plan_checkpoint
from dlemu.checkpoints.io_rows import READ, WRITE
from dlemu.jobs.checkpoint.summary import CheckpointSummary, Phase
from dlemu.results.live import RunJournal
from dlemu.results.measured import RunFacts

ROWS = "checkpoints.parquet"
PHASES: dict[Phase, int] = {"write": WRITE, "read": READ}


@dataclass(frozen=True, kw_only=True)
class UnderWay:
    """A checkpoint that has begun and not ended."""

    phase: Phase
    checkpoint: int


@dataclass(frozen=True, kw_only=True)
class CheckpointJournal(RunJournal):
    """What rank 0 saves while checkpoints are written and read, so that even a killed run has a result."""

    clock_offsets_ns: tuple[int, ...] = ()
    """What to add to each host's CLOCK_MONOTONIC to get the first host's, in node order; empty for one host."""
    ceiling_gb_per_second: float | None = None
    """Rate at which all ranks together generate content without writing it, 1e9 bytes/s."""
    under_way: UnderWay | None = None  # the checkpoint being written or read; None between two checkpoints
    complete: tuple[int, ...] = ()  # checkpoints that all ranks have written
    removed: tuple[int, ...] = ()  # those of `complete` that were deleted again under `checkpoint.keep_last`


@dataclass(frozen=True, kw_only=True)
class CheckpointRunFacts(RunFacts):
    """facts.json: all that the results depend on besides rows and telemetry. `seed` determines the content."""

    kind: str = CheckpointSummary.kind
    notes: tuple[str, ...] = ()
    journal: CheckpointJournal
    written: CheckpointSizes  # sizes of each checkpoint that was written, or read

    @property
    def plan(self) -> CheckpointPlan:
        """Which ranks wrote which files."""
        return plan_checkpoint(self.workload.model, self.workload.checkpoint, self.ranks)

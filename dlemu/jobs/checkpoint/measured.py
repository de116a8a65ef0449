"""The facts of a checkpoint run (facts.json), by which its rows and telemetry are interpreted."""

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
    """A checkpoint that is being written or read."""

    phase: Phase
    checkpoint: int


@dataclass(frozen=True, kw_only=True)
class CheckpointJournal(RunJournal):
    """The facts that rank 0 saves during the run, so that even a killed run has a result."""

    clock_offsets_ns: tuple[int, ...] = ()
    """What to add to each host's CLOCK_MONOTONIC to get the first host's, in node order; empty for one host."""
    ceiling_gb_per_second: float | None = None
    """Rate at which all ranks together generate content without writing it, 1e9 bytes/s."""
    under_way: UnderWay | None = None  # None between two checkpoints
    complete: tuple[int, ...] = ()  # checkpoints that all ranks have written
    removed: tuple[int, ...] = ()  # complete checkpoints that `checkpoint.keep_last` deleted


@dataclass(frozen=True, kw_only=True)
class CheckpointRunFacts(RunFacts):
    """facts.json: everything that the results depend on besides rows and telemetry. `seed` determines the content."""

    kind: str = CheckpointSummary.kind
    notes: tuple[str, ...] = ()
    journal: CheckpointJournal
    written: CheckpointSizes  # of each checkpoint that the run writes or reads

    @property
    def plan(self) -> CheckpointPlan:
        """The plan by which ranks wrote the files."""
        return plan_checkpoint(self.workload.model, self.workload.checkpoint, self.ranks)

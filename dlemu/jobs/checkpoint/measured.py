"""Types of a checkpoint run's facts.json: its results follow from these facts, the rows and the telemetry."""

from __future__ import annotations

from dataclasses import dataclass

from dlemu.checkpoints.checkpoint_plan import CheckpointPlan, CheckpointSizes, plan_checkpoint
from dlemu.checkpoints.io_rows import READ, WRITE
from dlemu.jobs.checkpoint.summary import CheckpointSummary, Phase
from dlemu.results.live import RunJournal
from dlemu.results.measured import RunFacts

ROWS = "checkpoints.parquet"  # file of the rows in the result folder
PHASES: dict[Phase, int] = {"write": WRITE, "read": READ}  # phase -> its number in the rows
# Settings of `checkpoint` that affect how fast it is written and read
MEASURED_WITH = (
    "fsync", "odirect", "writers", "read_as", "readers", "verify", "evict_page_cache", "transfer_size",
    "recovery_rank_shift", "randomize_tensor",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class UnderWay:
    """The checkpoint that ranks are writing or reading."""

    phase: Phase
    checkpoint: int


@dataclass(frozen=True, kw_only=True)
class CheckpointJournal(RunJournal):
    """The facts that rank 0 saves during the run, so that even a killed run has a result."""

    clock_offsets_ns: tuple[int, ...] = ()
    """First host's CLOCK_MONOTONIC minus that of each host, in the order of hosts; empty for one host."""
    ceiling_gb_per_second: float | None = None
    """Rate at which all ranks together generate content without writing it, 1e9 bytes/s; None if not measured."""
    under_way: UnderWay | None = None  # None between two checkpoints
    complete: tuple[int, ...] = ()  # numbers of the checkpoints that all ranks have written
    removed: tuple[int, ...] = ()  # complete checkpoints that `checkpoint.keep_last` deleted


@dataclass(frozen=True, kw_only=True)
class CheckpointRunFacts(RunFacts):
    """The facts of a run; `seed` determines the content of its checkpoints."""

    kind: str = CheckpointSummary.kind
    notes: tuple[str, ...] = ()  # sentences of the plan for the readers of the result
    journal: CheckpointJournal
    written: CheckpointSizes  # the sizes of each checkpoint, also of a run that only reads

    @property
    def plan(self) -> CheckpointPlan:
        """The files of each rank, recomputed from the settings."""
        return plan_checkpoint(self.workload.model, self.workload.checkpoint, self.ranks)

"""The raw data of a checkpoint run: the ranks' rows, telemetry, and the facts (facts.json) to interpret them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dlemu.checkpoints.checkpoint_plan import CheckpointPlan, CheckpointSizes, plan_checkpoint
from dlemu.checkpoints.io_rows import IO_COLUMNS, READ, WHOLE, WRITE, IoRows
from dlemu.jobs.checkpoint.summary import CheckpointSummary, Phase
from dlemu.results.live import RunJournal
from dlemu.results.measured import MeasuredRun, RunFacts
from dlemu.results.tables import rows_table, write_table
from dlemu.telemetry import Telemetry

ROWS = "checkpoints.parquet"
PHASES: dict[Phase, int] = {"write": WRITE, "read": READ}
_TIME_COLUMNS = ("began_ns", "started_ns", "moved_ns", "synced_ns", "ended_ns", "asked_ns", "released_ns")


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


@dataclass(frozen=True, eq=False)
class MeasuredCheckpoints(MeasuredRun):
    """All measurements of a checkpoint run."""

    facts: CheckpointRunFacts
    rows: IoRows
    """Rows of all ranks, one per file and one per whole checkpoint, with times by each host's own clock."""
    telemetry: Telemetry = ()

    def write_rows(self) -> None:
        """Write the parquet file of the rows; raises SpaceError."""
        write_table(self.folder, ROWS, rows_table(self.rows, IO_COLUMNS))

    @cached_property
    def whole(self) -> IoRows:
        """The rows of whole checkpoints, one per rank and checkpoint, with times by the first host's clock."""
        return self._by_first_clock(self.rows[self.rows["file"] == WHOLE])

    @cached_property
    def files(self) -> IoRows:
        """The rows of single files, by the same clock."""
        return self._by_first_clock(self.rows[self.rows["file"] != WHOLE])

    @property
    def partial_files(self) -> IoRows:
        """The rows of the files that were complete of the checkpoint under way when the run ended early, if any."""
        under_way, rows = self.facts.journal.under_way, self.rows
        if under_way is None or self.facts.failure is None:
            return rows[:0]
        is_own = (rows["phase"] == PHASES[under_way.phase]) & (rows["checkpoint"] == under_way.checkpoint)
        files: IoRows = rows[is_own & (rows["file"] != WHOLE)]
        return files

    def _by_first_clock(self, rows: IoRows) -> IoRows:
        nodes = self.facts.journal.rank_nodes
        offsets = np.array([self.offset_ns(node) for node in nodes] or [0], np.int64)[rows["rank"]]
        moved = rows.copy()
        for name in _TIME_COLUMNS:
            moved[name] += np.where(rows[name] > 0, offsets, 0)
        return moved

    def offset_ns(self, node: int) -> int:
        """Return the first host's clock minus that of host `node`."""
        offsets = self.facts.journal.clock_offsets_ns
        return offsets[node] if node < len(offsets) else 0

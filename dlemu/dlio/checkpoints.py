"""DLIO's result files for a run that only saves and loads checkpoints.

As in DLIO's `_checkpoint` loop (2026-06), the summary has rank 0's figures, the rate of a checkpoint is the bytes of
all ranks' tensors divided by rank 0's own time, and a mean rate averages the rates of checkpoints (not bytes / time).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dlemu.checkpoints.io_rows import READ, WRITE, IoRows
from dlemu.checkpoints.shards import parameters
from dlemu.dlio.files import GIB
from dlemu.dlio.results import DlioRun, checkpoint_figures
from dlemu.results.exported import ExportedCheckpoints

PHASE_NAMES = {WRITE: "save", READ: "load"}  # phase -> DLIO's name
EPOCH = "1"
# A checkpoint run has no dataset, but DLIO reports its default one: 8 files of 64 KiB.
_DEFAULT_DATASET = {"num_files_train": 8, "num_files_eval": 0, "num_samples_per_file": 1, "epochs": 0}
_DEFAULT_DATASET_GIB = 8 * 64 * 1024 / GIB


@dataclass(frozen=True, kw_only=True)
class DlioCheckpoints(DlioRun):
    """A checkpoint run in DLIO's terms."""

    exported: ExportedCheckpoints
    data_gib_per_host = _DEFAULT_DATASET_GIB

    @cached_property
    def size_gib(self) -> float:
        """Size of one checkpoint, of all ranks of this run: only the bytes of its tensors, as in DLIO."""
        return self.exported.plan.tensor_bytes() / GIB

    def dataset_counts(self) -> dict[str, int]:
        return dict(_DEFAULT_DATASET)

    def rank_rows(self, rank: int) -> IoRows:
        """Return a rank's checkpoints in chronological order."""
        rows: IoRows = self.exported.rows[self.exported.rows["rank"] == rank]
        return rows

    def row_entry(self, row: Any) -> dict[str, Any]:
        """Return a rank's entry of a checkpoint; its rate is all ranks' bytes over the time between its time stamps."""
        seconds = (self.wall_us(row["ended_ns"]) - self.wall_us(row["began_ns"])) / 1e6
        return self.checkpoint_entry(row["began_ns"], row["ended_ns"], seconds, self.size_gib)

    def metrics(self) -> dict[str, Any]:
        """Return the figures of the phases that ran; DLIO (2026) omits the others."""
        figures: dict[str, Any] = {}
        for phase, name in PHASE_NAMES.items():
            rows = [row for row in self.rank_rows(0) if row["phase"] == phase]
            figures |= checkpoint_figures(name, list(map(self.row_entry, rows)))
        return figures | {"checkpoint_size_GB": self.size_gib}

    def rank_stats(self, rank: int) -> dict[str, Any]:
        rows = self.rank_rows(rank)
        start = self.stamp(self.exported.journal.started_ns)
        entries = {f"{PHASE_NAMES[row['phase']]}_ckpt{row['checkpoint']}": self.row_entry(row) for row in rows}
        ended_ns = max(rows["ended_ns"].tolist(), default=self.ended_ns)
        return {EPOCH: {"start": start, **entries, "end": self.stamp(ended_ns)}}

    def rank_epochs(self, rank: int) -> dict[str, Any]:
        steps: dict[str, Any] = {name: {} for name in ("load", "proc", "throughput", "au", "compute")}
        start = self.stamp(self.exported.journal.started_ns)
        return {EPOCH: {"start": start, **steps, "end": self.stamp(self.ended_ns)}}

    def progress_lines(self) -> Iterator[str]:
        """Yield the sizes, then a line when each checkpoint starts and finishes."""
        model, plan = self.exported.workload.model, self.exported.plan
        began = self.stamp(self.exported.journal.started_ns)
        subset = " (subset)" if len(plan.ranks) < plan.grid.ranks else ""
        if subset:
            yield f"{began} Performing subset checkpointing: {len(plan.ranks)} of {plan.grid.ranks}"
        if model.has_layers:
            yield f"{began} Total number of parameters in the model: {parameters(model)}"
            yield f"{began} Model size: {plan.tensor_bytes('model') / GIB:.6f} GB {subset}"
            yield f"{began} Optimizer state size: {plan.tensor_bytes('optimizer') / GIB:.6f} GB {subset}"
        yield f"{began} Total checkpoint size: {self.size_gib:.6f} GB {subset}"
        for row in self.rank_rows(0):
            verb = "saving" if row["phase"] == WRITE else "loading"
            entry = self.row_entry(row)
            action = f"{verb} checkpoint {row['checkpoint']} for epoch {EPOCH}"
            yield f"{entry['start']} Starting {action}"
            speed = f"{entry['duration']:.4f} s; Throughput: {entry['throughput']:.4f} GB/s"
            yield f"{entry['end']} Finished {action} in {speed}"

"""DLIO's result files for a run that only saves and loads checkpoints.

As in DLIO's `_checkpoint` loop (2026-06), the summary has rank 0's figures, a checkpoint's rate is the bytes of all
ranks' tensors divided by rank 0's own time, and a mean rate is the mean of the checkpoints' rates (not bytes / time).
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

KEYS = {WRITE: "save", READ: "load"}  # phase -> DLIO's name for it
EPOCH = "1"
_NO_DATASET = {"num_files_train": 8, "num_files_eval": 0, "num_samples_per_file": 1, "epochs": 0}
_NO_DATASET_GIB = 8 * 64 * 1024 / GIB
"""DLIO's default dataset and its size: DLIO reports these even though a checkpoint run has no dataset."""


@dataclass(frozen=True, kw_only=True)
class DlioCheckpoints(DlioRun):
    """A checkpoint run in DLIO's terms."""

    run: ExportedCheckpoints
    data_gib_per_host = _NO_DATASET_GIB

    @cached_property
    def size_gib(self) -> float:
        """Size of one checkpoint, all ranks of this run together: the bytes of its tensors only, as in DLIO."""
        return self.run.plan.tensor_bytes() / GIB

    def counts(self) -> dict[str, int]:
        return dict(_NO_DATASET)

    def rows_of(self, rank: int) -> IoRows:
        """Return a rank's checkpoints in chronological order."""
        rows: IoRows = self.run.rows[self.run.rows["rank"] == rank]
        return rows

    def entry(self, row: Any) -> dict[str, Any]:
        """Return a checkpoint's time on a rank by its stamps, and all ranks' bytes divided by that time."""
        seconds = (self.us(row["ended_ns"]) - self.us(row["began_ns"])) / 1e6
        return self.checkpoint(row["began_ns"], row["ended_ns"], seconds, self.size_gib)

    def metric(self) -> dict[str, Any]:
        """Return the figures of the phases that ran; DLIO of 2026 omits the others."""
        figures: dict[str, Any] = {}
        for phase, key in KEYS.items():
            rows = [row for row in self.rows_of(0) if row["phase"] == phase]
            figures |= checkpoint_figures(key, list(map(self.entry, rows)))
        return figures | {"checkpoint_size_GB": self.size_gib}

    def stats_of(self, rank: int) -> dict[str, Any]:
        rows = self.rows_of(rank)
        stats: dict[str, Any] = {"start": self.stamp(self.run.journal.started_ns)}
        for row in rows:
            stats[f"{KEYS[row['phase']]}_ckpt{row['checkpoint']}"] = self.entry(row)
        ended_ns = max(rows["ended_ns"].tolist(), default=self.ended_ns)
        return {EPOCH: stats | {"end": self.stamp(ended_ns)}}

    def epochs_of(self, rank: int) -> dict[str, Any]:
        steps: dict[str, Any] = {name: {} for name in ("load", "proc", "throughput", "au", "compute")}
        return {EPOCH: {"start": self.stamp(self.run.journal.started_ns), **steps, "end": self.stamp(self.ended_ns)}}

    def lines(self) -> Iterator[str]:
        """Yield the sizes, then a line when each checkpoint starts and finishes."""
        model, plan = self.run.workload.model, self.run.plan
        began = self.stamp(self.run.journal.started_ns)
        subset = " (subset)" if len(plan.ranks) < plan.grid.ranks else ""
        if subset:
            yield f"{began} Performing subset checkpointing: {len(plan.ranks)} of {plan.grid.ranks}"
        if model.has_layers:
            yield f"{began} Total number of parameters in the model: {parameters(model)}"
            yield f"{began} Model size: {plan.tensor_bytes('model') / GIB:.6f} GB {subset}"
            yield f"{began} Optimizer state size: {plan.tensor_bytes('optimizer') / GIB:.6f} GB {subset}"
        yield f"{began} Total checkpoint size: {self.size_gib:.6f} GB {subset}"
        for row in self.rows_of(0):
            verb, entry = "saving" if row["phase"] == WRITE else "loading", self.entry(row)
            action = f"{verb} checkpoint {row['checkpoint']} for epoch {EPOCH}"
            yield f"{entry['start']} Starting {action}"
            speed = f"{entry['duration']:.4f} s; Throughput: {entry['throughput']:.4f} GB/s"
            yield f"{entry['end']} Finished {action} in {speed}"

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
class DlioCheckpoints(DlioRun[ExportedCheckpoints]):
    """A checkpoint run in DLIO's terms."""

    @cached_property
    def size_gib(self) -> float:
        """Size of one checkpoint, all ranks of this run together: the bytes of its tensors only, as in DLIO."""
        return self.run.plan.tensor_bytes() / GIB

    @property
    def data_gib_per_host(self) -> float:
        """Size of DLIO's default dataset, which is never read."""
        return _NO_DATASET_GIB

    def counts(self) -> dict[str, int]:
        """Return summary.json's numbers of files and epochs: those of DLIO's default dataset."""
        return dict(_NO_DATASET)

    def rows_of(self, rank: int) -> IoRows:
        """Return a rank's checkpoints in chronological order."""
        rows: IoRows = self.run.rows[self.run.rows["rank"] == rank]
        return rows

    def seconds(self, row: Any) -> float:
        """Return how long a checkpoint took, computed from its time stamps."""
        return (self.us(row["ended_ns"]) - self.us(row["began_ns"])) / 1e6

    def rate(self, row: Any) -> float:
        """Return GiB/s: all ranks' bytes divided by the time of the row's rank."""
        seconds = self.seconds(row)
        return self.size_gib / seconds if seconds else 0.0

    def metric(self) -> dict[str, Any]:
        """Return the figures of the phases that ran; DLIO of 2026 omits the others."""
        figures: dict[str, Any] = {}
        for phase, key in KEYS.items():
            rows = [row for row in self.rows_of(0) if row["phase"] == phase]
            figures |= checkpoint_figures(key, list(map(self.rate, rows)), list(map(self.seconds, rows)))
        return figures | {"checkpoint_size_GB": self.size_gib}

    def stats_of(self, rank: int) -> dict[str, Any]:
        """Return each checkpoint's time on this rank, and all ranks' bytes divided by that time."""
        rows = self.rows_of(rank)
        stats: dict[str, Any] = {"start": self.stamp(self.started_ns)}
        for row in rows:
            stats[f"{KEYS[row['phase']]}_ckpt{row['checkpoint']}"] = {
                "start": self.stamp(row["began_ns"]),
                "end": self.stamp(row["ended_ns"]),
                "duration": self.seconds(row),
                "throughput": self.rate(row),
            }
        ended_ns = max(rows["ended_ns"].tolist(), default=self.ended_ns)
        return {EPOCH: stats | {"end": self.stamp(ended_ns)}}

    def epochs_of(self, rank: int) -> dict[str, Any]:
        """Return the single epoch, whose step lists are empty."""
        steps: dict[str, Any] = {name: {} for name in ("load", "proc", "throughput", "au", "compute")}
        return {EPOCH: {"start": self.stamp(self.started_ns), **steps, "end": self.stamp(self.ended_ns)}}

    def lines(self) -> Iterator[str]:
        """Yield the sizes, then a line when each checkpoint starts and finishes."""
        model, plan, began = self.workload.model, self.run.plan, self.stamp(self.started_ns)
        subset = " (subset)" if len(plan.ranks) < plan.grid.ranks else ""
        if subset:
            yield f"{began} Performing subset checkpointing: {len(plan.ranks)} of {plan.grid.ranks}"
        if model.has_layers:
            yield f"{began} Total number of parameters in the model: {parameters(model)}"
            yield f"{began} Model size: {plan.tensor_bytes('model') / GIB:.6f} GB {subset}"
            yield f"{began} Optimizer state size: {plan.tensor_bytes('optimizer') / GIB:.6f} GB {subset}"
        yield f"{began} Total checkpoint size: {self.size_gib:.6f} GB {subset}"
        for row in self.rows_of(0):
            verb = "saving" if row["phase"] == WRITE else "loading"
            action = f"{verb} checkpoint {row['checkpoint']} for epoch {EPOCH}"
            speed = f"{self.seconds(row):.4f} s; Throughput: {self.rate(row):.4f} GB/s"
            yield f"{self.stamp(row['began_ns'])} Starting {action}"
            yield f"{self.stamp(row['ended_ns'])} Finished {action} in {speed}"

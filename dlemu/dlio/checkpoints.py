"""A run of checkpoints alone in DLIO's files.

By DLIO's `_checkpoint` loop (2026-06) the summary's figures are rank 0's, each checkpoint's rate is the bytes of all
ranks' tensors over rank 0's own time, and means are over checkpoints (of rates, not bytes over time).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dlemu.checkpoints.shards import parameters
from dlemu.dlio.files import GIB
from dlemu.dlio.results import DlioRun, checkpoint_figures
from dlemu.results.exported import CheckpointRecord, ExportedCheckpoints, Phase

KEYS: dict[Phase, str] = {"write": "save", "read": "load"}
"""What DLIO calls the phases."""
EPOCH = "1"
_NO_DATASET = {"num_files_train": 8, "num_files_eval": 0, "num_samples_per_file": 1, "epochs": 0}
_NO_DATASET_GIB = 8 * 64 * 1024 / GIB
"""DLIO's defaults of a dataset that a run of checkpoints has not, and their size, which it writes all the same."""


@dataclass(frozen=True, kw_only=True)
class DlioCheckpoints(DlioRun[ExportedCheckpoints]):
    """A run of checkpoints as DLIO has it."""

    @property
    def size_gib(self) -> float:
        """A checkpoint of all ranks here: the bytes of its tensors, as DLIO counts."""
        return self.run.plan.tensor_bytes() / GIB

    @property
    def data_gib_per_host(self) -> float:
        """Of DLIO's default dataset, which nobody reads."""
        return _NO_DATASET_GIB

    def counts(self) -> dict[str, int]:
        """Return summary.json's numbers of files and epochs, of a dataset that is not there."""
        return dict(_NO_DATASET)

    def of_rank(self, rank: int) -> list[CheckpointRecord]:
        """Return a rank's checkpoints in the order of time."""
        return sorted((one for one in self.run.records if one.rank == rank), key=lambda one: one.start_ns)

    def seconds(self, record: CheckpointRecord) -> float:
        """Return how long it took by its stamps."""
        return (self.us(record.end_ns) - self.us(record.start_ns)) / 1e6

    def rate(self, record: CheckpointRecord) -> float:
        """Return GiB/s: all ranks' bytes over the rank's own time."""
        seconds = self.seconds(record)
        return self.size_gib / seconds if seconds else 0.0

    def metric(self) -> dict[str, Any]:
        """Return the figures of the phases that took place; DLIO of 2026 leaves the others out."""
        figures: dict[str, Any] = {}
        for phase, key in KEYS.items():
            own = [record for record in self.of_rank(0) if record.phase == phase]
            figures |= checkpoint_figures(key, list(map(self.rate, own)), list(map(self.seconds, own)))
        return figures | {"checkpoint_size_GB": self.size_gib}

    def stats_of(self, rank: int) -> dict[str, Any]:
        """Return the rank's own times, and the rate of all ranks' bytes over these."""
        records = self.of_rank(rank)
        stats: dict[str, Any] = {"start": self.stamp(self.started_ns)}
        for record in records:
            stats[f"{KEYS[record.phase]}_ckpt{record.checkpoint}"] = {
                "start": self.stamp(record.start_ns),
                "end": self.stamp(record.end_ns),
                "duration": self.seconds(record),
                "throughput": self.rate(record),
            }
        ended_ns = max([record.end_ns for record in records], default=self.ended_ns)
        return {EPOCH: stats | {"end": self.stamp(ended_ns)}}

    def epochs_of(self, rank: int) -> dict[str, Any]:
        """Return the one epoch, which has nothing to say of steps."""
        steps: dict[str, Any] = {name: {} for name in ("load", "proc", "throughput", "au", "compute")}
        return {EPOCH: {"start": self.stamp(self.started_ns), **steps, "end": self.stamp(self.ended_ns)}}

    def lines(self) -> Iterator[str]:
        """Yield sizes, then the checkpoints as they went."""
        model, plan, began = self.workload.model, self.run.plan, self.stamp(self.started_ns)
        subset = " (subset)" if len(plan.ranks) < plan.grid.ranks else ""
        if subset:
            yield f"{began} Performing subset checkpointing: {len(plan.ranks)} of {plan.grid.ranks}"
        if model.has_layers:
            yield f"{began} Total number of parameters in the model: {parameters(model)}"
            yield f"{began} Model size: {plan.tensor_bytes('model') / GIB:.6f} GB {subset}"
            yield f"{began} Optimizer state size: {plan.tensor_bytes('optimizer') / GIB:.6f} GB {subset}"
        yield f"{began} Total checkpoint size: {self.size_gib:.6f} GB {subset}"
        for record in self.of_rank(0):
            doing = {"write": "saving", "read": "loading"}[record.phase]
            what = f"{doing} checkpoint {record.checkpoint} for epoch {EPOCH}"
            yield f"{self.stamp(record.start_ns)} Starting {what}"
            took = f"{self.seconds(record):.4f} s; Throughput: {self.rate(record):.4f} GB/s"
            yield f"{self.stamp(record.end_ns)} Finished {what} in {took}"

"""DLIO's result files for a run that only saves and loads checkpoints.

As in DLIO's `_checkpoint` loop (2026-06), the summary has rank 0's figures, a checkpoint's rate is the bytes of all
ranks' tensors divided by rank 0's own time, and a mean rate is the mean of the checkpoints' rates (not bytes / time).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from dlemu.checkpoints.shards import parameters
from dlemu.dlio.files import GIB
from dlemu.dlio.results import DlioRun, checkpoint_figures
from dlemu.results.exported import CheckpointRecord, ExportedCheckpoints, Phase

KEYS: dict[Phase, str] = {"write": "save", "read": "load"}
"""Phase -> DLIO's name for it."""
EPOCH = "1"
_NO_DATASET = {"num_files_train": 8, "num_files_eval": 0, "num_samples_per_file": 1, "epochs": 0}
_NO_DATASET_GIB = 8 * 64 * 1024 / GIB
"""DLIO's default dataset and its size: DLIO reports these even though a checkpoint run has no dataset."""


@dataclass(frozen=True, kw_only=True)
class DlioCheckpoints(DlioRun):
    """A checkpoint run in DLIO's terms."""

    run: ExportedCheckpoints
    data_gib_per_host = _NO_DATASET_GIB

    @property
    def size_gib(self) -> float:
        """Size of one checkpoint, all ranks of this run together: the bytes of its tensors only, as in DLIO."""
        return self.run.plan.tensor_bytes() / GIB

    def counts(self) -> dict[str, int]:
        return dict(_NO_DATASET)

    def records_of(self, rank: int) -> list[CheckpointRecord]:
        return sorted((record for record in self.run.records if record.rank == rank), key=attrgetter("start_ns"))

    def entry(self, record: CheckpointRecord) -> dict[str, Any]:
        """Return a checkpoint's time on a rank by its stamps, and all ranks' bytes divided by that time."""
        seconds = (self.us(record.end_ns) - self.us(record.start_ns)) / 1e6
        return self.checkpoint(record.start_ns, record.end_ns, seconds, self.size_gib)

    def metric(self) -> dict[str, Any]:
        """Return the figures of the phases that ran; DLIO of 2026 omits the others."""
        figures: dict[str, Any] = {}
        for phase, key in KEYS.items():
            records = [record for record in self.records_of(0) if record.phase == phase]
            figures |= checkpoint_figures(key, list(map(self.entry, records)))
        return figures | {"checkpoint_size_GB": self.size_gib}

    def stats_of(self, rank: int) -> dict[str, Any]:
        records = self.records_of(rank)
        stats: dict[str, Any] = {"start": self.stamp(self.run.journal.started_ns)}
        for record in records:
            stats[f"{KEYS[record.phase]}_ckpt{record.checkpoint}"] = self.entry(record)
        ended_ns = max([record.end_ns for record in records], default=self.ended_ns)
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
        for record in self.records_of(0):
            verb, entry = {"write": "saving", "read": "loading"}[record.phase], self.entry(record)
            action = f"{verb} checkpoint {record.checkpoint} for epoch {EPOCH}"
            yield f"{entry['start']} Starting {action}"
            speed = f"{entry['duration']:.4f} s; Throughput: {entry['throughput']:.4f} GB/s"
            yield f"{entry['end']} Finished {action} in {speed}"

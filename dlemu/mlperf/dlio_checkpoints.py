"""A run of checkpoints alone in DLIO 2.x's files: `summary.json`, `R_per_epoch_stats.json`, `R_output.json`, the log.

Keys, units and formulas are DLIO's (its statscounter and `_checkpoint` loop, 2026-06): what it calls GB is GiB; the
summary's figures are rank 0's, each checkpoint's rate is the bytes of all ranks' tensors over rank 0's own time, means
are over checkpoints (of rates, not bytes over time) and deviations the population's. Times are cut to the microsecond
that DLIO's stamps have before anything is computed of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import fmean, pstdev
from typing import Any

from datagen.atomic import write_text
from dlemu.checkpoints.checkpoint_plan import CheckpointPlan
from dlemu.checkpoints.checkpoint_record import CheckpointRecord, Phase
from dlemu.checkpoints.shards import parameters
from dlemu.config.schema import Workload
from dlemu.emulator.environment import HostFacts
from dlemu.mlperf.dlio_files import LOG, DlioFolders, proc_facts, write_config
from dlemu.mlperf.dlio_results import GIB, stamp

KEYS: dict[Phase, str] = {"write": "save", "read": "load"}
"""What DLIO calls the phases."""
EPOCH = "1"
_NO_DATASET = {"num_files_train": 8, "num_files_eval": 0, "num_samples_per_file": 1}
_NO_DATASET_GIB = 8 * 64 * 1024 / GIB
"""DLIO's defaults of a dataset that a run of checkpoints has not, and their size, which it writes all the same."""
_RULE = "=" * 58


@dataclass(frozen=True, kw_only=True)
class DlioCheckpoints:
    """All that DLIO's files are made from."""

    workload: Workload
    plan: CheckpointPlan
    records: tuple[CheckpointRecord, ...]
    """Of all ranks."""
    hosts: tuple[HostFacts, ...]
    """Of each node, in node order."""
    rank_nodes: tuple[int, ...]
    """Index in `hosts` of each rank's node."""
    started_ns: int
    """On rank 0's monotonic clock, as all times; so `ended_ns`."""
    ended_ns: int
    wall_clock_offset_ns: int
    """What makes nanoseconds since 1970 of it."""
    cpuinfo: dict[str, str] = field(default_factory=dict)
    """/proc/cpuinfo of rank 0's host, the last processor's."""
    meminfo: dict[str, str] = field(default_factory=dict)
    """/proc/meminfo of rank 0's host."""

    @property
    def size_gib(self) -> float:
        """A checkpoint of all ranks here: the bytes of its tensors, as DLIO counts."""
        return self.plan.tensor_bytes() / GIB

    def stamp(self, clock_ns: int) -> str:
        """Return DLIO's time stamp of a moment."""
        return stamp(self._us(clock_ns))

    def seconds(self, record: CheckpointRecord) -> float:
        """Return how long it took by its stamps."""
        return (self._us(record.end_ns) - self._us(record.start_ns)) / 1e6

    def _us(self, clock_ns: int) -> int:
        return (clock_ns + self.wall_clock_offset_ns) // 1000

    def of_rank(self, rank: int) -> list[CheckpointRecord]:
        """Return a rank's checkpoints in the order of time."""
        return sorted((record for record in self.records if record.rank == rank), key=lambda record: record.start_ns)


def write_dlio_checkpoints(folders: DlioFolders, run: DlioCheckpoints) -> None:
    """Write summary.json, both files of each rank, dlio.log and the configuration. Raises SpaceError."""
    folder = folders.folder
    for rank in range(len(run.rank_nodes)):
        write_text(folder, f"{rank}_output.json", json.dumps(checkpoint_output(run, rank), indent=4))
        write_text(folder, f"{rank}_per_epoch_stats.json", json.dumps(checkpoint_stats(run, rank), indent=4))
    write_config(folders, run.workload)
    write_text(folder, LOG, "".join(f"{line}\n" for line in checkpoint_log(run)))
    write_text(folder, "summary.json", json.dumps(checkpoint_summary(run), indent=4))


def with_host_files(run: DlioCheckpoints) -> DlioCheckpoints:
    """Return the run with what /proc says of this host, which is rank 0's."""
    return replace(run, cpuinfo=proc_facts("cpuinfo"), meminfo=proc_facts("meminfo"))


def checkpoint_summary(run: DlioCheckpoints) -> dict[str, Any]:
    """Return summary.json. Figures of a phase that did not take place are left out, as DLIO of 2026 does."""
    return {
        "start": run.stamp(run.started_ns),
        "num_accelerators": len(run.rank_nodes),
        "num_hosts": len(run.hosts),
        "hostname": run.hosts[0].host,
        "metric": _metric(run),
        **_NO_DATASET,
        "host_cpu_count": [host.cpu_count for host in run.hosts],
        "host_processor_name": run.hosts[0].processor,
        "potential_caching": [int(host.memory_bytes / GIB > _NO_DATASET_GIB) for host in run.hosts],
        "host_cpuinfo": run.cpuinfo,
        "host_meminfo": run.meminfo,
        "host_memory_GB": [host.memory_bytes / GIB for host in run.hosts],
        "data_size_per_host_GB": _NO_DATASET_GIB,
        "epochs": 0,
        "end": run.stamp(run.ended_ns),
    }


def _metric(run: DlioCheckpoints) -> dict[str, float]:
    metric: dict[str, float] = {}
    for phase, key in KEYS.items():
        seconds = [run.seconds(record) for record in run.of_rank(0) if record.phase == phase]
        if not seconds:
            continue
        rates = [_rate(run, each) for each in seconds]
        metric |= {
            f"{key}_checkpoint_io_mean_GB_per_second": fmean(rates),
            f"{key}_checkpoint_io_stdev_GB_per_second": pstdev(rates),
            f"{key}_checkpoint_duration_mean_seconds": fmean(seconds),
            f"{key}_checkpoint_duration_stdev_seconds": pstdev(seconds),
        }
    return metric | {"checkpoint_size_GB": run.size_gib}


def _rate(run: DlioCheckpoints, seconds: float) -> float:
    return run.size_gib / seconds if seconds else 0.0


def checkpoint_stats(run: DlioCheckpoints, rank: int) -> dict[str, Any]:
    """Return a rank's R_per_epoch_stats.json: its own times, and the rate of all ranks' bytes over these."""
    records = run.of_rank(rank)
    stats: dict[str, Any] = {"start": run.stamp(run.started_ns)}
    for record in records:
        seconds = run.seconds(record)
        stats[f"{KEYS[record.phase]}_ckpt{record.checkpoint}"] = {
            "start": run.stamp(record.start_ns),
            "end": run.stamp(record.end_ns),
            "duration": seconds,
            "throughput": _rate(run, seconds),
        }
    return {EPOCH: stats | {"end": run.stamp(max([record.end_ns for record in records], default=run.ended_ns))}}


def checkpoint_output(run: DlioCheckpoints, rank: int) -> dict[str, Any]:
    """Return a rank's R_output.json, which has nothing to say of steps."""
    host, here = run.hosts[run.rank_nodes[rank]], run.rank_nodes[rank] == run.rank_nodes[0]
    steps: dict[str, Any] = {name: {} for name in ("load", "proc", "throughput", "au", "compute")}
    return {
        "host_memory_GB": host.memory_bytes / GIB,
        "host_cpu_count": host.cpu_count,
        "host_processor_name": host.processor,
        "potential_caching": int(host.memory_bytes / GIB > _NO_DATASET_GIB),
        "host_cpuinfo": run.cpuinfo if here else {},
        "host_meminfo": run.meminfo if here else {},
        EPOCH: {"start": run.stamp(run.started_ns), **steps, "end": run.stamp(run.ended_ns)},
        "hostname": host.host,
    }


def checkpoint_log(run: DlioCheckpoints) -> Iterator[str]:
    """Yield the lines of dlio.log, `[METRIC]` lines as DLIO labels them."""
    model, grid = run.workload.model, run.plan.grid
    began = run.stamp(run.started_ns)
    subset = " (subset)" if len(run.plan.ranks) < grid.ranks else ""
    yield f"[OUTPUT] {began} a run of dlemu in DLIO's files, ranks: {len(run.rank_nodes)}, hosts: {len(run.hosts)}"
    if subset:
        yield f"[OUTPUT] {began} Performing subset checkpointing: {len(run.plan.ranks)} of {grid.ranks}"
    if model.has_layers:
        yield f"[OUTPUT] {began} Total number of parameters in the model: {parameters(model)}"
        yield f"[OUTPUT] {began} Model size: {run.plan.tensor_bytes('model') / GIB:.6f} GB {subset}"
        yield f"[OUTPUT] {began} Optimizer state size: {run.plan.tensor_bytes('optimizer') / GIB:.6f} GB {subset}"
    yield f"[OUTPUT] {began} Total checkpoint size: {run.size_gib:.6f} GB {subset}"
    for record in run.of_rank(0):
        number, doing = record.checkpoint, {"write": "saving", "read": "loading"}[record.phase]
        seconds = run.seconds(record)
        yield f"[OUTPUT] {run.stamp(record.start_ns)} Starting {doing} checkpoint {number} for epoch {EPOCH}"
        yield (
            f"[OUTPUT] {run.stamp(record.end_ns)} Finished {doing} checkpoint {number} for epoch {EPOCH} in "
            f"{seconds:.4f} s; Throughput: {_rate(run, seconds):.4f} GB/s"
        )
    yield from _metric_lines(run)


def _metric_lines(run: DlioCheckpoints) -> Iterator[str]:
    metric = _metric(run)
    yield f"[METRIC] {_RULE}"
    yield f"[METRIC] Number of Simulated Accelerators: {len(run.rank_nodes)} "
    for key in KEYS.values():
        for label, name, unit in (
            ("duration (seconds)", "duration", "seconds"),
            ("I/O Throughput (GB/second)", "io", "GB_per_second"),
        ):
            start = f"{key}_checkpoint_{name}"
            if f"{start}_mean_{unit}" in metric:
                mean, deviation = metric[f"{start}_mean_{unit}"], metric[f"{start}_stdev_{unit}"]
                yield f"[METRIC] Checkpoint {key} {label}: {mean:.4f} ({deviation:.4f})"
    yield f"[METRIC] {_RULE}"

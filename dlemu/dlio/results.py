"""DLIO 2.x's result files: the contents that training and checkpoint runs have in common, and the writing of the files.

Keys and units are DLIO's (dlio_benchmark's statscounter, 2026-06): its GB and MB are GiB and MiB, and its standard
deviations are those of a population. docs/results.md lists them. Times are truncated to microseconds, the resolution
of DLIO's time stamps, *before* any computation, so that recomputing from the written files gives equal results.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Any

from datagen.atomic import write_text
from dlemu.dlio.config import LOG, DlioFolders
from dlemu.dlio.files import GIB, stamp, write_config
from dlemu.machine.environment import HostFacts
from dlemu.results.exported import ExportedRun

_RULE = "=" * 58
_LABELS = (  # (label in the log, KEY, UNIT) of each metric that summary.json has as KEY_mean_UNIT and KEY_stdev_UNIT
    ("Training Accelerator Utilization [AU] (%)", "train_au", "percentage"),
    ("Training Throughput (samples/second)", "train_throughput", "samples_per_second"),
    ("Training I/O Throughput (MB/second)", "train_io", "MB_per_second"),
    ("Checkpoint save duration (seconds)", "save_checkpoint_duration", "seconds"),
    ("Checkpoint save I/O Throughput (GB/second)", "save_checkpoint_io", "GB_per_second"),
    ("Checkpoint load duration (seconds)", "load_checkpoint_duration", "seconds"),
    ("Checkpoint load I/O Throughput (GB/second)", "load_checkpoint_io", "GB_per_second"),
    ("Eval Accelerator Utilization [AU] (%)", "eval_au", "percentage"),
    ("Eval Throughput (samples/second)", "eval_throughput", "samples_per_second"),
    ("Eval Throughput (MB/second)", "eval_io", "MB_per_second"),
)


@dataclass(frozen=True, kw_only=True)
class DlioRun(ABC):
    """A run in DLIO's terms. `cpuinfo` (of the last processor) and `meminfo` are from /proc on rank 0's host."""

    exported: ExportedRun
    cpuinfo: Mapping[str, str] = field(default_factory=dict)
    meminfo: Mapping[str, str] = field(default_factory=dict)

    @property
    def ended_ns(self) -> int:
        """End of the run on rank 0's monotonic clock; equal to the start if the run did not end."""
        return self.exported.journal.ended_ns or self.exported.journal.started_ns

    def wall_us(self, clock_ns: int) -> int:
        """Return a time of rank 0's monotonic clock, maybe a NumPy integer, as microseconds since 1970, UTC."""
        return (int(clock_ns) + self.exported.journal.wall_clock_offset_ns) // 1000

    def stamp(self, clock_ns: int) -> str:
        """Return a time of rank 0's monotonic clock as DLIO's time stamp."""
        return stamp(self.wall_us(clock_ns))

    def checkpoint_entry(self, started_ns: int, ended_ns: int, seconds: float, gib: float) -> dict[str, Any]:
        """Return the entry of a checkpoint in R_per_epoch_stats.json."""
        rate = gib / seconds if seconds else 0.0
        return {"start": self.stamp(started_ns), "end": self.stamp(ended_ns), "duration": seconds, "throughput": rate}

    @property
    @abstractmethod
    def data_gib_per_host(self) -> float:
        """Value of DLIO's `data_size_per_host_GB`."""

    @abstractmethod
    def metrics(self) -> dict[str, Any]:
        """Return the metrics in summary.json."""

    @abstractmethod
    def dataset_counts(self) -> dict[str, int]:
        """Return the numbers of files and epochs in summary.json."""

    @abstractmethod
    def rank_epochs(self, rank: int) -> dict[str, Any]:
        """Return the entries of a rank's R_output.json, by epoch."""

    @abstractmethod
    def rank_stats(self, rank: int) -> dict[str, Any]:
        """Return a rank's R_per_epoch_stats.json."""

    @abstractmethod
    def progress_lines(self) -> Iterator[str]:
        """Yield the log lines of the run's progress, without the prefix `[OUTPUT]`."""

    def summary(self) -> dict[str, Any]:
        """Return summary.json. Lists about hosts have one value per host, in node order."""
        hosts = self.exported.journal.hosts
        return {
            "start": self.stamp(self.exported.journal.started_ns),
            "num_accelerators": self.exported.ranks,
            "num_hosts": len(hosts),
            "hostname": hosts[0].host,
            "metric": self.metrics(),
            **self.dataset_counts(),
            "host_cpu_count": [host.cpu_count for host in hosts],
            "host_processor_name": hosts[0].processor,
            "potential_caching": [self._may_cache(host) for host in hosts],
            "host_cpuinfo": self.cpuinfo,
            "host_meminfo": self.meminfo,
            "host_memory_GB": [host.memory_bytes / GIB for host in hosts],
            "data_size_per_host_GB": self.data_gib_per_host,
            "end": self.stamp(self.ended_ns),
        }

    def output(self, rank: int) -> dict[str, Any]:
        """Return a rank's R_output.json; the facts from /proc are empty for ranks on other hosts than rank 0's."""
        nodes = self.exported.journal.rank_nodes
        host = self.exported.journal.hosts[nodes[rank]]
        is_rank_0s_host = nodes[rank] == nodes[0]
        return {
            "host_memory_GB": host.memory_bytes / GIB,
            "host_cpu_count": host.cpu_count,
            "host_processor_name": host.processor,
            "potential_caching": self._may_cache(host),
            "host_cpuinfo": self.cpuinfo if is_rank_0s_host else {},
            "host_meminfo": self.meminfo if is_rank_0s_host else {},
            **self.rank_epochs(rank),
            "hostname": host.host,
        }

    def _may_cache(self, host: HostFacts) -> int:
        """Return 1 if the host's memory can hold all the data that its ranks read, else 0."""
        return int(self.data_gib_per_host < host.memory_bytes / GIB)

    def log(self) -> str:
        """Return dlio.log, in which scripts search for metrics by DLIO's labels."""
        sizes = f"ranks: {self.exported.ranks}, hosts: {len(self.exported.journal.hosts)}"
        title = f"{self.stamp(self.exported.journal.started_ns)} a run of dlemu in DLIO's files, {sizes}"
        progress = [title, *self.progress_lines()]
        metrics = self.metrics()
        labelled = [f"Number of Simulated Accelerators: {self.exported.ranks} "]
        for label, key, unit in _LABELS:
            if f"{key}_mean_{unit}" in metrics:
                labelled.append(f"{label}: {metrics[f'{key}_mean_{unit}']:.4f} ({metrics[f'{key}_stdev_{unit}']:.4f})")
        labelled += [f"{key}: {value}" for key, value in metrics.items() if key.endswith("_au_meet_expectation")]
        lines = [f"[OUTPUT] {line}\n" for line in progress]
        lines += [f"[METRIC] {line}\n" for line in (_RULE, *labelled, _RULE)]
        return "".join(lines)


def write_results(folders: DlioFolders, run: DlioRun) -> str:
    """Write summary.json, two files per rank, the configuration and dlio.log; return that log. Raises SpaceError."""
    folder = folders.folder
    for rank in range(run.exported.ranks):
        write_text(folder, f"{rank}_output.json", json.dumps(run.output(rank)), clean=False)
        write_text(folder, f"{rank}_per_epoch_stats.json", json.dumps(run.rank_stats(rank), indent=4), clean=False)
    write_config(folders, run.exported.workload)
    log = run.log()
    write_text(folder, LOG, log)
    write_text(folder, "summary.json", json.dumps(run.summary(), indent=4))  # last: it marks a complete folder
    return log


def checkpoint_figures(name: str, checkpoints: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean and deviation of the checkpoints' GiB/s and seconds; `name` is `save` or `load`."""
    if not checkpoints:
        return {}
    rates = [entry["throughput"] for entry in checkpoints]
    seconds = [entry["duration"] for entry in checkpoints]
    figures = mean_and_deviation(f"{name}_checkpoint_io", "GB_per_second", rates)
    return figures | mean_and_deviation(f"{name}_checkpoint_duration", "seconds", seconds)


def mean_and_deviation(name: str, unit: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}_mean_{unit}": fmean(values), f"{name}_stdev_{unit}": pstdev(values)}

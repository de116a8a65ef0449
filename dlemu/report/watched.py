"""What telemetry saw while the accelerators trained: how busy the hosts were, memory pressure, the devices' queues."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dlemu.emulator.run import RunLog
from dlemu.emulator.steplog import StepRows
from dlemu.metrics.limit import Device
from dlemu.metrics.windows import Window, mean_within
from dlemu.telemetry import HostTelemetry


@dataclass(frozen=True, kw_only=True)
class Watched:
    """None where nobody looked. Of several hosts the busiest counts: all wait for the slowest."""

    busy_percent: float | None = None
    own_percent: float | None = None
    """What the run used of the cores of the busiest host."""
    cpu_limit_cores: float | None = None
    """The CPU limit (cgroup) of the host that used most of its own, and how much that is."""
    cpu_limit_used_percent: float | None = None
    memory_some_percent: float | None = None
    device: Device | None = None


def watched(log: RunLog, rows: StepRows) -> Watched:
    """Return what was seen in the epochs of the training rows."""
    hosts = [(host, _windows(log, rows, host)) for host in log.telemetry]
    cores = [_cores(log, host, windows) for host, windows in hosts]
    busiest = max(cores, key=lambda one: one.busy_percent or 0, default=Watched())
    tightest = max(cores, key=lambda one: one.cpu_limit_used_percent or 0, default=Watched())
    return Watched(
        busy_percent=busiest.busy_percent,
        own_percent=busiest.own_percent,
        cpu_limit_cores=tightest.cpu_limit_cores,
        cpu_limit_used_percent=tightest.cpu_limit_used_percent,
        memory_some_percent=_most(
            mean_within(*host.readings("pressure", "", "memory_some_percent"), windows) for host, windows in hosts
        ),
        device=_device(hosts),
    )


def _windows(log: RunLog, rows: StepRows, host: HostTelemetry) -> list[Window]:
    ranks = [rank for rank, node in enumerate(log.journal.rank_nodes) if node == host.node]
    own = rows[np.isin(rows["rank"], ranks)]
    parts = [own[own["epoch"] == epoch] for epoch in np.unique(own["epoch"])]
    return [(int(part["free_ns"].min()), int(part["met_ns"].max())) for part in parts]


def _cores(log: RunLog, host: HostTelemetry, windows: list[Window]) -> Watched:
    """Return what one host's cores did; time that is neither idle nor waiting for a device is busy, stolen time too."""
    resting = [mean_within(*host.readings("cpu", "", name), windows) for name in ("idle_percent", "iowait_percent")]
    facts = log.journal.hosts[host.node]
    used = _cores_used(host, windows)
    limit: float | None = facts.cpu_limit
    return Watched(
        busy_percent=_known(100.0 - sum(resting)),
        own_percent=_known(100 * used / facts.cpu_count),
        cpu_limit_cores=limit,
        cpu_limit_used_percent=_known(100 * used / limit) if limit else None,
    )


def _cores_used(host: HostTelemetry, windows: list[Window]) -> float:
    """Return how many cores' time the host's ranks used, with all their processes; NaN when nobody looked."""
    used = []
    for rank in host.sources("process"):
        times, seconds = host.readings("process", rank, "cpu_seconds")
        grown = np.diff(seconds) * 1e9 / np.maximum(np.diff(times), 1)
        used.append(mean_within(times, np.concatenate([[0.0], grown]), windows) if len(times) else math.nan)
    return sum(used) if used else math.nan


def _device(hosts: list[tuple[HostTelemetry, list[Window]]]) -> Device | None:
    """Add up the queues of the devices that the dataset lies on; nodes that are one machine see the same ones."""
    depths, busy, seen = [], [], set()
    for host, windows in hosts:
        for facts in host.devices:
            known = host.boot_id, facts.name
            if facts.counted and facts.probe == "block" and known not in seen:
                seen.add(known)
                depths.append(mean_within(*host.readings("block", facts.name, "mean_queue_depth"), windows))
                busy.append(mean_within(*host.readings("block", facts.name, "busy_percent"), windows))
    if not depths or any(math.isnan(depth) for depth in depths):
        return None
    return Device(mean_depth=sum(depths), busy_percent=max(busy))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _most(values: Iterable[float]) -> float | None:
    return max((value for value in values if not math.isnan(value)), default=None)

"""The telemetry part of summary.json, and the device figures among its metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from dlemu.emulator.run import RunLog
from dlemu.emulator.steplog import TRAINING, StepRows
from dlemu.metrics.device import Delivered, device_metrics, mean_between
from dlemu.metrics.rates import per_second
from dlemu.telemetry import DeviceFacts, HostTelemetry, Telemetry

_DELIVERED = "read_mb_per_second"


def describe_telemetry(log: RunLog | None) -> dict[str, Any] | None:
    """Return what was recorded and by whom; None when nothing was."""
    if log is None or not log.telemetry:
        return None
    hosts = log.telemetry
    return {
        "interval_seconds": hosts[0].interval_seconds,
        "probes": sorted({name for host in hosts for name in host.probes}),
        "devices": [{"host": host.host} | asdict(device) for host, device in _devices(hosts)],
        "notes": _notes(hosts),
        "recorders": [
            {
                "host": host.host,
                "readings": len(host.value),
                "cpu_percent": 100 * host.cpu_seconds / host.seconds if host.seconds else None,
            }
            for host in hosts
        ],
        "clock_offsets_ns": [list(offsets) for offsets in log.journal.clock_offsets_ns],
        "power": list(_power(log)),
    }


def _devices(hosts: Telemetry) -> Iterator[tuple[HostTelemetry, DeviceFacts]]:
    """Yield each device and who saw it. One that several nodes see (containers of one machine) counts once."""
    seen = set()
    for host in hosts:
        for device in host.devices:
            known = host.boot_id, device.name
            yield host, replace(device, counted=device.counted and known not in seen)
            seen.add(known)


def measure_devices(log: RunLog, rows: StepRows) -> dict[str, Any]:
    """Return the device figures of the training rows; empty when there are no rows."""
    return device_metrics(rows, list(_delivered(log))) if len(rows) else {}


def _power(log: RunLog) -> Iterator[dict[str, Any]]:
    """Yield each meter's mean in training, and what the run read for it."""
    rows = log.rows[log.rows["phase"] == TRAINING]
    gb_per_second = per_second(float(rows["app_bytes"].sum()) / 1e9, rows)
    for host in log.telemetry:
        for source in host.sources("power"):
            watts = mean_between(*host.readings("power", source, "watts"), *_training_ends(log, rows, host))
            share = gb_per_second / watts if watts else None
            yield {"host": host.host, "source": source, "mean_watts": watts, "gb_per_second_per_watt": share}


def _training_ends(log: RunLog, rows: StepRows, host: HostTelemetry) -> tuple[int, int]:
    """Return when training began and ended by the host's clock."""
    own = rows[np.isin(rows["rank"], ranks_on(log, host))]
    return (int(own["free_ns"].min()), int(own["met_ns"].max())) if len(own) else (0, 0)


def ranks_on(log: RunLog, host: HostTelemetry) -> tuple[int, ...]:
    """Return the ranks whose stamps are on the host's clock."""
    return tuple(rank for rank, node in enumerate(log.journal.rank_nodes) if node == host.node)


def _notes(hosts: Telemetry) -> list[str]:
    """Return what the recorders had to say; a sentence of one of several hosts begins with its name."""
    said: dict[str, list[str]] = {}
    for host in hosts:
        for note in host.notes:
            said.setdefault(note, []).append(host.host)
    return [note if len(names) == len(hosts) else f"{', '.join(names)}: {note}" for note, names in said.items()]


def _delivered(log: RunLog) -> Iterator[Delivered]:
    """Yield each device that counts."""
    for host, device in _devices(log.telemetry):
        if device.counted:
            times, rates = host.readings(device.probe, device.name, _DELIVERED)
            yield Delivered(ranks_on(log, host), times, rates)

"""What the device did in a run, from its telemetry: null where there is none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class DeviceFigures:
    """Over the devices whose bytes are the dataset's (`counted`, docs/telemetry.md)."""

    max_device_mb_per_second: float | None
    """The most in one interval of the telemetry."""
    mean_device_read_latency_ms: float | None
    """Mean over reads."""


NOTHING = DeviceFigures(max_device_mb_per_second=None, mean_device_read_latency_ms=None)


def device_figures(run_folder: str, devices: Sequence[dict[str, Any]]) -> DeviceFigures:
    """Read a run's telemetry.parquet for the devices that its summary lists; without either there are no figures."""
    path = os.path.join(run_folder, "telemetry.parquet")
    if not os.path.exists(path):
        return NOTHING
    import pyarrow.parquet as pq

    counted = {(one["probe"], one["host"], one["name"]) for one in devices if one["counted"]}
    read = pq.read_table(path, columns=["time_ns", "host", "probe", "source", "metric", "value"])
    table = [row for row in read.to_pylist() if (row["probe"], row["host"], row["source"]) in counted]
    rates = _series(table, "read_mb_per_second")
    reads, latency = _series(table, "reads_per_second"), _series(table, "mean_read_latency_ms")
    totals: dict[int, float] = {}
    for (_, _, time_ns), value in rates.items():
        totals[time_ns] = totals.get(time_ns, 0.0) + value
    shared = [key for key in latency if reads.get(key, 0) > 0 and np.isfinite(latency[key])]
    weights = [reads[key] for key in shared]
    mean = float(np.average([latency[key] for key in shared], weights=weights)) if shared else None
    return DeviceFigures(max_device_mb_per_second=max(totals.values(), default=None), mean_device_read_latency_ms=mean)


def _series(table: list[dict[str, Any]], metric: str) -> dict[tuple[str, str, int], float]:
    """Return host, source and time -> value."""
    rows = [row for row in table if row["metric"] == metric]
    return {(row["host"], row["source"], row["time_ns"]): row["value"] for row in rows}

"""Queue depth and latency by dlemu's block probe, compared with fio's, on the same drive at the same time."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.processes import running

from dlemu.telemetry.block import Probe
from dlemu.telemetry.probe_base import Scope
from validation.bed import Bed
from validation.check import Check
from validation.drive import Speed

SPEED = Speed(read_bytes_per_second=100_000_000)
FILE_BYTES = 512 << 20
JOBS = ((1, 256), (4, 256), (16, 128))
"""Number of requests that fio keeps in flight, and KiB of each."""
SETTLE_SECONDS, WATCH_SECONDS, MARGIN_SECONDS = 2.0, 4.0, 3.0


def why_no_fio() -> str | None:
    """Return why this can't be measured on this host; None if it can."""
    return None if shutil.which("fio") else "fio is not here: apt-get install fio"


def measure(bed: Bed) -> Iterator[Check]:
    """Compare both on random direct reads at several depths."""
    path = os.path.join(bed.drive.folder, "fio")
    with open(path, "wb") as file:
        for _ in range(FILE_BYTES >> 20):
            file.write(os.urandom(1 << 20))
    bed.drive.set_speed(SPEED)
    bed.drive.forget_cache()
    for depth, kib in JOBS:
        job, device = _watched(bed, path, depth, kib)
        case = f"{depth} requests of {kib} KiB in flight"
        latency_ms = job["lat_ns"]["mean"] / 1e6
        for what, theory, metric, unit in (
            ("mean queue depth / fio's", float(depth), "mean_queue_depth", ""),
            ("mean read latency / fio's", latency_ms, "mean_read_latency_ms", "ms"),
            ("MB/s / fio's", job["bw_bytes"] / 1e6, "read_mb_per_second", "MB/s"),
        ):
            yield Check(case, what, theory, device.get(metric), unit, within=10, percent=True)
    os.unlink(path)


def _watched(bed: Bed, path: str, depth: int, kib: int) -> tuple[dict[str, Any], dict[str, float]]:
    """Run fio and, in the middle of it, the probe; return what both measured."""
    seconds = SETTLE_SECONDS + WATCH_SECONDS + MARGIN_SECONDS
    options = {
        "name": "read",
        "filename": path,
        "rw": "randread",
        "direct": "1",
        "ioengine": "libaio",
        "iodepth": str(depth),
        "bs": f"{kib}k",
        "time_based": "1",
        "runtime": f"{seconds:g}",
        "output-format": "json",
    }
    probe = Probe(Scope(folders=(bed.drive.folder,)))
    with running(bed.drive.command(["fio", *(f"--{name}={value}" for name, value in options.items())])) as fio:
        time.sleep(SETTLE_SECONDS)
        list(probe.read(time.monotonic_ns()))
        time.sleep(WATCH_SECONDS)
        readings = list(probe.read(time.monotonic_ns()))
        fio.end()
        job = json.loads(fio.output)["jobs"][0]["read"]
    return job, {reading.metric: reading.value for reading in readings if reading.source == bed.drive.device}

"""Folders of results made by hand, with telemetry and a block trace, for tests of pages and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dlemu.emulator.files import write_text
from dlemu.emulator.job import Job
from dlemu.emulator.run import RunLog
from dlemu.report.folder import write_steps, write_summary
from dlemu.report.summary import build_summary
from tests.runs import make_job, make_log

HOST = "node0"


def write_run(folder: Path, *, telemetry: bool = True, changes: dict[str, Any] | None = None, **job: Any) -> Path:
    """Write the folder of a complete run; `changes` replace keys of its summary, `job` is `make_job`'s."""
    clocks = {key: job.pop(key) for key in ("rank_nodes", "skew_ns") if key in job}
    made = make_job(**job)
    log = make_log(made, **clocks)
    summary = build_summary(made, log) | (changes or {})
    write_summary(str(folder), summary)
    write_steps(str(folder), log.rows)
    write_text(str(folder), "config.yaml", "workload: handmade\nranks: 2\n")
    if telemetry:
        pq.write_table(telemetry_of(made, log), folder / "telemetry.parquet")
        pq.write_table(block_trace(), folder / "block_trace.parquet")
    return folder


def telemetry_of(job: Job, log: RunLog, interval_ns: int = 100_000_000) -> pa.Table:
    """Readings of every probe that a figure looks at, over the whole run."""
    random = np.random.default_rng(1)
    rows: list[tuple[int, str, str, str, str, float]] = []
    first, last = int(log.rows["free_ns"].min()), int(log.rows["free_ns"].max())
    for time_ns in range(first - interval_ns, last + interval_ns, interval_ns):
        for probe, source, metric, least, most in _READINGS:
            rows.append((time_ns, HOST, probe, source, metric, float(random.uniform(least, most))))
    return _long(rows)


def _long(rows: list[tuple[int, str, str, str, str, float]]) -> pa.Table:
    names = ("time_ns", "host", "probe", "source", "metric", "value")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    words = {name: pa.array(columns[name]).dictionary_encode() for name in names[1:-1]}
    return pa.table({"time_ns": columns["time_ns"]} | words | {"value": columns["value"]})


def block_trace() -> pa.Table:
    """Bins of each kind, for two devices that share them."""
    rows: list[tuple[str, str, str, str, float, float, float]] = []
    for device in ("nvme0n1", "nvme1n1"):
        rows += [(HOST, device, "read", "queue_depth_seconds", float(n), n + 1.0, 1.0 + n % 3) for n in range(40)]
        rows += [(HOST, device, "read", "latency_us", 2.0**n, 2.0 ** (n + 1), 100.0 - 5 * n) for n in range(4, 16)]
        rows += [(HOST, device, "write", "latency_us", 2.0**n, 2.0 ** (n + 1), 10.0) for n in range(3, 8)]
        rows += [(HOST, device, "read", "request_kib", 4.0 * 2**n, 8.0 * 2**n, 1.0 + n**3) for n in range(6)]
    names = ("host", "device", "operation", "kind", "low", "high", "weight")
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


_READINGS = (
    ("block", "nvme0n1", "read_mb_per_second", 0, 90),
    ("block", "nvme0n1", "mean_queue_depth", 0, 30),
    ("block", "nvme0n1", "in_flight", 0, 30),
    ("trace", "nvme0n1", "queue_depth_read", 0, 40),
    ("trace", "nvme0n1", "queue_depth_write", 0, 3),
    ("cpu", "", "user_percent", 10, 40),
    ("cpu", "", "system_percent", 5, 20),
    ("cpu", "", "iowait_percent", 0, 30),
    ("cpu", "", "steal_percent", 0, 2),
    ("pressure", "", "cpu_some_percent", 0, 10),
    ("pressure", "", "io_some_percent", 20, 60),
    ("pressure", "", "memory_some_percent", 0, 1),
    ("memory", "", "used_mb", 8000, 9000),
    ("memory", "", "page_cache_mb", 20000, 30000),
    ("power", "package-0", "watts", 90, 130),
    ("power", "nvme0", "watts", 8, 12),
)

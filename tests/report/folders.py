"""Folders of results made by hand, with telemetry and a block trace, for tests of pages and figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dlemu.emulator.files import write_text
from dlemu.emulator.job import Job
from dlemu.emulator.trainer import RunLog
from dlemu.report.folder import write_steps, write_summary
from dlemu.report.summary import build_summary
from dlemu.results.folder import write_run as write_result
from dlemu.results.run import make_run
from tests.runs import make_job, make_log

HOST = "node0"


def write_run(folder: Path, *, telemetry: bool = True, changes: dict[str, Any] | None = None, **job: Any) -> Path:
    """Write the folder of a complete run; `changes` replace keys of its summary, `job` is `make_job`'s."""
    clocks = {key: job.pop(key) for key in ("rank_nodes", "skew_ns") if key in job}
    made = make_job(**job)
    log = make_log(made, **clocks)
    write_result(make_run(replace(made, folder=str(folder)), log))
    summary = build_summary(made, log) | (changes or {})
    write_summary(str(folder), summary)
    write_steps(str(folder), log.rows)
    write_text(str(folder), "config.yaml", "workload: handmade\nranks: 2\n")
    if telemetry:
        pq.write_table(telemetry_of(made, log), folder / "telemetry.parquet")
        pq.write_table(block_trace(), folder / "block_trace.parquet")
    return folder


def telemetry_of(job: Job, log: RunLog, interval_ns: int = 100_000_000) -> pa.Table:
    """Readings of every probe that a figure looks at, over the whole run, on each host by its own clock."""
    random = np.random.default_rng(1)
    rows: list[tuple[int, str, str, str, str, float]] = []
    for node, host in enumerate(log.journal.hosts):
        stamps = log.rows["free_ns"][
            np.isin(log.rows["rank"], np.flatnonzero(np.array(log.journal.rank_nodes) == node))
        ]
        for time_ns in range(int(stamps.min()) - interval_ns, int(stamps.max()) + interval_ns, interval_ns):
            for probe, source, metric, least, most in _READINGS:
                value = float(random.uniform(least, most))
                rows.append((time_ns, host.host, probe, source, metric, (1 + node / 4) * value))
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
    ("block", "nvme0n1", "reads_per_second", 500, 500),
    ("block", "nvme0n1", "mean_read_latency_ms", 8, 8),
    ("block", "nvme0n1", "writes_per_second", 0, 0),
    ("block", "nvme0n1", "mean_write_latency_ms", 0, 0),
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


def write_size(folder: Path) -> Path:
    """Write what a search for the largest count leaves (docs/sizing.md): 8 accelerators pass, 9 do not."""
    trials = [_trial(count, au) for count, au in ((4, 99.6), (8, 98.4), (9, 88.0), (9, 88.4), (8, 97.9))]
    counts = [_count(4, 99.6, True), _count(8, 98.15, True), _count(9, 88.2, False)]
    answer = {
        "schema_version": 1,
        "complete": True,
        "question": {"workload": "handmade", "accelerator": "h100", "overrides": ["ranks=1"], "launcher": ""},
        "hosts": [HOST],
        "verdict": "8 x h100 pass (au 98.2 % +- 0.8), 9 fail (88.2 % +- 0.8): limited by storage",
        "max_accelerators": 8,
        "at_least": None,
        "passed": True,
        "threshold_percent": 90.0,
        "limited_by": {"what": "storage", "evidence": ["the device was busy 99 % of the time"]},
        "edge": {"pass": counts[1], "fail": counts[2]},
        "for_one_more": {"accelerators": 9, "wanted_mb_per_second": 81.0, "most_delivered_mb_per_second": 77.5},
        "counts": counts,
        "probe_mb_per_second": 80.0,
        "trials": trials,
        "issues": [],
        "seconds": 75.0,
        "naive_seconds": 900.0,
    }
    _write_json(folder, "size.json", answer)
    write_run(folder / "trial-01", telemetry=False)
    return folder


def write_sweep(folder: Path) -> Path:
    """Write what a sweep of two drives over accelerators leaves, with one point that failed."""
    points = [
        {
            "settings": {"dataset.data_folder": drive, "ranks": str(ranks)},
            "folder": f"{drive}-{ranks}",
            "failure": None,
            "figures": _figures(ranks, most),
        }
        for drive, most in (("fast", 700.0), ("slow", 450.0))
        for ranks in (1, 2, 4, 8, 16)
    ]
    points.append({"settings": {"ranks": "32"}, "folder": "x", "failure": "no memory for 32 ranks", "figures": None})
    question = {"overrides": ["ranks=1,2,4,8,16"], "launcher": ""}
    _write_json(folder, "sweep.json", {"schema_version": 1, "complete": True, "question": question, "points": points})
    return folder


def _trial(accelerators: int, au_percent: float) -> dict[str, Any]:
    rates = {"samples_per_second": 10.0 * accelerators, "app_mb_per_second": 9.7 * accelerators}
    known = {"ceiling_au_percent": 99.5, "device_mb_per_second": 9.8 * accelerators, "seconds": 15.0}
    told = {"accelerators": accelerators, "folder": "trial-01", "au_percent": au_percent, "half_width_percent": 0.9}
    return (
        told
        | rates
        | known
        | {"settled": True, "limited_by": {"what": "storage", "confidence": "high", "evidence": []}}
    )


def _count(accelerators: int, au_percent: float, passed: bool) -> dict[str, Any]:
    told = {"accelerators": accelerators, "au_percent": au_percent, "half_width_percent": 0.8}
    return told | {"settled": True, "passed": passed, "trials": 2}


def _figures(ranks: int, most_mb: float) -> dict[str, Any]:
    mb = min(most_mb, 60.0 * ranks)
    au = 100 * mb / (60.0 * ranks)
    return {
        "workload": "handmade",
        "accelerator": "v100",
        "ranks": ranks,
        "epochs": 5,
        "passed": au >= 90,
        "verdict": "",
        "limited_by": {"what": "storage" if au < 90 else "nothing", "confidence": "high", "evidence": []},
        "total_seconds": 100 / min(au, 99.0) * 100,
        "au_percent": {"mean": au, "per_epoch": [au] * 5},
        "samples_per_second": {"mean": mb / 2, "per_epoch": [mb / 2] * 5},
        "app_mb_per_second": {"mean": mb, "per_epoch": [mb] * 5},
        "device_mb_per_second": {"mean": mb, "per_epoch": [mb] * 5},
        "max_device_mb_per_second": 1.2 * mb,
        "mean_device_read_latency_ms": 0.2 + ranks / 10,
        "ceiling_au_percent": 99.0,
    }


def _write_json(folder: Path, name: str, value: dict[str, Any]) -> None:
    write_text(str(folder), name, json.dumps(value))

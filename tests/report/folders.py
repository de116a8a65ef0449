"""Results made by hand, with telemetry, for tests of pages and figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tests.runs
from datagen.atomic import write_text
from dlemu.jobs.training.result import Run, RunLog, make_run
from dlemu.telemetry import DeviceFacts, HostTelemetry
from tests.runs import host_readings, make_job, make_log

HOST = "node0"
DISK = DeviceFacts(probe="block", name="nvme0n1", kind="disk", counted=True, size_bytes=1 << 40, model="fast")


def hand_made_run(*, folder: str = "results/x", telemetry: bool = True, failure: str | None = None, **job: Any) -> Run:
    """A run, complete unless it has a `failure`; `job` is `make_job`'s and `make_log`'s."""
    clocks = {key: job.pop(key) for key in ("rank_nodes", "skew_ns") if key in job}
    made = make_job(folder=folder, **job)
    log = make_log(made, **clocks)
    return make_run(made, replace(log, telemetry=telemetry_of(log)) if telemetry else log, failure)


def with_summary(run: Run, **changes: Any) -> Run:
    """The run with another summary than its own, to see what is made of it."""
    changed = replace(run)
    vars(changed)["summary"] = replace(run.summary, **changes)
    return changed


def write_run(folder: Path, **run: Any) -> Path:
    """Write the folder of a `hand_made_run`."""
    tests.runs.write_run(hand_made_run(folder=str(folder), **run))
    return folder


def telemetry_of(log: RunLog, interval_ns: int = 100_000_000) -> tuple[HostTelemetry, ...]:
    """Readings of every probe that a figure looks at, over the whole run, on each host by its own clock."""
    random = np.random.default_rng(1)
    hosts = []
    for node, host in enumerate(log.journal.hosts):
        ranks = np.flatnonzero(np.array(log.journal.rank_nodes) == node)
        stamps = log.rows["free_ns"][np.isin(log.rows["rank"], ranks)]
        times = np.arange(stamps.min() - interval_ns, stamps.max() + interval_ns, interval_ns)
        least, most = (np.array([reading[place] for reading in _READINGS], np.float64) for place in (3, 4))
        values = (1 + node / 4) * random.uniform(least, most, (len(times), len(_READINGS)))
        columns = dict(zip((reading[:3] for reading in _READINGS), values.T, strict=True))
        hosts.append(
            host_readings(node, times, columns, host=host.host, devices=(DISK,), interval_seconds=interval_ns / 1e9)
        )
    return tuple(hosts)


_READINGS = (
    ("block", "nvme0n1", "read_mb_per_second", 0, 90),
    ("block", "nvme0n1", "mean_queue_depth", 0, 30),
    ("block", "nvme0n1", "in_flight", 0, 30),
    ("block", "nvme0n1", "reads_per_second", 500, 500),
    ("block", "nvme0n1", "mean_read_latency_ms", 8, 8),
    ("block", "nvme0n1", "writes_per_second", 0, 0),
    ("block", "nvme0n1", "mean_write_latency_ms", 0, 0),
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
        "question": {"workload": "handmade", "accelerator": "h100", "overrides": ["ranks=1"], "settings_digest": ""},
        "verdict": "8 x h100 pass (AU 98.2 % +- 0.8), 9 fail (88.2 % +- 0.8): limited by storage",
        "max_accelerators": 8,
        "at_least": None,
        "outcome": "pass",
        "limited_by": {"what": "storage", "evidence": ["the device was busy 99 % of the time"]},
        "wanted_mb_per_second": 81.0,
        "counts": counts,
        "probe_mb_per_second": 80.0,
        "trials": trials,
        "issues": [],
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
    settings = {"dataset.data_folder": "slow", "ranks": "32"}
    points.append(
        {"settings": settings, "folder": "x", "failure": "no memory for 32 ranks\nuse fewer", "figures": None}
    )
    question = {"overrides": ["ranks=1,2,4,8,16"], "settings_digest": ""}
    _write_json(folder, "sweep.json", {"schema_version": 1, "complete": True, "question": question, "points": points})
    return folder


def _trial(accelerators: int, au_percent: float) -> dict[str, Any]:
    metrics = {"samples_per_second": 10.0 * accelerators, "app_mb_per_second": 9.7 * accelerators}
    metrics |= {"ceiling_au_percent": 99.5, "device_mb_per_second": 9.8 * accelerators}
    return {
        "accelerators": accelerators,
        "folder": "trial-01",
        "au_sustained_percent": au_percent,
        "half_width_percent": 0.9,
        "seconds": 15.0,
        "settled": True,
        "limited_by": _limit("storage"),
        "figures": {
            "kind": "training",
            "workload": "handmade",
            "ranks": accelerators,
            "metrics": {name: {"mean": value} for name, value in metrics.items()},
        },
    }


def _limit(what: str) -> dict[str, Any]:
    return {"what": what, "confidence": "high", "evidence": [f"by {what}"], "advice": []}


def _count(accelerators: int, au_percent: float, passed: bool) -> dict[str, Any]:
    count = {"accelerators": accelerators, "au_sustained_percent": au_percent, "half_width_percent": 0.8}
    return count | {"passed": passed, "trials": 2}


def _figures(ranks: int, most_mb: float) -> dict[str, Any]:
    mb = min(most_mb, 60.0 * ranks)
    au = 100 * mb / (60.0 * ranks)
    of_epochs = {"au_percent": au, "samples_per_second": mb / 2, "app_mb_per_second": mb, "device_mb_per_second": mb}
    of_runs = {
        "total_seconds": 100 / min(au, 99.0) * 100,
        "max_device_mb_per_second": 1.2 * mb,
        "mean_device_read_latency_ms": 0.2 + ranks / 10,
        "ceiling_au_percent": 99.0,
    }
    return {
        "kind": "training",
        "workload": "handmade",
        "accelerator": "v100",
        "ranks": ranks,
        "epochs": 5,
        "outcome": "pass" if au >= 90 else "fail",
        "limited_by": {"run": "storage" if au < 90 else "nothing"},
        "metrics": {name: {"mean": mean, "half_width": None} for name, mean in of_runs.items()}
        | {name: {"mean": mean, "half_width": 0.0} for name, mean in of_epochs.items()},
    }


def _write_json(folder: Path, name: str, value: dict[str, Any]) -> None:
    write_text(str(folder), name, json.dumps(value))

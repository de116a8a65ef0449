"""Makes results with telemetry, without running anything, for tests of pages and figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tests.runs
from dlemu.jobs.training.result import Run, RunLog
from dlemu.metrics.catalogue import RUN
from dlemu.metrics.limit import Limit
from dlemu.results.answer_files import save_answer
from dlemu.results.figures import JobFigures, Value
from dlemu.studies.answers import SIZE, SWEEP, SweepAnswer, SweepPoint, SweepQuestion
from dlemu.studies.size.size_verdict import build_answer, sentence
from dlemu.telemetry import DeviceFacts, HostTelemetry
from tests.results import handmade
from tests.runs import make_job, make_log, make_run
from tests.sizing.fakes import known, make_trial, question

HOST = "node0"
DISK = DeviceFacts(probe="block", name="nvme0n1", kind="disk", counted=True, size_bytes=1 << 40, model="fast")


def hand_made_run(*, folder: str = "results/x", telemetry: bool = True, failure: str | None = None, **job: Any) -> Run:
    """Return a run, complete unless it has a `failure`; `job` has arguments of `make_job` and `make_log`."""
    clocks = {key: job.pop(key) for key in ("rank_nodes", "skew_ns") if key in job}
    whole_job = make_job(folder=folder, **job)
    log = make_log(whole_job, **clocks)
    return make_run(whole_job, replace(log, telemetry=telemetry_of(log)) if telemetry else log, failure)


def with_summary(run: Run, **changes: Any) -> Run:
    changed = replace(run)
    vars(changed)["summary"] = replace(run.summary, **changes)
    return changed


def write_run(folder: Path, **run: Any) -> Path:
    tests.runs.write_run(hand_made_run(folder=str(folder), **run))
    return folder


def telemetry_of(log: RunLog) -> tuple[HostTelemetry, ...]:
    """Return telemetry of all probes that figures use, over the whole run, on each host by its own clock."""
    hosts = []
    for node, facts in enumerate(log.journal.hosts):
        ranks = np.flatnonzero(np.array(log.journal.rank_nodes) == node)
        stamps = log.rows["free_ns"][np.isin(log.rows["rank"], ranks)]
        hosts.append(handmade.host(stamps.min(), stamps.max(), node, _READINGS, devices=(DISK,), host=facts.host))
    return tuple(hosts)


_OF_DISK = {"read_mb_per_second": 45.0, "mean_queue_depth": 15.0, "in_flight": 15.0, "reads_per_second": 500.0}
_OF_DISK |= {"mean_read_latency_ms": 8.0, "writes_per_second": 0.0, "mean_write_latency_ms": 0.0}
_OF_PROBES: dict[tuple[str, str], dict[str, float]] = {
    ("block", "nvme0n1"): _OF_DISK,
    ("cpu", ""): {"user_percent": 25.0, "system_percent": 12.0, "iowait_percent": 15.0, "steal_percent": 1.0},
    ("pressure", ""): {"cpu_some_percent": 5.0, "io_some_percent": 40.0, "memory_some_percent": 0.5},
    ("memory", ""): {"used_mb": 8500.0, "page_cache_mb": 25000.0},
    ("power", "package-0"): {"watts": 110.0},
    ("power", "nvme0"): {"watts": 10.0},
}
_READINGS = {(*of, name): value for of, values in _OF_PROBES.items() for name, value in values.items()}


def write_size(folder: Path) -> Path:
    """Write the result of a search for the largest count (docs/sizing.md): 8 accelerators pass, 9 do not."""
    limit = Limit(what="storage", confidence="high", evidence=("the device was busy 99 % of the time",))
    tried = ((4, 99.6), (8, 98.4), (9, 88.0), (9, 88.4), (8, 97.9))
    trials = [make_trial(count, [au - 1, au + 1] * 4, limited_by=limit, folder="trial-01") for count, au in tried]
    answer = build_answer(question(workload="handmade"), known(), trials)
    save_answer(str(folder), SIZE, replace(answer, complete=True, verdict=sentence(answer), outcome="pass"))
    write_run(folder / "trial-01", telemetry=False)
    return folder


def write_sweep(folder: Path) -> Path:
    """Write the result of a sweep over accelerators on two drives, with one failed point."""

    def point(drive: str, ranks: int, figures: JobFigures | None) -> SweepPoint:
        settings = {"dataset.data_folder": drive, "ranks": str(ranks)}
        failure = None if figures else "no memory for 32 ranks\nuse fewer"
        return SweepPoint(settings=settings, folder=f"{drive}-{ranks}", figures=figures, failure=failure)

    drives = (("fast", 700.0), ("slow", 450.0))
    points = [point(drive, ranks, _figures(ranks, most)) for drive, most in drives for ranks in (1, 2, 4, 8, 16)]
    swept = (*points, point("slow", 32, None))
    save_answer(
        str(folder), SWEEP, SweepAnswer(complete=True, question=SweepQuestion(settings_digest=""), points=swept)
    )
    return folder


def _figures(ranks: int, most_mb: float) -> JobFigures:
    mb = min(most_mb, 60.0 * ranks)
    au = 100 * mb / (60.0 * ranks)
    names = ("samples_per_second", "app_mb_per_second", "device_mb_per_second", "max_device_mb_per_second")
    metrics = dict.fromkeys(names, mb) | {"mean_device_read_latency_ms": 0.2 + ranks / 10, "ceiling_au_percent": 99.0}
    values = {name: Value(value) for name, value in metrics.items()}
    values |= {"au_percent": Value(au, 0.0), "total_seconds": Value(1e4 / min(au, 99.0))}
    outcome, limit = ("pass", "nothing") if au >= 90 else ("fail", "storage")
    return JobFigures(
        kind="training",
        workload="handmade",
        accelerator="v100",
        ranks=ranks,
        epochs=5,
        outcome=outcome,  # type: ignore[arg-type]
        limited_by={RUN: limit},
        metrics=values,
    )

"""summary.json: the run in one versioned mapping (docs/results.md says what each key means)."""

from __future__ import annotations

import math
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from dlemu.emulator.audit import audit_epoch
from dlemu.emulator.job import Job
from dlemu.emulator.journal import Journal
from dlemu.emulator.run import RunLog
from dlemu.emulator.steplog import EVALUATION, TRAINING, StepRows
from dlemu.metrics.rates import per_second, training_ns
from dlemu.metrics.summary import MB, training_metrics
from dlemu.metrics.verdict import Evidence, flattery, judge
from dlemu.report.diagnosis import diagnose
from dlemu.report.telemetry import describe_telemetry, measure_devices

SCHEMA_VERSION = 1


def build_summary(job: Job, log: RunLog | None, failure: str | None = None) -> dict[str, Any]:
    """Return the summary of a run; of one that failed, what was measured up to then, marked `"complete": false`."""
    workload = job.workload
    rows = None if log is None else log.rows[log.rows["phase"] == TRAINING]
    journal = None if log is None else log.journal
    metrics = {} if rows is None else training_metrics(rows, workload.metric)
    devices = {} if log is None or rows is None else measure_devices(log, rows)
    ceiling = journal.ceiling_au_percent if journal else None
    evidence = _evidence(job, metrics, ceiling, complete=failure is None)
    verdict = judge(evidence)
    summary: dict[str, Any] = _jsonable(
        {
            "schema_version": SCHEMA_VERSION,
            "complete": failure is None,
            "failure": failure,
            "stopped_early": journal.stopped_early if journal else None,
            "passed": verdict.passed,
            "verdict": verdict.text,
            "workload": workload.model.name,
            "accelerator": workload.accelerator or None,
            "scale": workload.scale or None,
            "ranks": job.ranks,
            "hosts": [] if journal is None else [host["host"] for host in journal.hosts],
            "ranks_per_host": _ranks_per_host(journal),
            "started_at": job.started_at,
            "ended_at": _ended_at(journal),
            "seed": job.seed,
            "metrics": metrics | devices | _run_metrics(job, journal, ceiling, rows),
            **diagnose(job, log, flattered=_flattered(evidence)),
            "evaluation": _evaluation(log),
            "checkpoints": _checkpoints(journal),
            "audit": _audit(job, rows),
            "dataset": _dataset(job),
            "how": _how(job),
            "environment": {} if journal is None else {"hosts": list(journal.hosts), "storage": journal.storage},
            "telemetry": describe_telemetry(log),
            "issues": _issues(job, metrics, evidence),
        }
    )
    return summary


def _ranks_per_host(journal: Journal | None) -> list[int]:
    if journal is None:
        return []
    return [journal.rank_nodes.count(node) for node in range(len(journal.hosts))]


def _ended_at(journal: Journal | None) -> str | None:
    if journal is None or journal.ended_ns is None:
        return None
    seconds = (journal.ended_ns + journal.wall_clock_offset_ns) / 1e9
    return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(timespec="milliseconds")


def _run_metrics(job: Job, journal: Journal | None, ceiling: float | None, rows: StepRows | None) -> dict[str, Any]:
    total = journal.ended_ns - journal.started_ns if journal and journal.ended_ns else None
    read_bytes = int(rows["app_bytes"].sum()) if rows is not None else 0
    cpu = sum(journal.cpu_seconds) if journal and journal.cpu_seconds else None
    return {
        "ceiling_au_percent": ceiling,
        "au_threshold_percent": 100 * job.workload.metric.au,
        "total_seconds": None if total is None else total / 1e9,
        "cpu_seconds": cpu,
        "cpu_seconds_per_gb": cpu / (read_bytes / 1e9) if cpu and read_bytes else None,
        "dropped_samples": job.train_plan.dropped_samples,
        "epochs": len(job.schedule),
        "steps_per_epoch": [epoch.steps for epoch in job.schedule],
    }


def _evaluation(log: RunLog | None) -> dict[str, Any] | None:
    rows = None if log is None else log.rows[log.rows["phase"] == EVALUATION]
    if rows is None or not len(rows):
        return None
    return {
        "seconds": training_ns(rows) / 1e9,
        "samples": int(rows["samples"].sum()),
        "samples_per_second": per_second(float(rows["samples"].sum()), rows),
        "app_mb_per_second": per_second(float(rows["app_bytes"].sum()) / MB, rows),
    }


def _checkpoints(journal: Journal | None) -> list[dict[str, Any]]:
    saved = () if journal is None else journal.checkpoints
    return [asdict(one) | {"seconds": one.seconds, "mb_per_second": one.bytes / MB / one.seconds} for one in saved]


def _audit(job: Job, rows: StepRows | None) -> list[dict[str, Any]]:
    if rows is None:
        return []
    plan = job.train_plan
    return [
        asdict(audit_epoch(plan, epoch.number, epoch.steps, rows[rows["epoch"] == epoch.number]))
        for epoch in job.schedule
    ]


def _dataset(job: Job) -> dict[str, Any]:
    train = job.train_plan
    return {
        "data_folder": job.workload.dataset.data_folder,
        "format": job.workload.dataset.format,
        "num_files_train": train.num_files,
        "num_samples_per_file": train.num_samples_per_file,
        "total_bytes": job.found.total_bytes,
    }


def _how(job: Job) -> dict[str, Any]:
    """Return the settings that change what the number means."""
    reader, train = job.workload.reader, job.workload.train
    return {
        "data_loader": reader.data_loader,
        "engine": reader.engine,
        "decode": reader.decode,
        "odirect": reader.odirect,
        "evict_page_cache": reader.evict_page_cache,
        "synchronous": train.synchronous or reader.read_threads == 0,
        "batch_size": reader.batch_size,
        "read_threads": reader.read_threads,
        "file_shuffle": reader.file_shuffle,
        "sample_shuffle": reader.sample_shuffle,
        "verified": reader.verify,
    }


def _evidence(job: Job, metrics: dict[str, Any], ceiling: float | None, *, complete: bool) -> Evidence:
    settings = job.workload.metric
    counted = min(block.steps for epoch in job.schedule for block in epoch.blocks)
    ahead = job.batches_ahead
    return Evidence(
        complete=complete,
        threshold_percent=100 * settings.au,
        au=metrics.get("au_percent", {}).get("mean"),
        au_rules=metrics.get("au_rules_percent", {}).get("mean"),
        ceiling_au=ceiling,
        kept_steps=max(0, counted - settings.exclude_start_steps - settings.exclude_end_steps),
        prefetched_steps=ahead + 1 if ahead and not job.workload.train.synchronous else ahead,
    )


def _flattered(evidence: Evidence) -> bool:
    """Say whether the counted steps may show too little of what the storage did."""
    if evidence.au_rules is None or evidence.au_rules >= evidence.threshold_percent:
        return False
    factor = flattery(evidence)
    return factor is None or factor > 1.05


def _issues(job: Job, metrics: dict[str, Any], evidence: Evidence) -> list[str]:
    """Return what a reader of the number must know."""
    issues = [*job.workload.notes, *job.found.notes]
    if job.train_plan.dropped_samples:
        issues.append(
            f"{job.train_plan.dropped_samples} of {job.train_plan.num_samples} samples are dropped each epoch: they do "
            f"not fill a batch of {job.workload.reader.batch_size} on each of {job.ranks} ranks"
        )
    factor = flattery(evidence)
    if metrics and factor is not None and factor > 1.05:
        issues.append(
            f"up to {evidence.prefetched_steps} of an epoch's batches are read while its first step waits, which AU "
            f"leaves out: were the storage too slow, AU could be {factor:.2f} times too high; use more files or "
            "fewer ranks"
        )
    issues += job.traits.notes(job.workload.dataset.format)
    if metrics.get("handover_share_of_wait", 0) > 0.5 and metrics["au_percent"]["mean"] < 99:
        issues.append(
            f"{100 * metrics['handover_share_of_wait']:.0f} % of the waiting passed after the batch was ready in its "
            "worker: the host, not the storage, was late; use fewer ranks or more cores"
        )
    return issues


def _jsonable(value: Any) -> Any:
    """Turn NaN into null, which JSON has no word for, and tuples into lists."""
    if isinstance(value, dict):
        return {key: _jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

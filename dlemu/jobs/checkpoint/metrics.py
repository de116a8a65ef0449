"""Metrics and conditions of a checkpoint run, for sweeps, comparisons and pages: what its summary declares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dlemu.jobs.checkpoint.result import CheckpointRun
from dlemu.jobs.checkpoint.summary import Asynchronous, CheckpointSummary, PhaseSummary, TrainingCost
from dlemu.jobs.checkpoint.wording import issue_lines
from dlemu.metrics.catalogue import Catalogue, Metric, declared
from dlemu.metrics.findings import Code
from dlemu.report.units import plain
from dlemu.results.figures import Conditions, JobFigures, Value, half_width_of

WRITING, READING = "writing", "reading"
"""The phases of a run."""
_PARTS: dict[str, type[Any]] = {
    "write": PhaseSummary,
    "read": PhaseSummary,
    "training": TrainingCost,
    "asynchronous": Asynchronous,
}
"""Fields of the summary whose metrics are named `FIELD_METRIC`."""
_PHASES = {"write": (WRITING, "written"), "read": (READING, "read")}
_WRITING_ALONE, _READING_ALONE = ("fsync", "starved"), ("from_storage",)
"""Beginnings of the names of metrics that only one phase has."""


def _metrics() -> Iterator[Metric]:
    yield from declared(CheckpointSummary)
    for part, kind in _PARTS.items():
        for metric in declared(kind):
            named = replace(metric, name=f"{part}_{metric.name}")
            if part not in _PHASES:
                yield named
            elif not metric.name.startswith(_READING_ALONE if part == "write" else _WRITING_ALONE):
                phase, verb = _PHASES[part]
                yield replace(
                    named,
                    title=f"{verb}, {metric.title}",
                    head=metric.head and f"{part} {metric.head}",
                    phase=metric.phase and phase,
                )


CATALOGUE = Catalogue(
    metrics=tuple(_metrics()),
    repetition="checkpoint",
    phases=(WRITING, READING),
    note="Means over the checkpoints of a run, by their slowest rank.",
)


def metrics_of(summary: CheckpointSummary) -> dict[str, Value]:
    """Return the metrics that a run has, in display order; each checkpoint is a repetition."""
    found = {}
    for metric in CATALOGUE:
        part = next((part for part in _PARTS if metric.name.startswith(f"{part}_")), "")
        holder = getattr(summary, part) if part else summary
        name = metric.name.removeprefix(f"{part}_") if part else metric.name
        value = None if holder is None else getattr(holder, name)
        if value is None:
            continue
        repeated = holder if isinstance(holder, PhaseSummary) else summary.write if part == "asynchronous" else None
        checkpoints = repeated.checkpoints if repeated is not None else ()
        each = tuple(getattr(checkpoint, name) for checkpoint in checkpoints if hasattr(checkpoint, name))
        found[metric.name] = Value(value, half_width_of(each))
    if not summary.what.how["fsync"] and "write_fsync_percent" in found:
        found["write_fsync_percent"] = Value(0.0)  # what was measured is the time between two clock readings
    return found


def figures(run: CheckpointRun) -> JobFigures:
    """Return a run's metrics for sweeps and comparisons."""
    summary = run.summary
    phases = {WRITING: summary.write, READING: summary.read}
    return JobFigures(
        kind=summary.kind,
        workload=summary.workload,
        ranks=summary.ranks,
        verdict=summary.verdict,
        limited_by={
            name: phase.limited_by.what if phase and phase.limited_by else None for name, phase in phases.items()
        },
        metrics={name: value for name, value in metrics_of(summary).items() if CATALOGUE[name].is_compared},
    )


def conditions(summary: CheckpointSummary) -> Conditions:
    """Return the conditions under which a run was measured."""
    what = summary.what
    loud = [finding for finding in summary.findings if finding.severity == "loud"]
    codes = {finding.code for finding in loud}
    work = ("files", "bytes", "tensor_bytes")
    part = {key: what.how[key] for key in ("ranks_of_job", "first_rank")}
    return Conditions(
        title=summary.title,
        started_at=summary.started_at,
        hosts=summary.environment.hosts,
        storage=summary.environment.storage,
        facts={"ranks": plain(summary.ranks), "folder": what.folder, "kept": plain(len(what.kept))},
        work={"model": summary.workload, **{key: getattr(what, key) for key in work}, **part},
        how=what.how,
        from_memory=(WRITING, READING) if Code.NO_DATA_FROM_STORAGE in codes else (READING,) * bool(codes),
        warnings=issue_lines(loud),
    )

"""Figures and conditions of a checkpoint run, for sweeps, comparisons and pages."""

from __future__ import annotations

from dlemu.jobs.checkpoint.result import CheckpointRun
from dlemu.jobs.checkpoint.summary import CATALOGUE, READING, WRITING, CheckpointSummary, metrics_of
from dlemu.jobs.checkpoint.wording import issue_lines
from dlemu.metrics.findings import Code
from dlemu.report.units import plain
from dlemu.results.figures import Conditions, JobFigures


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

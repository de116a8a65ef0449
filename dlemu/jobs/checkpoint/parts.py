"""What commands use of checkpoint runs (`JobParts`): screen, charts, metrics, conditions, prediction and export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlemu.jobs.checkpoint.analyse import CheckpointRun
from dlemu.jobs.checkpoint.measured import MEASURED_WITH, CheckpointRunFacts
from dlemu.jobs.checkpoint.prediction import run_prediction
from dlemu.jobs.checkpoint.run import CHECKPOINTS
from dlemu.jobs.checkpoint.summary import CATALOGUE, READING, WRITING, CheckpointSummary, metrics_of
from dlemu.jobs.checkpoint.wording import issue_lines, screen
from dlemu.metrics.findings import Code
from dlemu.report.units import plain
from dlemu.results.exported import ExportedCheckpoints
from dlemu.results.figures import Conditions, JobFigures
from dlemu.results.kinds import JobParts

if TYPE_CHECKING:
    from dlemu.report.figure_base import Figure


def figures(run: CheckpointRun) -> JobFigures:
    """Return a run's metrics for sweeps and comparisons."""
    summary = run.summary
    phases = {WRITING: summary.write, READING: summary.read}
    return JobFigures(
        **summary.head,
        limited_by={
            name: phase.limited_by.what if phase and phase.limited_by else None for name, phase in phases.items()
        },
        metrics={name: value for name, value in metrics_of(summary).items() if CATALOGUE[name].is_compared},
    )


# Settings of `checkpoint` that affect the metrics
_SETTINGS = (*MEASURED_WITH, "asynchronous", "interval_seconds", "snapshot_gb_per_second")
# Fields of `CheckpointSizes`: the amount, and how ranks divide the model; both depend on the ranks that a run emulates
_AMOUNT = ("files", "bytes", "tensor_bytes", "ranks_of_job", "first_rank")
_SHARDING = ("format", "tensor", "pipeline", "data", "zero_stage", "ranks_of_job", "first_rank")


def conditions(summary: CheckpointSummary, measured: CheckpointRunFacts) -> Conditions:
    """Return the conditions under which a run was measured, by which comparisons decide what is comparable."""
    settings, sizes = measured.workload.checkpoint, measured.written
    loud = [finding for finding in summary.findings if finding.severity == "loud"]
    codes = {finding.code for finding in loud}
    how = {name: getattr(sizes, name) for name in _SHARDING} | {name: getattr(settings, name) for name in _SETTINGS}
    read_from_memory = (READING,) if Code.PAGE_CACHE in codes else ()
    return Conditions(
        title=summary.title,
        facts={"ranks": plain(summary.ranks), "folder": summary.folder, "kept": plain(len(summary.kept))},
        work={"model": summary.workload, **{name: getattr(sizes, name) for name in _AMOUNT}},
        how=how,
        from_memory=(WRITING, READING) if Code.NO_DATA_FROM_STORAGE in codes else read_from_memory,
        warnings=issue_lines(loud),
    )


def exported(run: CheckpointRun) -> ExportedCheckpoints:
    """Return the run for the exporters to DLIO's and MLPerf's files, with its rows by the time they began."""
    facts, rows = run.facts, run.whole[run.whole["began_ns"].argsort(kind="stable")]
    return ExportedCheckpoints(workload=facts.workload, journal=facts.journal, plan=facts.plan, rows=rows)


def _charts(run: CheckpointRun, folder: str) -> Iterator[tuple[str, Figure]]:
    from dlemu.jobs.checkpoint.figures import FIGURES
    from dlemu.report.figure_base import drawn

    return drawn(FIGURES, run)


PARTS = JobParts(
    answer_type=CheckpointSummary,
    screen=screen,
    charts=_charts,
    job=CHECKPOINTS,
    catalogue=CATALOGUE,
    figures=figures,
    conditions=conditions,
    predict=run_prediction,
    exported=exported,
)

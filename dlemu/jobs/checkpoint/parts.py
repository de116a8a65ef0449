"""What a checkpoint run is as a kind of job: its figures and conditions, and which functions do the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dlemu.config.schema import Workload
from dlemu.jobs.checkpoint.measured import CheckpointRunFacts, exported
from dlemu.jobs.checkpoint.page import screen
from dlemu.jobs.checkpoint.result import CheckpointRun, read_checkpoint_run
from dlemu.jobs.checkpoint.run import Checkpoints
from dlemu.jobs.checkpoint.summary import CATALOGUE, READING, WRITING, CheckpointSummary, metrics_of
from dlemu.jobs.checkpoint.wording import issue_lines
from dlemu.metrics.findings import Code
from dlemu.report.units import plain
from dlemu.results.figures import Conditions, JobFigures
from dlemu.results.kinds import JobParts

if TYPE_CHECKING:
    from dlemu.jobs.checkpoint.prediction import CheckpointPrediction
    from dlemu.report.figure_base import Figure
    from dlemu.runner.prediction_request import PredictionRequest


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


# Settings of `checkpoint` that affect the measurement
_SETTINGS = ("fsync", "odirect", "writers", "read_as", "readers", "verify", "evict_page_cache", "transfer_size")
# Fields of `CheckpointSizes`: what the run wrote, and how the job's ranks divide the model
_WORK = ("files", "bytes", "tensor_bytes", "ranks_of_job", "first_rank")
_SHAPE = ("format", "tensor", "pipeline", "data", "zero_stage", "ranks_of_job", "first_rank")


def conditions(summary: CheckpointSummary, facts: CheckpointRunFacts) -> Conditions:
    """Return the conditions under which a run was measured."""
    settings = facts.workload.checkpoint
    loud = [finding for finding in summary.findings if finding.severity == "loud"]
    codes = {finding.code for finding in loud}
    from_memory: tuple[str, ...] = ()
    if Code.NO_DATA_FROM_STORAGE in codes:
        from_memory = (WRITING, READING)
    elif Code.PAGE_CACHE in codes:
        from_memory = (READING,)
    how = {name: getattr(facts.written, name) for name in _SHAPE}
    how |= {name: getattr(settings, name) for name in _SETTINGS}
    how["content"] = "unique" if settings.randomize_tensor else "ones"
    return Conditions(
        title=summary.title,
        facts={"ranks": plain(summary.ranks), "folder": summary.folder, "kept": plain(len(summary.kept))},
        work={"model": summary.workload, **{name: getattr(facts.written, name) for name in _WORK}},
        how=how,
        from_memory=from_memory,
        warnings=issue_lines(loud),
    )


def _charts(run: CheckpointRun, folder: str) -> Iterator[tuple[str, Figure]]:
    from dlemu.jobs.checkpoint.figures import FIGURES
    from dlemu.report.figure_base import drawn

    return drawn(FIGURES, run)


def _predict(
    source: Sequence[str] | Workload, request: PredictionRequest
) -> tuple[CheckpointPrediction, str, Workload]:
    from dlemu.jobs.checkpoint.prediction import run_prediction

    return run_prediction(source, request)


PARTS = JobParts(
    read=read_checkpoint_run,
    answer_type=CheckpointSummary,
    screen=screen,
    charts=_charts,
    job=Checkpoints(),
    catalogue=CATALOGUE,
    figures=figures,
    conditions=conditions,
    predict=_predict,
    exported=exported,
)

"""The counts (numbers of accelerators) that `dlemu size` tried, as points in the figures of a page."""

from __future__ import annotations

from collections.abc import Iterator

from dlemu.metrics.catalogue import RUN
from dlemu.metrics.verdict import HOST_LIMITS
from dlemu.report.series import Point, RunSeries, first_run, point_of
from dlemu.results.answer_files import read_answer
from dlemu.results.figures import JobFigures, Value
from dlemu.results.kinds import Parts, catalogue_of
from dlemu.studies.answers import SIZE, CountResult, SizeAnswer
from dlemu.studies.series.page import series_charts, series_sections
from dlemu.studies.size.screen import screen
from dlemu.studies.size.size_verdict import cause_of

KIND_OF_TRIALS = "training"


def read_size(folder: str) -> SizeAnswer | None:
    """Return the answer of `dlemu size` in a folder, None where there is none; raises UserError for a damaged one."""
    return read_answer(folder, SIZE, SizeAnswer)


def points(folder: str) -> RunSeries:
    """Return the counts that `dlemu size` tried, and what it predicted for them, as points; raises UserError."""
    answer = read_size(folder)
    assert answer is not None  # size.json, by which the kind was recognised
    folders = {trial.accelerators: trial.folder for trial in answer.trials}
    tried = (
        point_of(figures_of_count(answer, count), {}, folders.get(count.accelerators, "")) for count in answer.counts
    )
    found = (*tried, *_predicted_points(answer))
    return RunSeries(folder, found, answer, first_run(folder, found))


def figures_of_count(answer: SizeAnswer, count: CountResult) -> JobFigures:
    """Return the figures of all trials with a count, averaged."""
    trials, failing = answer.trials_of(count.accelerators), answer.edge.failing
    decides = failing is not None and answer.max_accelerators < count.accelerators <= failing.accelerators
    limit = answer.limited_by if decides else cause_of(trials)
    catalogue = catalogue_of(KIND_OF_TRIALS)
    each = {name: [getattr(trial, name, None) for trial in trials] for name in (metric.name for metric in catalogue)}
    known = {name: [value for value in values if value is not None] for name, values in each.items()}
    return JobFigures(
        kind=KIND_OF_TRIALS,
        workload=answer.question.workload,
        accelerator=answer.question.accelerator or None,
        sample_divisor=answer.sample_divisor,
        ranks=count.accelerators,
        passed=count.passed or (None if limit.what in HOST_LIMITS else count.passed),  # no verdict, as of such a run
        limited_by={RUN: limit.what if limit.confidence else None},
        threshold_percent=answer.question.threshold_percent,
        metrics={name: Value(sum(values) / len(values)) for name, values in known.items() if values}
        | {catalogue.decisive: Value(count.au_sustained_percent, count.half_width_percent)},
    )


def _predicted_points(answer: SizeAnswer) -> Iterator[Point]:
    """Yield the predictions for the counts that were tried, as a second line in the figures."""
    for tried in answer.counts:
        predicted = answer.predicted and answer.predicted.au(tried.accelerators)
        if predicted:
            low, high = predicted.au_interval_percent
            half_width, above = (high - low) / 2, predicted.au_sustained_percent - answer.question.threshold_percent
            figures = JobFigures(
                kind=KIND_OF_TRIALS,
                workload=answer.question.workload,
                sample_divisor=answer.sample_divisor,
                ranks=predicted.accelerators,
                passed=None if abs(above) <= half_width else above > 0,
                threshold_percent=answer.question.threshold_percent,
                metrics={catalogue_of(KIND_OF_TRIALS).decisive: Value(predicted.au_sustained_percent, half_width)},
            )
            yield Point(line="predicted", settings={}, figures=figures)


PARTS = Parts(
    read=read_size,
    answer_type=SizeAnswer,
    points=points,
    screen=screen,
    sections=lambda answer, folder: series_sections(points(folder)),
    charts=lambda answer, folder, canvas: series_charts(points(folder), canvas),
)

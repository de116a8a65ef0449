"""A prediction as a line in the figures of a page that compares several results."""

from __future__ import annotations

from collections.abc import Iterator

from dlemu.jobs.training.metrics import CATALOGUE
from dlemu.jobs.training.prediction.prediction import Prediction
from dlemu.jobs.training.prediction.run_prediction import read_prediction
from dlemu.metrics.catalogue import RUN
from dlemu.report.series import Point, RunSeries
from dlemu.results.figures import JobFigures, Value


def points(folder: str) -> RunSeries:
    """Return a point for each number of accelerators of the prediction in a folder; raises UserError."""
    answer = read_prediction(folder)
    assert answer is not None  # the folder has predict.json: that is how its kind was recognised
    return RunSeries(folder, tuple(_points(answer)))


def _points(answer: Prediction) -> Iterator[Point]:
    question = answer.question
    for count in answer.counts:
        low, high = count.au_sustained_interval_percent
        values = {metric.name: getattr(count, metric.name, None) for metric in CATALOGUE}
        values["total_seconds"] = count.training_seconds
        metrics = {name: Value(value) for name, value in values.items() if value is not None}
        metrics["au_percent"] = Value(count.au_percent, (high - low) / 2)
        figures = JobFigures(
            kind="training",
            workload=question.workload,
            ranks=count.accelerators,
            passed=count.passed,
            limited_by={RUN: answer.limited_by.what},
            threshold_percent=question.threshold_percent,
            metrics=metrics,
        )
        yield Point(line="predicted", settings={}, figures=figures)

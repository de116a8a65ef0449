"""Several runs side by side: the trials of a search, the points of a sweep, or the folders that a user names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from datagen.errors import UserError
from dlemu.prediction.ask import read_prediction
from dlemu.prediction.prediction import Prediction
from dlemu.report.units import short_names
from dlemu.results.answer_files import read_answer
from dlemu.results.checkpoint_folder import read_checkpoint_run
from dlemu.results.checkpoint_run import CheckpointRun
from dlemu.results.folder import holds_checkpoints, holds_run, read_run
from dlemu.results.run import Run
from dlemu.results.summary import Mean
from dlemu.sizing.answers import SIZE, SWEEP, CheckpointFigures, RunFigures, SizeAnswer, SweepAnswer, Trial
from dlemu.sizing.sides import run_figures

ACCELERATORS = "accelerators"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run, or all trials of one count of accelerators. What is not known is None."""

    line: str
    """Points of one line differ only in what the axis says."""
    settings: dict[str, str]
    accelerators: int
    passed: bool | None
    au_percent: float | None
    """The headline; of a search, the sustained one."""
    au_sustained_percent: float | None = None
    prefetch_credit_percent: float | None = None
    half_width_percent: float | None = None
    threshold_percent: float | None = None
    ceiling_au_percent: float | None = None
    total_seconds: float | None = None
    samples_per_second: float | None = None
    app_mb_per_second: float | None = None
    device_mb_per_second: float | None = None
    max_device_mb_per_second: float | None = None
    mean_device_read_latency_ms: float | None = None
    limited_by: str = ""
    folder: str = ""
    checkpoints: CheckpointFigures | None = None
    """Of a run of checkpoints, which has nothing of the above."""


@dataclass(frozen=True)
class RunSeries:
    """What several runs showed."""

    folder: str
    points: tuple[Point, ...]
    answer: SizeAnswer | SweepAnswer | None = None
    """None for runs that a user put side by side."""
    run: Run | CheckpointRun | None = None
    """One of the runs, for what they have in common: host, storage, configuration."""

    @property
    def of_checkpoints(self) -> bool:
        """Whether its runs wrote and read checkpoints."""
        return any(point.checkpoints for point in self.points)

    @property
    def axis(self) -> str:
        """What the points of a line differ in: accelerators, or else the first setting that has several values."""
        if len({point.accelerators for point in self.points}) > 1:
            return ACCELERATORS
        keys = list(dict.fromkeys(key for point in self.points for key in point.settings))
        return next((key for key in keys if len(self._values(key)) > 1), ACCELERATORS)

    def position(self, point: Point) -> float | str:
        """Return where a point stands on the axis; numbers where all its values are."""
        if self.axis == ACCELERATORS:
            return point.accelerators
        numeric = all(_is_number(value) for value in self._values(self.axis))
        if self.axis not in point.settings:
            return ""
        return float(point.settings[self.axis]) if numeric else self.shown(point, self.axis)

    @property
    def threshold_percent(self) -> float | None:
        """The AU at which a run passes, None where nothing says it."""
        known = [point.threshold_percent for point in self.points if point.threshold_percent is not None]
        if known or not isinstance(self.run, Run):
            return known[0] if known else None
        return self.run.summary.metrics.au_threshold_percent

    def line(self, point: Point) -> str:
        """Return the name of a point's line: what was the same along it and differs between lines."""
        varied = [key for key in point.settings if key not in (self.axis, "ranks") and len(self._values(key)) > 1]
        named = [f"{key.rpartition('.')[2]}={self.shown(point, key)}" for key in varied]
        several = len({other.line for other in self.points}) > 1
        return ", ".join([point.line, *named] if several or not named else named)

    def shown(self, point: Point, key: str) -> str:
        """Return what a setting of a point is called: of paths, the part in which they differ."""
        value = point.settings[key]
        return short_names(sorted(self._values(key) - {""})).get(value, value)

    def _values(self, key: str) -> set[str]:
        return {point.settings.get(key, "") for point in self.points}


def open_result(folder: str) -> Run | RunSeries:
    """Read whatever a training run, a search or a sweep left in a folder; raises UserError when it is no result."""
    sized = read_answer(folder, SIZE, SizeAnswer)
    swept = None if sized else read_answer(folder, SWEEP, SweepAnswer)
    points = (
        (*_size_points(sized), *_predicted_points(sized)) if sized else tuple(_sweep_points(swept)) if swept else ()
    )
    answer = sized or swept
    return read_run(folder) if answer is None else RunSeries(folder, points, answer, _first_run(folder, points))


def open_together(folders: Sequence[str]) -> RunSeries:
    """Read several results as one series, each by the name of its folder."""
    points: list[Point] = []
    common: Run | CheckpointRun | None = None
    for folder in folders:
        name = os.path.basename(os.path.abspath(folder))
        predicted = read_prediction(folder)
        if predicted is not None:
            points += [_named(point, name, folder) for point in _prediction_points(predicted)]
            continue
        opened = open_result(folder)
        if isinstance(opened, Run):
            common = common or opened
            points.append(replace(_run_point(opened), folder=folder))
        else:
            common = common or opened.run
            points += [_named(point, name, folder) for point in opened.points]
    return RunSeries(", ".join(folders), tuple(points), None, common)


def _named(point: Point, name: str, folder: str) -> Point:
    line = ": ".join(filter(None, [name, point.line]))
    return replace(point, line=line, folder=os.path.join(folder, point.folder))


def _run_point(run: Run) -> Point:
    return _point(run_figures(run), {"data_folder": run.summary.dataset.data_folder})


def _point(figures: RunFigures, settings: dict[str, str], folder: str = "") -> Point:
    return Point(
        line=" ".join(filter(None, [figures.workload, figures.accelerator])),
        settings=settings,
        accelerators=figures.ranks,
        passed=figures.passed,
        au_percent=_mean(figures.au_percent),
        au_sustained_percent=_mean(figures.au_sustained_percent),
        prefetch_credit_percent=figures.prefetch_credit_percent,
        threshold_percent=figures.au_threshold_percent,
        ceiling_au_percent=figures.ceiling_au_percent,
        total_seconds=figures.total_seconds,
        samples_per_second=_mean(figures.samples_per_second),
        app_mb_per_second=_mean(figures.app_mb_per_second),
        device_mb_per_second=_mean(figures.device_mb_per_second),
        max_device_mb_per_second=figures.max_device_mb_per_second,
        mean_device_read_latency_ms=figures.mean_device_read_latency_ms,
        limited_by=figures.limited_by.what if figures.limited_by else "",
        folder=folder,
    )


def _size_points(answer: SizeAnswer) -> Iterator[Point]:
    question = answer.question
    for count in answer.counts:
        trials = answer.trials_of(count.accelerators)
        last: Trial | None = trials[-1] if trials else None
        yield Point(
            line=" ".join(filter(None, [question.workload, question.accelerator])),
            settings={},
            accelerators=count.accelerators,
            passed=count.passed,
            au_percent=count.au_percent,
            half_width_percent=count.half_width_percent,
            threshold_percent=answer.threshold_percent,
            prefetch_credit_percent=_mean_of(trial.prefetch_credit_percent for trial in trials),
            ceiling_au_percent=_mean_of(trial.ceiling_au_percent for trial in trials),
            samples_per_second=_mean_of(trial.samples_per_second for trial in trials),
            app_mb_per_second=_mean_of(trial.app_mb_per_second for trial in trials),
            device_mb_per_second=_mean_of(trial.device_mb_per_second for trial in trials),
            limited_by=last.limited_by.what if last and last.limited_by else "",
            folder=last.folder if last else "",
        )


def _prediction_points(answer: Prediction) -> Iterator[Point]:
    for count in answer.counts:
        low, high = count.au_sustained_interval_percent
        point = _predicted_point(
            count.accelerators, count.au_sustained_percent, (high - low) / 2, answer.question.threshold_percent
        )
        yield replace(
            point,
            passed=count.passed,
            au_percent=count.au_percent,
            au_sustained_percent=count.au_sustained_percent,
            samples_per_second=count.samples_per_second,
            app_mb_per_second=count.app_mb_per_second,
            total_seconds=count.training_seconds,
            limited_by=answer.limited_by.what,
        )


def _predicted_points(answer: SizeAnswer) -> Iterator[Point]:
    """Yield what was predicted of the counts that were tried, as a line beside what was measured."""
    predicted = answer.predicted
    if predicted is None:
        return
    for tried in answer.counts:
        count = predicted.au(tried.accelerators)
        if count is not None:
            low, high = count.au_interval_percent
            yield _predicted_point(count.accelerators, count.au_percent, (high - low) / 2, answer.threshold_percent)


def _predicted_point(
    accelerators: int, au_percent: float, half_width_percent: float, threshold_percent: float
) -> Point:
    return Point(
        line="predicted",
        settings={},
        accelerators=accelerators,
        passed=None if abs(au_percent - threshold_percent) <= half_width_percent else au_percent > threshold_percent,
        au_percent=au_percent,
        half_width_percent=half_width_percent,
        threshold_percent=threshold_percent,
    )


def _sweep_points(answer: SweepAnswer) -> Iterator[Point]:
    for point in answer.points:
        if point.figures is not None:
            yield _point(point.figures, point.settings, point.folder)
        elif point.checkpoints is not None:
            yield Point(
                line=point.checkpoints.workload,
                settings=point.settings,
                accelerators=point.checkpoints.ranks,
                passed=None,
                au_percent=None,
                folder=point.folder,
                checkpoints=point.checkpoints,
            )


def _mean(figure: Mean | None) -> float | None:
    return figure.mean if figure else None


def _mean_of(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _first_run(folder: str, points: Sequence[Point]) -> Run | CheckpointRun | None:
    """Return the first run that is still there and whole; of a series that was sent on alone, none."""
    for point in points:
        path = os.path.join(folder, point.folder)
        with contextlib.suppress(UserError):  # the series has its own numbers; this is for hosts and settings
            if point.folder and holds_checkpoints(path):
                return read_checkpoint_run(path)
            if point.folder and holds_run(path):
                return read_run(path)
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

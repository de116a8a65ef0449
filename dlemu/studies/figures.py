"""The figure of studies: a metric against the setting that varies."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import altair as alt

from dlemu.metrics.catalogue import Catalogue, Metric
from dlemu.metrics.t_interval import percent_interval
from dlemu.report.figure_base import Figure, Level, Row, lines
from dlemu.report.units import short_names, verdict_word
from dlemu.results.figures import JobFigures
from dlemu.results.kinds import catalogue_of
from dlemu.results.wording import at_scale


class Point(NamedTuple):
    """A point of the figure: one run, or all trials with one number of accelerators."""

    name: str  # workload and accelerator, or the side of a comparison
    settings: Mapping[str, str]
    figures: JobFigures


class Axis(NamedTuple):
    """The x axis, and where each point is: in which line, and at which position."""

    title: str
    lines: list[str]  # name of each point's line
    positions: list[float | str]  # of each point: numbers, or names in the order of the points


def charts(points: Iterable[Point]) -> Iterator[tuple[str, Figure]]:
    """Yield the figure of a study with its name; nothing for a study without points.

    The y axis is the metric that decides (AU, with the threshold) or else the main rate; the x axis is the number of
    accelerators or the setting that varies. Runs with equal settings are drawn side by side, by the time of a phase.
    """
    runs = list(points)
    if not runs:
        return
    catalogue = catalogue_of(runs[0].figures.kind)
    axis = _axis(runs, f"{catalogue.rank}s")
    is_side_by_side = len(runs) > 1 and len(set(axis.positions)) == 1
    metric = _drawn_metric(catalogue, runs, is_side_by_side=is_side_by_side)
    if metric is None:
        return
    thresholds = [run.figures.threshold_percent for run in runs if run.figures.threshold_percent is not None]
    is_decisive = metric.name in (catalogue.decisive, catalogue.judged)
    levels = [Level(thresholds[0], "pass")] if thresholds and is_decisive else []
    caption = "Vertical lines are 95 % intervals."
    if catalogue.judged:
        caption = f"Filled points passed, hollow ones did not. {caption}"
    if is_side_by_side:
        title, x = f"{metric.title}, side by side", alt.X("line:N", axis=None, sort=None)
    else:
        samples = {at_scale(run.figures.sample_divisor) for run in runs}
        title = f"{metric.title} against {axis.title}{samples.pop() if len(samples) == 1 else ''}"
        x = _x_axis(axis)
    rows = list(_rows(metric, runs, axis, is_judged=bool(catalogue.judged)))
    lowest = min([row["low"] for row in rows] + [level.value for level in levels])
    domain = (max(0.0, 10 * math.floor(lowest / 10 - 0.2)), 100.0) if metric.unit == "%" else ()
    yield "by_count", Figure(title, caption, lines(rows, x, metric.label, domain=domain, levels=levels, points=True))


def _drawn_metric(catalogue: Catalogue, runs: Sequence[Point], *, is_side_by_side: bool) -> Metric | None:
    """Return the first suitable metric that all runs have, or else any run: failed runs and other tools' lack some."""
    names = [metric.name for metric in catalogue.times] if is_side_by_side else []
    names += [catalogue.decisive, catalogue.judged, catalogue.fallback]
    names += [metric.name for metric in catalogue if metric.is_drawn and metric.better == "higher"]
    for quantifier in (all, any):
        for name in names:
            if quantifier(name in run.figures.metrics for run in runs):
                return catalogue[name]
    return None


def _rows(metric: Metric, runs: Sequence[Point], axis: Axis, *, is_judged: bool) -> Iterator[Row]:
    """Yield a row for each run that has the metric, by line and position; without judged runs, verdicts are "pass"."""
    for line, position, run in sorted(zip(axis.lines, axis.positions, runs, strict=True), key=lambda point: point[:2]):
        value = run.figures.metrics.get(metric.name)
        if value is not None:
            half_width = value.half_width or 0.0
            low, high = value.mean - half_width, value.mean + half_width
            if metric.unit == "%":
                low, high = percent_interval(value.mean, half_width)
            verdict = verdict_word(run.figures.passed, unknown="open") if is_judged else "pass"
            yield {"line": line, "at": position, "value": value.mean, "verdict": verdict, "low": low, "high": high}


def _axis(runs: Sequence[Point], ranks: str) -> Axis:
    """Return the axis: the number of ranks (titled `ranks`) if it varies, else the first setting that varies.

    The other settings that vary name the lines. For example, points with drive=/mnt/a and /mnt/b, each with
    read_threads=1 and 2, have the axis `drive`, the positions `a` and `b`, and two lines, `read_threads=1` and `=2`.
    """
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    values = {key: [run.settings.get(key, "") for run in runs] for key in keys}
    short_values = {key: short_names(sorted(set(texts))) for key, texts in values.items() if len(set(texts)) > 1}
    title, positions = ranks, list[float | str](run.figures.ranks for run in runs)
    if short_values and len(set(positions)) == 1:
        title = next(iter(short_values))
        try:
            positions = [float(text) for text in values[title]]
        except ValueError:
            positions = [short_values[title][text] for text in values[title]]
    line_keys = [key for key in short_values if key not in (title, "ranks")]
    has_one_name = len({run.name for run in runs}) == 1
    line_names = []
    for run in runs:
        settings = [f"{key.rpartition('.')[2]}={short_values[key][run.settings.get(key, '')]}" for key in line_keys]
        line_names.append(", ".join(settings if settings and has_one_name else [run.name, *settings]))
    return Axis(title, line_names, positions)


def _x_axis(axis: Axis) -> alt.X:
    """Return the x axis for altair: linear with a tick at each number; names are in the order of the points."""
    numbers = sorted({position for position in axis.positions if not isinstance(position, str)})
    if not numbers:
        return alt.X("at:N", title=axis.title, sort=None, axis=alt.Axis(labelAngle=0, labelLimit=130))
    ticks = alt.Axis(grid=False, values=numbers, format=",~f", labelOverlap=True)
    scale = alt.Scale(zero=numbers[0] < 0.4 * numbers[-1], padding=12)
    return alt.X("at:Q", title=axis.title, axis=ticks, scale=scale)

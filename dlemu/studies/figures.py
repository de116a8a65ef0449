"""The figure of studies: what was measured against what was varied."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import altair as alt

from dlemu.metrics.catalogue import Metric
from dlemu.metrics.t_interval import percent_interval
from dlemu.report.figure_base import Figure, Level, Row, colours, data, lines, percent_domain
from dlemu.report.units import short_names, verdict_word
from dlemu.results.figures import JobFigures
from dlemu.results.kinds import catalogue_of
from dlemu.results.wording import scaled

_CEILING = "ceiling_au_percent"


class Point(NamedTuple):
    """One run, or all trials with one number of accelerators."""

    name: str
    """Workload and accelerator, or the side of a comparison."""
    settings: Mapping[str, str]
    figures: JobFigures


class Axis(NamedTuple):
    """The x axis: numbers, or names in the order of the points."""

    title: str
    lines: list[str]
    """The name of each point's line."""
    positions: list[float | str]


def charts(points: Iterable[Point]) -> Iterator[tuple[str, Figure]]:
    """Yield the figure of a study with its name; nothing for a study without points.

    It draws the metric that decides (AU, with pass line and ceiling), else the main rate, against the number of
    accelerators, or against the setting that varies. Of two runs with equal settings it draws, side by side, the time
    that the verdict of their comparison is about.
    """
    runs = list(points)
    if not runs:
        return
    catalogue = catalogue_of(runs[0].figures.kind)
    ranks = f"{catalogue.rank}s"
    axis = _axis(runs, ranks)
    rows = {metric.name: _rows(metric, runs, axis, is_judged=bool(catalogue.judged)) for metric in catalogue}
    # Results of other tools lack some metrics: the metric that decides must be one that all points have.
    deciding_names = [name for name in (catalogue.decisive, catalogue.judged, catalogue.fallback) if name in rows]
    deciding = next((name for name in deciding_names if len(rows[name]) == len(runs)), catalogue.judged)
    rates = [metric.name for metric in catalogue if metric.is_drawn and metric.better == "higher"]
    candidates = [deciding, *(name for name in rates if name != catalogue.judged)]
    is_side_by_side = len(runs) > 1 and len(set(axis.positions)) == 1
    if is_side_by_side:
        candidates = [*(metric.name for metric in catalogue.times), *candidates]
    least_rows = len(runs) if is_side_by_side else 1
    drawn = next((name for name in candidates if len(rows.get(name, [])) >= least_rows), None)
    if drawn is None:
        return
    metric, levels, ceilings = catalogue[drawn], list[Level](), list[Row]()
    caption = "Vertical lines are 95 % intervals."
    if catalogue.judged:
        caption = f"Filled points passed, hollow ones did not. {caption}"
    if drawn == deciding:
        ceilings = rows.get(_CEILING, [])
        thresholds = [run.figures.threshold_percent for run in runs if run.figures.threshold_percent is not None]
        if thresholds and deciding != catalogue.fallback:
            levels = [Level(thresholds[0], "pass")]
    if ceilings:
        caption += " Dotted: the emulator's own ceiling, its AU on this host without any storage."
    if is_side_by_side:
        title = _leader_title(metric, rows[drawn])
        x = alt.X("line:N", axis=None, sort=None)
    else:
        samples = {scaled(run.figures.sample_divisor) for run in runs}
        x_words = axis.title + (samples.pop() if len(samples) == 1 else "")
        title = f"{metric.title} against {x_words}"
        if levels and not isinstance(axis.positions[0], str):
            title = _passing_title(rows[drawn], x_words)
        emulated = "emulated " if catalogue.feeds_accelerators and axis.title == ranks else ""
        x = _x_axis(emulated + axis.title, axis.positions)
    yield "by_count", Figure(title, caption, _panel(metric, rows[drawn], x, levels, ceilings))


def _rows(metric: Metric, runs: Sequence[Point], axis: Axis, *, is_judged: bool) -> list[Row]:
    """Return a row for each point that has the metric; all points of a kind of job that is not judged "pass"."""
    rows: list[Row] = []
    for run, line, position in zip(runs, axis.lines, axis.positions, strict=True):
        value = run.figures.metrics.get(metric.name)
        if value is not None:
            half_width = value.half_width or 0.0
            low, high = value.mean - half_width, value.mean + half_width
            if metric.unit == "%":
                low, high = percent_interval(value.mean, half_width)
            verdict = verdict_word(run.figures.passed, unknown="open") if is_judged else "pass"
            row = {"line": line, "at": position, "value": value.mean, "verdict": verdict, "low": low, "high": high}
            rows.append(row)
    return sorted(rows, key=lambda row: (row["line"], row["at"]))


def _leader_title(metric: Metric, rows: Sequence[Row]) -> str:
    """Return which line is better for certain, as a title; there are at least two."""
    best, second, *_ = sorted(rows, key=lambda row: row["value"], reverse=metric.better == "higher")
    half_width = math.hypot(*((row["high"] - row["low"]) / 2 for row in (best, second)))
    if 0 < half_width < abs(best["value"] - second["value"]):
        return f"{best['line']} is ahead in {metric.title}"
    return f"No difference in {metric.title} is certain"


def _passing_title(rows: Sequence[Row], x_words: str) -> str:
    """Return up to which number each line passes, as a title: `Up to 8 (A) and 16 (B) accelerators pass`."""
    most = {row["line"]: row["at"] for row in rows if row["verdict"] == "pass"}  # rows rise along each line
    if not most:
        return f"None of these numbers of {x_words} passes"
    shown = [f"{number:,g} ({line})" if len(most) > 1 else f"{number:,g}" for line, number in most.items()]
    return f"Up to {' and '.join(shown)} {x_words} pass"


def _axis(runs: Sequence[Point], ranks: str) -> Axis:
    """Return the axis: the number of ranks if it varies, else the first setting that varies.

    Lines are named by the other settings that vary. Points with drive=/mnt/a and /mnt/b, each with read_threads=1 and
    2, have the axis `drive` with the positions `a` and `b`, and the lines `read_threads=1` and `read_threads=2`.
    """
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    values = {key: [run.settings.get(key, "") for run in runs] for key in keys}
    short = {key: short_names(sorted(set(texts))) for key, texts in values.items() if len(set(texts)) > 1}
    title, positions = ranks, list[float | str](run.figures.ranks for run in runs)
    if short and len(set(positions)) == 1:
        title = next(iter(short))
        try:
            positions = [float(text) for text in values[title]]
        except ValueError:
            positions = [short[title][text] for text in values[title]]
    line_keys = [key for key in short if key not in (title, "ranks")]
    has_one_name = len({run.name for run in runs}) == 1
    line_names = []
    for run in runs:
        named = [f"{key.rpartition('.')[2]}={short[key][run.settings.get(key, '')]}" for key in line_keys]
        line_names.append(", ".join(named if named and has_one_name else [run.name, *named]))
    return Axis(title, line_names, positions)


def _panel(metric: Metric, rows: list[Row], x: alt.X, levels: list[Level], ceilings: list[Row]) -> alt.LayerChart:
    ends = [row[end] for row in [*rows, *ceilings] for end in ("low", "high")] + [level.value for level in levels]
    domain: list[float] = []
    if metric.unit == "%":
        domain = percent_domain(ends)
    elif x.axis is None:  # two runs side by side differ too little for a y axis from 0
        room = 0.2 * (max(ends) - min(ends)) or 0.1 * max(ends)
        domain = [min(ends) - room, max(ends) + room]
    chart = lines(rows, x, metric.label, domain=domain, levels=levels, points=True)
    if not ceilings:
        return chart
    scale = colours(list(dict.fromkeys(row["line"] for row in rows)))
    y, colour = alt.Y("value:Q", title=metric.label), alt.Color("line:N", scale=scale, legend=None)
    return alt.layer(chart, alt.Chart(data(ceilings)).mark_line(strokeDash=[2, 3]).encode(x=x, y=y, color=colour))


def _x_axis(title: str, positions: Sequence[float | str]) -> alt.X:
    """Return the x axis: linear for numbers, with ticks at those that were tried; names in the order of the points."""
    numbers = sorted({position for position in positions if not isinstance(position, str)})
    if not numbers:
        return alt.X("at:N", title=title, sort=None, axis=alt.Axis(labelAngle=0, labelLimit=130))
    axis = alt.Axis(grid=False, values=numbers, format=",~f", labelOverlap=True)
    return alt.X("at:Q", title=title, axis=axis, scale=alt.Scale(zero=numbers[0] < 0.4 * numbers[-1], padding=12))

"""Panels that show both sides of a comparison: lines over accelerators, or over whatever the runs vary."""

from __future__ import annotations

import math
from collections.abc import Callable

import altair as alt

from dlemu.report.figure_base import COLOURS, MUTED, Canvas, Row, data
from dlemu.report.panels import _HEIGHT, side_colour
from dlemu.report.series import Point, RunSeries
from dlemu.results.figures import JobFigures, Value
from dlemu.studies.answers import RunPair
from dlemu.studies.compare.page import OpenedComparison
from dlemu.studies.series.figures._lines import x_axis


def lines(
    width: int,
    comparison: OpenedComparison,
    value: Callable[[Point], float | None],
    title: str,
    canvas: Canvas,
    *,
    most: float = math.inf,
) -> alt.LayerChart | None:
    """Draw one line per side over accelerators, or over what was varied; None when no value is known.

    Points of runs that passed are filled. The y axis ends at `most`, where it is finite.
    """
    series = comparison.series
    rows: list[Row] = [
        {
            "line": series.line(point),
            "at": series.position(point),
            "value": known,
            "passed": point.figures.passed is True or not series.catalogue.judged,
        }
        for point in series.points
        if (known := value(point)) is not None
    ]
    if not rows:
        return None
    names = sorted({series.line(point) for point in series.points})
    scale = alt.Scale(domain=[0, most]) if math.isfinite(most) else alt.Scale(domainMin=0)
    y = alt.Y("value:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5))
    base = alt.Chart(data(_in_order(rows))).encode(x=x_axis(series), y=y, color=side_colour(names, canvas))
    hollow = base.transform_filter("!datum.passed").mark_point(size=45, opacity=1, strokeWidth=1.6)
    full = base.transform_filter("datum.passed").mark_point(size=45, opacity=1, filled=True)
    return alt.layer(base.mark_line(strokeWidth=1.6), full, hollow).properties(width=width, height=_HEIGHT)


def over_pairs(
    width: int, comparison: OpenedComparison, value: Callable[[RunPair], Value | None], title: str, canvas: Canvas
) -> alt.LayerChart | None:
    """Draw a value of each pair, with its interval, relative to a line at 0; None when no value is known."""
    pairs = _pairs(comparison)
    rows: list[Row] = []
    for point, pair in zip(pairs.points, comparison.answer.runs, strict=True):
        known = value(pair)
        if known is not None:
            half = known.half_width or 0.0
            mark = {"line": pairs.line(point), "at": pairs.position(point), "value": known.mean}
            rows.append(mark | {"low": known.mean - half, "high": known.mean + half})
    if not rows:
        return None
    names = sorted({row["line"] for row in rows})
    hue = side_colour(names, canvas) if len(names) > 1 else alt.ColorValue(COLOURS[3])
    base = alt.Chart(data(_in_order(rows))).encode(x=x_axis(pairs), color=hue)
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5))
    zero = alt.Chart(data([{"zero": 0}])).mark_rule(color=MUTED, strokeWidth=1.2).encode(y=alt.Y("zero:Q"))
    whiskers = base.transform_filter("datum.high > datum.low").mark_rule().encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
    layers = zero, whiskers, base.mark_line().encode(y=y), base.mark_point(filled=True, size=45, opacity=1).encode(y=y)
    return alt.layer(*layers).properties(width=width, height=_HEIGHT)


def _pairs(comparison: OpenedComparison) -> RunSeries:
    """Return the pairs of runs as a series, which knows the line and the x position of each."""
    points = [
        Point(
            line="A to B",
            settings=pair.settings,
            figures=JobFigures(kind=comparison.answer.kind, workload="", ranks=pair.ranks[0]),
        )
        for pair in comparison.answer.runs
    ]
    return RunSeries(comparison.folder, tuple(points))


def _in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["line"], isinstance(row["at"], str), row["at"]))

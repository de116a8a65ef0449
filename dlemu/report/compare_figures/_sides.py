"""Panels of two sides: bars where one pair of runs is compared, lines where there are several."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import altair as alt

from dlemu.report.comparison_report import OpenedComparison
from dlemu.report.figures.figure_base import COLOURS, GREEN, INK, MUTED, Canvas, Row, colours, data, legend
from dlemu.report.series import Point, RunSeries
from dlemu.report.series_figures._lines import x_axis
from dlemu.report.units import with_unit
from dlemu.sizing.answers import RunPair, Value

_GAP = 62
"""Pixels that a further panel takes beside its width: its axis with title, and the room before it."""
_HEIGHT = 150


Panel = Callable[[int], alt.LayerChart | None]
"""Draws a panel of a width in pixels, None when it has nothing to show."""


def grid(panels: Sequence[Panel], canvas: Canvas, most_columns: int) -> alt.ConcatChart | None:
    """Lay panels out in rows, those left out that have nothing to show; None when none has."""
    known = [panel for panel in panels if panel(canvas.width) is not None]
    if not known:
        return None
    columns = min(most_columns, len(known))
    width = (canvas.width - _GAP * (columns - 1)) // columns
    return alt.concat(*(panel(width) for panel in known), columns=columns, spacing=18 if canvas.narrow else 24)


def bars(
    width: int,
    names: Sequence[str],
    values: Sequence[Value | None],
    title: str,
    canvas: Canvas,
    level: float | None = None,
    most: float = math.inf,
) -> alt.LayerChart | None:
    """Draw a bar a side with number and interval, and a line across at `level`; None when no side is known.

    No value is more than `most`: the axis ends there.
    """
    rows: list[Row] = []
    for name, value in zip(names, values, strict=True):
        if value is not None:
            half = value.half_width or 0.0
            low, high = max(0.0, value.mean - half), min(value.mean + half, most)
            bar = {"side": name[0], "line": name, "value": value.mean, "text": with_unit(value.mean, "")}
            rows.append(bar | {"low": low, "high": high})
    if not rows:
        return None
    room = alt.Scale(domain=[0, min(1.14 * max(row["high"] for row in rows) or 1, most)], nice=False)  # for the numbers
    y = alt.Y("value:Q", title=title, scale=room, axis=alt.Axis(tickCount=4))
    base = alt.Chart(data(rows)).encode(x=alt.X("side:N", title=None, axis=alt.Axis(labelAngle=0, ticks=False)))
    layers = [
        base.mark_bar(size=min(46, width // 4)).encode(y=y, color=_colour(names, canvas)),
        base.transform_filter("datum.high > datum.low").mark_rule(color=INK).encode(y="low:Q", y2="high:Q"),
        base.mark_text(baseline="bottom", dy=-3, color=INK, fontSize=11).encode(y="high:Q", text="text:N"),
    ]
    if level is not None:
        line = alt.Chart(data([{"level": level}])).mark_rule(color=GREEN, strokeDash=[6, 4], strokeWidth=1.5)
        layers.append(line.encode(y="level:Q"))
    return alt.layer(*layers).properties(width=width, height=_HEIGHT)


def lines(
    width: int,
    comparison: OpenedComparison,
    value: Callable[[Point], float | None],
    title: str,
    canvas: Canvas,
    most: float = math.inf,
) -> alt.LayerChart | None:
    """Draw a line a side over accelerators, or over what was varied; full points passed. None when nothing is known.

    Where values have a `most`, the axis ends there.
    """
    series = comparison.series
    rows: list[Row] = [
        {"line": series.line(point), "at": series.position(point), "value": known, "passed": point.passed is True}
        for point in series.points
        if (known := value(point)) is not None
    ]
    if not rows:
        return None
    names = sorted({series.line(point) for point in series.points})
    scale = alt.Scale(domain=[0, most]) if math.isfinite(most) else alt.Scale(domainMin=0)
    y = alt.Y("value:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5))
    base = alt.Chart(data(_in_order(rows))).encode(x=x_axis(series), y=y, color=_colour(names, canvas))
    hollow = base.transform_filter("!datum.passed").mark_point(size=45, opacity=1, strokeWidth=1.6)
    full = base.transform_filter("datum.passed").mark_point(size=45, opacity=1, filled=True)
    return alt.layer(base.mark_line(strokeWidth=1.6), full, hollow).properties(width=width, height=_HEIGHT)


def over_pairs(
    width: int, comparison: OpenedComparison, value: Callable[[RunPair], Value | None], title: str, canvas: Canvas
) -> alt.LayerChart | None:
    """Draw what is known of each pair as points around 0; None when nothing is known."""
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
    hue = _colour(names, canvas) if len(names) > 1 else alt.value(COLOURS[3])
    base = alt.Chart(data(_in_order(rows))).encode(x=x_axis(pairs), color=hue)
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5))
    zero = alt.Chart(data([{"zero": 0}])).mark_rule(color=MUTED, strokeWidth=1.2).encode(y="zero:Q")
    whiskers = base.transform_filter("datum.high > datum.low").mark_rule().encode(y="low:Q", y2="high:Q")
    layers = zero, whiskers, base.mark_line().encode(y=y), base.mark_point(filled=True, size=45, opacity=1).encode(y=y)
    return alt.layer(*layers).properties(width=width, height=_HEIGHT)


def _pairs(comparison: OpenedComparison) -> RunSeries:
    """Return the pairs of runs as a series, for where each stands and on which line."""
    points = [
        Point(line="A to B", settings=pair.settings, accelerators=pair.ranks[0], passed=None, au_percent=None)
        for pair in comparison.answer.runs
    ]
    return RunSeries(comparison.folder, tuple(points))


def _in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["line"], isinstance(row["at"], str), row["at"]))


def _colour(names: Sequence[str], canvas: Canvas) -> alt.Color:
    return alt.Color("line:N", scale=colours(names), legend=legend(canvas, 1 if canvas.narrow else 2))

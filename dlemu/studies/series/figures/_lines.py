"""Lines over accelerators, or over whatever else a series varies."""

from __future__ import annotations

from collections.abc import Callable

import altair as alt

from dlemu.metrics.t_interval import percent_interval
from dlemu.report.figure_base import GRID, HOVER, Canvas, Row, colours, data, legend
from dlemu.report.series import Point, RunSeries
from dlemu.report.units import verdict_word
from dlemu.results.figures import Value
from dlemu.results.wording import count


def metric_rows(series: RunSeries, metric: str) -> list[Row]:
    """Return a row for each point that has the metric; the interval of a percentage ends at 0 and at 100."""
    marks = rows(series, lambda point: point.figures.metrics.get(metric))
    if not any(known.name == metric and known.unit == "%" for known in series.catalogue):
        return marks
    ends = (percent_interval(row["value"], row["value"] - row["low"]) for row in marks)
    return [row | {"low": low, "high": high} for row, (low, high) in zip(marks, ends, strict=True)]


def rows(series: RunSeries, value: Callable[[Point], Value | None]) -> list[Row]:
    """Return a row for each point that has the value. For jobs that neither pass nor fail, all are marked "pass"."""
    marks = []
    for point in series.points:
        known = value(point)
        if known is not None:
            verdict = verdict_word(point.figures.passed, unknown="open") if series.catalogue.judged else "pass"
            row = {"line": series.line(point), "at": series.position(point), "value": known.mean, "verdict": verdict}
            half = known.half_width or 0.0
            marks.append(row | {"low": known.mean - half, "high": known.mean + half})
    return sorted(marks, key=lambda row: (row["line"], isinstance(row["at"], str), row["at"]))


def x_axis(series: RunSeries) -> alt.X:
    """Return the x axis: linear for numbers; names in the order of the points."""
    named = any(isinstance(series.position(point), str) for point in series.points)
    emulated = series.axis == series.counted and series.catalogue.feeds_accelerators
    title = f"emulated {series.axis}" if emulated else series.axis
    if named:
        return alt.X("at:N", title=title, sort=None, axis=alt.Axis(labelAngle=0, labelLimit=130))
    places = sorted({float(series.position(point)) for point in series.points})
    axis = alt.Axis(grid=False, values=places, format="~g", labelOverlap=True)  # ticks only at what was tried
    return alt.X("at:Q", title=title, axis=axis, scale=alt.Scale(domain=_domain(places), nice=False))


def _domain(places: list[float]) -> list[float]:
    """Return the x axis's domain: from 0 where that wastes little room, else from a little below the first value."""
    low, high = places[0], places[-1]
    room = 0.06 * high if low == high or 0 <= low < 0.4 * high else 0.2 * (high - low)
    return [0.0 if 0 <= low < 0.4 * high else low - room, high + room]


def colour(series: RunSeries, canvas: Canvas) -> alt.Color:
    """Return the colour encoding of the lines; a single line needs no legend."""
    names = sorted({series.line(point) for point in series.points})
    shown = legend(canvas, 1 if canvas.narrow else 2) if len(names) > 1 else None
    return alt.Color("line:N", scale=colours(names), legend=shown)


def lines(series: RunSeries, marks: list[Row], y: alt.Y, canvas: Canvas) -> alt.LayerChart:
    """Draw lines with points, filled where the run passed, else hollow; hovering over a point shows its values."""
    hoverable = [row | {"hover": HOVER + _hover_text(series, row)} for row in marks]
    base = alt.Chart(data(hoverable)).encode(x=x_axis(series), y=y, color=colour(series, canvas))
    line = base.mark_line(strokeWidth=1.6)
    full, hollow = alt.datum.verdict == "pass", alt.datum.verdict != "pass"
    shown = base.encode(description=alt.Description("hover:N"))
    points = shown.transform_filter(full).mark_point(filled=True, size=55, opacity=1)
    return alt.layer(line, points, shown.transform_filter(hollow).mark_point(size=55, fill=GRID, opacity=1))


def _hover_text(series: RunSeries, row: Row) -> str:
    """Return a point in words: `unet3d h100, 7 accelerators: 94.3 (92.8 to 95.8), pass`."""
    at = count(row["at"], series.catalogue.rank) if series.axis == series.counted else f"{series.axis}={row['at']}"
    between = f" ({row['low']:.4g} to {row['high']:.4g})" if row["low"] != row["high"] else ""
    verdict = f", {row['verdict']}" if series.catalogue.judged else ""
    return f"{row['line']}, {at}: {row['value']:.4g}{between}{verdict}"


def bars(series: RunSeries, marks: list[Row], title: str, scale: alt.Scale, canvas: Canvas) -> alt.LayerChart:
    """Draw the interval of each point as a vertical line."""
    ends = {"y": alt.Y("low:Q", title=title, scale=scale), "y2": "high:Q"}
    rules = alt.Chart(data(marks)).mark_rule(strokeWidth=1.4)
    return alt.layer(rules.encode(x=x_axis(series), color=colour(series, canvas), **ends))

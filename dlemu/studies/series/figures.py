"""Figures of several runs: lines over accelerators, or over whatever else was varied."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import altair as alt

from dlemu.metrics.catalogue import Metric
from dlemu.metrics.t_interval import percent_interval
from dlemu.report.figure_base import (
    GREEN,
    GRID,
    HOVER,
    PURPLE,
    Canvas,
    Figure,
    Row,
    colours,
    data,
    legend,
    percent_domain,
    rule,
)
from dlemu.report.series import Point, RunSeries
from dlemu.report.units import verdict_word
from dlemu.results.figures import Value
from dlemu.results.wording import count

_MOST_LINES = 3
"""With more lines than this, the title has no room for how many accelerators pass on each."""


def figures(series: RunSeries, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    """Yield name and figure of what the series shows, in the order of the page."""
    for draw in (au_by_count, throughput_by_count, metrics_by_count):
        figure = draw(series, canvas)
        if figure is not None:
            yield draw.__name__, figure


def au_by_count(series: RunSeries, canvas: Canvas) -> Figure | None:
    """AU against accelerators, with the pass line and the ceiling (the emulator's AU on this host without storage)."""
    if series.catalogue.judged != "au_percent" or not (marks := _metric_rows(series, series.judged)):
        return None
    metric = series.catalogue[series.judged]
    ceilings = _metric_rows(series, "ceiling_au_percent")
    passing = [] if series.threshold_percent is None else [series.threshold_percent]
    domain = percent_domain([row["low"] for row in marks] + [row["value"] for row in ceilings] + passing)
    scale = alt.Scale(domain=domain, nice=False, clamp=True)
    y, level = (alt.Y(field, title=metric.label, scale=scale) for field in ("value:Q", "level:Q"))
    # AU falls to the right, so the label has room on the left.
    layers = [rule(value, f"pass {value:g} %", GREEN, level, left=True) for value in passing]
    if ceilings:
        dots = alt.Chart(data(ceilings)).mark_line(color=PURPLE, strokeDash=[2, 3], strokeWidth=1.4)
        layers.append(alt.layer(dots.encode(x=x_axis(series), y=y, detail=alt.Detail("line:N"))))
    layers.append(_bars(series, marks, metric.label, scale, canvas))
    chart = alt.layer(*layers, _lines(series, marks, y, canvas))
    caption = "Filled points passed, hollow ones did not."
    if any(row["low"] != row["high"] for row in marks):
        caption += " Bars are intervals: 95 % over the epochs of a run, or those of a search."
    if ceilings:
        caption += " Dotted: the emulator's own ceiling, its AU on this host without any storage."
    title = f"{metric.title[0].upper()}{metric.title[1:]} against {series.axis}{series.scaled}{_found(series)}"
    return Figure(title, caption, chart.properties(width=canvas.width, height=260))


def _found(series: RunSeries) -> str:
    """Return the finding for the title: how many pass on each line; empty where a larger count passes than fails."""
    names = list(dict.fromkeys(map(series.line, series.points)))
    if series.axis != series.counted or len(names) > _MOST_LINES:
        return ""
    found = []
    for name in names:
        own = [point for point in series.points if series.line(point) == name]
        passed = [point.ranks for point in own if point.figures.passed]
        others = [point.ranks for point in own if not point.figures.passed]
        if passed and others and max(passed) > min(others):
            return ""
        most = f"{max(passed)} pass" if passed else "none passes"
        below = f", {min(others)} do not" if passed and others else ""
        found.append(f"{most}{below}" + f" ({name})" * (len(names) > 1))
    return ": " + "; ".join(found)


def throughput_by_count(series: RunSeries, canvas: Canvas) -> Figure | None:
    """Throughput of all accelerators and of each: once a drive is at its limit, the first is flat, the second falls."""
    read = _metric_rows(series, "app_mb_per_second")
    if not read:
        return None
    shown = {"MB/s, all accelerators": read, "MB/s per accelerator": _rows(series, _mb_per_second_each)}
    width = canvas.width if canvas.narrow else (canvas.width - 70) // 2
    panels = [
        _lines(series, marks, alt.Y("value:Q", title=title, scale=alt.Scale(domainMin=0)), canvas)
        for title, marks in shown.items()
    ]
    caption = (
        "What the loaders read, caches included (1e6 bytes), first steps of epochs included. Once the storage is at "
        f"its limit, the {'upper' if canvas.narrow else 'left'} line is flat and each accelerator gets less."
    )
    sized = [panel.properties(width=width, height=210) for panel in panels]
    return Figure("Throughput", caption, alt.vconcat(*sized) if canvas.narrow else alt.hconcat(*sized))


def _mb_per_second_each(point: Point) -> Value | None:
    read = point.figures.mean("app_mb_per_second")
    return None if read is None else Value(read / point.ranks)


def metrics_by_count(series: RunSeries, canvas: Canvas) -> Figure | None:
    """The main metrics except the judged one (AU of training) over whatever was varied, a panel each."""
    catalogue = series.catalogue
    shown = [metric for metric in catalogue.drawn if metric.name != catalogue.judged]
    panels = [panel for metric in shown if (panel := _metric_panel(series, metric, canvas))]
    if not panels:
        return None
    chart = alt.concat(*panels, columns=1 if canvas.narrow else 2)
    caption = f"{catalogue.note} Vertical lines are 95 % intervals over {catalogue.repetition}s."
    return Figure(f"Metrics against {series.axis}", caption.strip(), chart)


def _metric_panel(series: RunSeries, metric: Metric, canvas: Canvas) -> alt.LayerChart | None:
    marks = _metric_rows(series, metric.name)
    if not marks:
        return None
    scale = alt.Scale(domainMin=0, clamp=True)
    y = alt.Y("value:Q", title=metric.label, scale=scale)
    width = canvas.width if canvas.narrow else (canvas.width - 70) // 2
    layers = _bars(series, marks, metric.label, scale, canvas), _lines(series, marks, y, canvas)
    return alt.layer(*layers).properties(width=width, height=170)


def _metric_rows(series: RunSeries, metric: str) -> list[Row]:
    """Return a row for each point that has the metric; the interval of a percentage ends at 0 and at 100."""
    marks = _rows(series, lambda point: point.figures.metrics.get(metric))
    if not any(known.name == metric and known.unit == "%" for known in series.catalogue):
        return marks
    ends = (percent_interval(row["value"], row["value"] - row["low"]) for row in marks)
    return [row | {"low": low, "high": high} for row, (low, high) in zip(marks, ends, strict=True)]


def _rows(series: RunSeries, value: Callable[[Point], Value | None]) -> list[Row]:
    """Return a row for each point that has the value. For jobs that neither pass nor fail, all are marked "pass"."""
    marks = []
    for point in series.points:
        known = value(point)
        if known is not None:
            verdict = verdict_word(point.figures.passed, unknown="open") if series.catalogue.judged else "pass"
            row = {"line": series.line(point), "at": series.position(point), "value": known.mean, "verdict": verdict}
            half = known.half_width or 0.0
            marks.append(row | {"low": known.mean - half, "high": known.mean + half})
    return in_order(marks)


def in_order(rows: list[Row]) -> list[Row]:
    """Return rows sorted by their line and by their position on the x axis, which may be a name."""
    return sorted(rows, key=lambda row: (row["line"], isinstance(row["at"], str), row["at"]))


def x_axis(series: RunSeries) -> alt.X:
    """Return the x axis: linear for numbers; names in the order of the points."""
    named = any(isinstance(series.position(point), str) for point in series.points)
    emulated = series.axis == series.counted and series.catalogue.feeds_accelerators
    title = f"emulated {series.axis}{series.scaled}" if emulated else series.axis
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


def _colour(series: RunSeries, canvas: Canvas) -> alt.Color:
    """Return the colour encoding of the lines; a single line needs no legend."""
    names = sorted({series.line(point) for point in series.points})
    shown = legend(canvas, 1 if canvas.narrow else 2) if len(names) > 1 else None
    return alt.Color("line:N", scale=colours(names), legend=shown)


def _lines(series: RunSeries, marks: list[Row], y: alt.Y, canvas: Canvas) -> alt.LayerChart:
    """Draw lines with points, filled where the run passed, else hollow; hovering over a point shows its values."""
    hoverable = [row | {"hover": HOVER + _hover_text(series, row)} for row in marks]
    base = alt.Chart(data(hoverable)).encode(x=x_axis(series), y=y, color=_colour(series, canvas))
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


def _bars(series: RunSeries, marks: list[Row], title: str, scale: alt.Scale, canvas: Canvas) -> alt.LayerChart:
    """Draw the interval of each point as a vertical line."""
    ends = {"y": alt.Y("low:Q", title=title, scale=scale), "y2": "high:Q"}
    rules = alt.Chart(data(marks)).mark_rule(strokeWidth=1.4)
    return alt.layer(rules.encode(x=x_axis(series), color=_colour(series, canvas), **ends))

"""Throughput of all accelerators and of each one: where a drive is full the first is flat and the second falls."""

from __future__ import annotations

import altair as alt

from dlemu.report.figures.figure_base import Canvas, Figure
from dlemu.report.series import Point, RunSeries
from dlemu.report.series_figures._lines import Value, lines, rows

ORDER = 20


def draw(series: RunSeries, canvas: Canvas) -> Figure | None:
    if not rows(series, lambda point: point.app_mb_per_second):
        return None
    panels = (
        _panel(series, lambda point: point.app_mb_per_second, "MB/s, all accelerators", canvas),
        _panel(series, _each, "MB/s of each accelerator", canvas),
    )
    says = (
        "What the loaders read, caches included (1e6 bytes), first steps of epochs included. Once the storage gives "
        "all it can, the left line is flat and each accelerator gets less."
    )
    if canvas.narrow:
        says = says.replace("the left line", "the upper line")
    return Figure("Throughput", says, alt.vconcat(*panels) if canvas.narrow else alt.hconcat(*panels))


def _each(point: Point) -> float | None:
    return None if point.app_mb_per_second is None else point.app_mb_per_second / point.accelerators


def _panel(series: RunSeries, value: Value, title: str, canvas: Canvas) -> alt.LayerChart:
    y = alt.Y("value:Q", title=title, scale=alt.Scale(domainMin=0))
    width = canvas.width if canvas.narrow else (canvas.width - 70) // 2
    return lines(series, rows(series, value), y, canvas).properties(width=width, height=210)

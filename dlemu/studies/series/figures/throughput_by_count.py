"""Throughput of all accelerators and of each: once a drive is at its limit, the first is flat and the second falls."""

from __future__ import annotations

import altair as alt

from dlemu.report.figure_base import Canvas, Figure, Row
from dlemu.report.series import Point, RunSeries
from dlemu.results.figures import Value
from dlemu.studies.series.figures._lines import lines, metric_rows, rows

ORDER = 20


def draw(series: RunSeries, canvas: Canvas) -> Figure | None:
    read = metric_rows(series, "app_mb_per_second")
    if not read:
        return None
    panels = (
        _panel(series, read, "MB/s, all accelerators", canvas),
        _panel(series, rows(series, _each), "MB/s per accelerator", canvas),
    )
    caption = (
        "What the loaders read, caches included (1e6 bytes), first steps of epochs included. Once the storage is at "
        "its limit, the left line is flat and each accelerator gets less."
    )
    if canvas.narrow:
        caption = caption.replace("the left line", "the upper line")
    return Figure("Throughput", caption, alt.vconcat(*panels) if canvas.narrow else alt.hconcat(*panels))


def _each(point: Point) -> Value | None:
    read = point.figures.mean("app_mb_per_second")
    return None if read is None else Value(read / point.ranks)


def _panel(series: RunSeries, marks: list[Row], title: str, canvas: Canvas) -> alt.LayerChart:
    y = alt.Y("value:Q", title=title, scale=alt.Scale(domainMin=0))
    width = canvas.width if canvas.narrow else (canvas.width - 70) // 2
    return lines(series, marks, y, canvas).properties(width=width, height=210)

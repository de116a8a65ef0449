"""Line charts over the setting that a packing varies: processes, images, or another."""

from __future__ import annotations

from collections.abc import Callable

import altair as alt

from dlemu.contrib.pack.page import OpenedPack
from dlemu.contrib.pack.result import PackFigures
from dlemu.report.figure_base import Canvas, Row, colours, data, legend

_TIMES_LOGARITHMIC = 20
"""From this ratio of the largest to the smallest value, the x axis is logarithmic."""


def rows(opened: OpenedPack, value: Callable[[PackFigures], float]) -> list[Row]:
    """Return a data row for each point that was packed."""
    return [
        {"line": opened.line(point), "at": opened.position(point, figures), "value": value(figures)}
        for point, figures in opened.known
    ]


def x_axis(opened: OpenedPack, marks: list[Row]) -> alt.X:
    """Return the x axis: linear or logarithmic for numbers, categories in the given order for names."""
    places = sorted({row["at"] for row in marks}, key=str)
    if any(isinstance(place, str) for place in places):
        return alt.X("at:N", title=opened.axis, sort=None, axis=alt.Axis(labelAngle=0, labelLimit=130))
    numbers = sorted(float(place) for place in places)
    logarithmic = numbers[0] > 0 and numbers[-1] >= _TIMES_LOGARITHMIC * numbers[0]
    scale = alt.Scale(type="log", base=2, nice=False) if logarithmic else alt.Scale(domainMin=0)
    return alt.X(
        "at:Q",
        title=opened.axis,
        scale=scale,
        axis=alt.Axis(grid=False, values=numbers, format="~s" if numbers[-1] > 9999 else "~g", labelOverlap=True),
    )


def lines(opened: OpenedPack, marks: list[Row], title: str, canvas: Canvas) -> alt.LayerChart:
    """Draw a line with points for each value of the other settings, such as each drive."""
    names = sorted({row["line"] for row in marks})
    shown = legend(canvas, 1 if canvas.narrow else 2) if len(names) > 1 else None
    base = alt.Chart(data(marks)).encode(
        x=x_axis(opened, marks),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(domainMin=0)),
        color=alt.Color("line:N", scale=colours(names), legend=shown),
    )
    return alt.layer(base.mark_line(strokeWidth=1.6), base.mark_point(filled=True, size=45, opacity=1))


def panels(
    opened: OpenedPack, shown: dict[str, Callable[[PackFigures], float]], canvas: Canvas
) -> alt.HConcatChart | alt.VConcatChart | None:
    """Draw panels side by side, or stacked on a narrow canvas; None with fewer than two values on the x axis."""
    if len({opened.position(point, figures) for point, figures in opened.known}) < 2:
        return None
    width = canvas.width if canvas.narrow else (canvas.width - 70) // 2
    drawn = [
        lines(opened, rows(opened, value), title, canvas).properties(width=width, height=210)
        for title, value in shown.items()
    ]
    return alt.vconcat(*drawn) if canvas.narrow else alt.hconcat(*drawn)

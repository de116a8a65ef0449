"""Panels of which the figures of vendor documents are composed."""

from __future__ import annotations

import altair as alt

from dlemu.report.figure_base import Canvas, Figure, Row, colours, data, legend

_ROOM = 70
"""Pixels between two panels, room for the second one's y axis."""


def bars(rows: list[Row], across: str, title: str, drives: list[str], canvas: Canvas) -> alt.Chart:
    """Draw a group of bars at each `at` of the rows, one bar of `value` per drive."""
    return (
        alt.Chart(data(rows))
        .mark_bar()
        .encode(
            x=alt.X("at:N", title=across, sort=None, axis=alt.Axis(labelAngle=0)),
            xOffset=alt.XOffset("drive:N", sort=drives),
            y=alt.Y("value:Q", title=title, scale=alt.Scale(domainMin=0)),
            color=_colour(drives, canvas),
        )
        .properties(width=width(canvas), height=150)
    )


def lines(rows: list[Row], across: str, title: str, drives: list[str], canvas: Canvas) -> alt.LayerChart:
    """Draw a line of `value` over `at` (logarithmic axis) for each drive."""
    places = sorted({row["at"] for row in rows})
    axis = alt.Axis(grid=False, values=places, format="~g", labelOverlap=True)
    base = alt.Chart(data(rows)).encode(
        x=alt.X("at:Q", title=across, scale=alt.Scale(type="log", base=2, nice=False), axis=axis),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(domainMin=0)),
        color=_colour(drives, canvas),
    )
    drawn = alt.layer(base.mark_line(strokeWidth=1.6), base.mark_point(filled=True, size=35, opacity=1))
    return drawn.properties(width=width(canvas), height=150)


def grid(panels: list[alt.Chart | alt.LayerChart], canvas: Canvas) -> alt.ConcatChart:
    """Put panels side by side; on a narrow canvas, below each other."""
    drawn = alt.concat(*panels, columns=1 if canvas.narrow else 2)
    return drawn.resolve_scale(xOffset="independent")  # without this, all bars are as wide as those of the first panel


def stacked(panels: list[alt.LayerChart]) -> alt.VConcatChart:
    """Put panels below each other, each with its own colours."""
    return alt.vconcat(*panels).resolve_scale(color="independent")


def titled(figure: Figure, title: str) -> alt.LayerChart:
    """Return the chart of a figure as a low panel with a title of its own."""
    chart: alt.LayerChart = figure.chart.properties(title=alt.Title(title, fontSize=12), height=110)
    return chart


def width(canvas: Canvas) -> int:
    """Return a panel's width."""
    return canvas.width if canvas.narrow else (canvas.width - _ROOM) // 2


def _colour(drives: list[str], canvas: Canvas) -> alt.Color:
    shown = legend(canvas, 2) if len(drives) > 1 else None
    return alt.Color("drive:N", scale=colours(drives), legend=shown, sort=drives)

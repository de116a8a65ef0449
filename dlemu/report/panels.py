"""Panels side by side, and bar charts that compare two sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import altair as alt

from dlemu.report.figure_base import GREEN, INK, Canvas, Row, colours, data, legend
from dlemu.report.units import with_unit
from dlemu.results.figures import Value

_GAP = 62
"""Pixels that each further panel needs besides its width, for its axis, title and spacing."""
_HEIGHT = 150
Panel = Callable[[int], alt.LayerChart | None]
"""Draws a panel, given its width in pixels; returns None if it has nothing to show."""


def grid(panels: Sequence[Panel], canvas: Canvas, max_columns: int) -> alt.ConcatChart | None:
    """Lay out in rows the panels that have something to show; None if there are none."""
    known = list(panels)
    while known:
        columns = min(max_columns, len(known))
        width = (canvas.width - _GAP * (columns - 1)) // columns
        drawn = [(panel, chart) for panel in known if (chart := panel(width)) is not None]
        if min(max_columns, len(drawn)) == columns:
            return alt.concat(*(chart for _, chart in drawn), columns=columns, spacing=18 if canvas.narrow else 24)
        known = [panel for panel, _ in drawn]  # fewer columns are wider
    return None


def bars(
    width: int,
    names: Sequence[str],
    values: Sequence[Value | None],
    title: str,
    canvas: Canvas,
    level: float | None = None,
    maximum: float = math.inf,
) -> alt.LayerChart | None:
    """Draw a bar per side, with number and interval, and a line at `level`; None if no side has a value.

    `maximum` is the largest possible value, where the axis ends.
    """
    rows: list[Row] = []
    for name, value in zip(names, values, strict=True):
        if value is not None:
            half = value.half_width or 0.0
            low, high = max(0.0, value.mean - half), min(value.mean + half, maximum)
            bar = {"side": name[0], "line": name, "value": value.mean, "text": with_unit(value.mean, "")}
            rows.append(bar | {"low": low, "high": high})
    if not rows:
        return None
    top = min(1.14 * max(row["high"] for row in rows) or 1, maximum)  # 14 % of room for the numbers
    y = alt.Y("value:Q", title=title, scale=alt.Scale(domain=[0, top], nice=False), axis=alt.Axis(tickCount=4))
    base = alt.Chart(data(rows)).encode(x=alt.X("side:N", title=None, axis=alt.Axis(labelAngle=0, ticks=False)))
    layers = [
        base.mark_bar(size=min(46, width // 4)).encode(y=y, color=side_colour(names, canvas)),
        base.transform_filter("datum.high > datum.low")
        .mark_rule(color=INK)
        .encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
        base.mark_text(baseline="bottom", dy=-3, color=INK, fontSize=11).encode(
            y=alt.Y("high:Q"), text=alt.Text("text:N")
        ),
    ]
    if level is not None:
        line = alt.Chart(data([{"level": level}])).mark_rule(color=GREEN, strokeDash=[6, 4], strokeWidth=1.5)
        layers.append(line.encode(y=alt.Y("level:Q")))
    return alt.layer(*layers).properties(width=width, height=_HEIGHT)


def side_colour(names: Sequence[str], canvas: Canvas) -> alt.Color:
    return alt.Color("line:N", scale=colours(names), legend=legend(canvas, 1 if canvas.narrow else 2))

"""Panels side by side, and bars of two sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import altair as alt

from dlemu.report.figure_base import GREEN, INK, Canvas, Row, colours, data, legend
from dlemu.report.units import with_unit
from dlemu.results.figures import Value

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
        base.mark_bar(size=min(46, width // 4)).encode(y=y, color=side_colour(names, canvas)),
        base.transform_filter("datum.high > datum.low").mark_rule(color=INK).encode(y="low:Q", y2="high:Q"),
        base.mark_text(baseline="bottom", dy=-3, color=INK, fontSize=11).encode(y="high:Q", text="text:N"),
    ]
    if level is not None:
        line = alt.Chart(data([{"level": level}])).mark_rule(color=GREEN, strokeDash=[6, 4], strokeWidth=1.5)
        layers.append(line.encode(y="level:Q"))
    return alt.layer(*layers).properties(width=width, height=_HEIGHT)


def side_colour(names: Sequence[str], canvas: Canvas) -> alt.Color:
    return alt.Color("line:N", scale=colours(names), legend=legend(canvas, 1 if canvas.narrow else 2))

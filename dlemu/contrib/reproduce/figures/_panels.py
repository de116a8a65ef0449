"""Panels of which the figures of vendor documents are composed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import altair as alt

from dlemu.contrib.reproduce.page import OpenedDocument, Panel
from dlemu.report.figure_base import Canvas, Figure, colours, data, legend

_ROOM = 70
"""Pixels between two panels, room for the second one's y axis."""


def grid(
    name: str,
    title: str,
    caption: str,
    panels: Sequence[Panel],
    opened: OpenedDocument,
    canvas: Canvas,
    *,
    lines: bool = False,
) -> Iterator[tuple[str, Figure]]:
    """Yield the name and figure of panels side by side, or below each other on a narrow canvas; none without values."""
    drawn = [_panel(panel, opened.drives, canvas, lines=lines) for panel in panels if panel.values]
    if drawn:
        chart = alt.concat(*drawn, columns=1 if canvas.narrow else 2)
        # without this, all bars are as wide as those of the first panel
        yield name, Figure(title, caption, chart.resolve_scale(xOffset="independent"))


def _panel(panel: Panel, drives: list[str], canvas: Canvas, *, lines: bool) -> alt.Chart | alt.LayerChart:
    """Draw a line of the quantity (logarithmic x axis), or a bar at each place, for each drive."""
    rows = [{"at": place, "drive": drive, "value": value} for (drive, place), value in panel.values.items()]
    shown = legend(canvas, 2) if len(drives) > 1 else None
    base = alt.Chart(data(rows)).encode(
        y=alt.Y("value:Q", title=panel.title, scale=alt.Scale(domainMin=0)),
        color=alt.Color("drive:N", scale=colours(drives), legend=shown, sort=drives),
    )
    if lines:
        axis = alt.Axis(grid=False, values=sorted({row["at"] for row in rows}), format="~g", labelOverlap=True)
        scale = alt.Scale(type="log", base=2, nice=False)
        base = base.encode(x=alt.X("at:Q", title=panel.across, scale=scale, axis=axis))
        drawn = alt.layer(base.mark_line(strokeWidth=1.6), base.mark_point(filled=True, size=35, opacity=1))
    else:
        x = alt.X("at:O", title=panel.across, sort=None, axis=alt.Axis(labelAngle=0))
        drawn = base.mark_bar().encode(x=x, xOffset=alt.XOffset("drive:N", sort=drives))
    return drawn.properties(width=canvas.width if canvas.narrow else (canvas.width - _ROOM) // 2, height=150)


def stacked(panels: list[alt.LayerChart]) -> alt.VConcatChart:
    """Put panels below each other, each with its own colours."""
    return alt.vconcat(*panels).resolve_scale(color="independent")


def titled(figure: Figure, title: str) -> alt.LayerChart:
    """Return the chart of a figure as a low panel with a title of its own."""
    chart: alt.LayerChart = figure.chart.properties(title=alt.Title(title, fontSize=12), height=110)
    return chart

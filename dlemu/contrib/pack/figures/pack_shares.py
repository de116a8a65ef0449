"""Figure: how the processes spent their time."""

from __future__ import annotations

import altair as alt

from dlemu.contrib.pack.page import OpenedPack
from dlemu.report.figure_base import AMBER, BLUE, GREEN, GREY, RED, Canvas, Figure, colours, data, legend
from dlemu.report.units import at

ORDER = 30
_PARTS = {
    "reading": (RED, "reading"),
    "computing": (GREEN, "computing"),
    "wanting_core": (AMBER, "waiting for a core"),
    "writing": (BLUE, "writing"),
    "idle": (GREY, "no image left"),
}


def draw(opened: OpenedPack, canvas: Canvas) -> Figure | None:
    if not opened.known:
        return None
    marks = [
        {
            "line": opened.line(point),
            "at": str(opened.position(point, figures)),
            "part": name,
            "value": at(figures.shares, key),
            "order": order,
        }
        for point, figures in opened.known
        for order, (key, (_, name)) in enumerate(_PARTS.items())
    ]
    names = [name for _, name in _PARTS.values()]
    several = len({row["line"] for row in marks}) > 1
    chart = (
        alt.Chart(data(marks))
        .mark_bar()
        .encode(
            y=alt.Y("at:N", title=opened.axis, sort=None),
            x=alt.X("value:Q", title="% of the processes' time", scale=alt.Scale(domain=[0, 100])),
            color=alt.Color(
                "part:N",
                scale=colours(names, [colour for colour, _ in _PARTS.values()]),
                sort=names,
                legend=legend(canvas),
            ),
            order=alt.Order("order:Q"),
        )
        .properties(width=canvas.width)
    )
    drawn = chart.facet(row=alt.Row("line:N", title=None)).resolve_scale(y="independent") if several else chart
    caption = "Reading and writing: blocked in storage with nothing else to do. Waiting for a core: others used it."
    return Figure("How the processes spent their time", caption, drawn)

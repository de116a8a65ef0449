"""The figures of documents, each with a panel for each quantity of a table."""

from __future__ import annotations

from collections.abc import Iterator

import altair as alt

from dlemu.contrib.reproduce.document import document_named
from dlemu.contrib.reproduce.rows import Panel, over_time, panels_of, rows_of
from dlemu.contrib.reproduce.run import Reproduced
from dlemu.report.figure_base import WIDTH, Figure, colours, data, legend

_AXIS_ROOM = 70  # pixels between two panels, for the y axis of the second


def figures(answer: Reproduced, folder: str) -> Iterator[tuple[str, Figure]]:
    """Yield the name and figure of each table that has a figure and values."""
    rows = list(rows_of(answer, folder))
    for table in document_named(answer.question.document).tables:
        if not table.figure:
            continue
        panels = over_time(rows, table) if table.shape == "over time" else panels_of(rows, table)
        if charts := [_chart(panel) for panel in panels if panel.values]:
            # With a shared scale, the bars of all panels would be as wide as those of the first.
            chart = alt.concat(*charts, columns=2).resolve_scale(xOffset="independent")
            yield table.figure, Figure(table.title, table.caption, chart)


def _chart(panel: Panel) -> alt.Chart | alt.LayerChart:
    """Draw a panel: a line, or a bar at each x value, for each drive or run."""
    rows = [{"at": x_value, "series": series, "value": value} for (series, x_value), value in panel.values.items()]
    series = list(dict.fromkeys(row["series"] for row in rows))
    base = alt.Chart(data(rows)).encode(
        y=alt.Y("value:Q", title=panel.title, scale=alt.Scale(domainMin=0)),
        color=alt.Color("series:N", scale=colours(series), legend=legend(2) if len(series) > 1 else None, sort=series),
    )
    chart: alt.Chart | alt.LayerChart
    if panel.shape == "over time":
        chart = base.mark_line(strokeWidth=1.3).encode(x=alt.X("at:Q", title=panel.across))
    elif panel.shape == "lines":
        axis = alt.Axis(grid=False, values=sorted({row["at"] for row in rows}), format="~g", labelOverlap=True)
        scale = alt.Scale(type="log", base=2, nice=False)
        base = base.encode(x=alt.X("at:Q", title=panel.across, scale=scale, axis=axis))
        chart = alt.layer(base.mark_line(strokeWidth=1.6), base.mark_point(filled=True, size=35, opacity=1))
    else:
        x = alt.X("at:O", title=panel.across, sort=None, axis=alt.Axis(labelAngle=0))
        chart = base.mark_bar().encode(x=x, xOffset=alt.XOffset("series:N", sort=series))
    return chart.properties(width=(WIDTH - _AXIS_ROOM) // 2, height=150)

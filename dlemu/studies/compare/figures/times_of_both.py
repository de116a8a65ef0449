"""How long each repetition of a phase took on either side, to see drift and slow outliers."""

from __future__ import annotations

import altair as alt

from dlemu.metrics.catalogue import Metric
from dlemu.report.figure_base import Canvas, Figure, Row, colours, data, legend
from dlemu.studies.compare.page import OpenedComparison

ORDER = 25


def draw(comparison: OpenedComparison, canvas: Canvas) -> Figure | None:
    if any(len(side.runs) != 1 for side in comparison.answer.sides):
        return None
    known = {metric.label: rows for metric in comparison.catalogue.times if (rows := _rows(comparison, metric))}
    if not known or max(row["at"] for rows in known.values() for row in rows) < 2:
        return None
    repetition = comparison.catalogue.repetition
    width = canvas.width if canvas.narrow or len(known) == 1 else (canvas.width - 62) // 2
    hue = alt.Color("line:N", scale=colours(comparison.names), legend=legend(canvas, 1 if canvas.narrow else 2))
    panels = []
    for title, rows in known.items():
        most = max(row["at"] for row in rows)
        axis = alt.Axis(grid=False, format="d", values=list(range(1, most + 1, max(1, most // 10))))
        base = alt.Chart(data(rows)).encode(
            x=alt.X("at:Q", title=f"{repetition}, in order", axis=axis),
            y=alt.Y("value:Q", title=title, scale=alt.Scale(domainMin=0)),
            color=hue,
        )
        layers = base.mark_line(strokeWidth=1.6), base.mark_point(filled=True, size=40, opacity=1)
        panels.append(alt.layer(*layers).properties(width=width, height=170))
    chart = alt.concat(*panels, columns=1 if canvas.narrow else 2, spacing=24)
    return Figure(f"Time of each {repetition}", "Time of the slowest rank, for which the others wait.", chart)


def _rows(comparison: OpenedComparison, metric: Metric) -> list[Row]:
    return [
        {"line": name, "at": place, "value": float(f"{seconds:.4g}")}
        for name, side in zip(comparison.names, comparison.answer.sides, strict=True)
        if (value := side.runs[0].figures.metrics.get(metric.name)) is not None
        for place, seconds in enumerate(value.each, start=1)
    ]

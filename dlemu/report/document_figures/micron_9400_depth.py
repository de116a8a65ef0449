"""Micron's figures 3 to 6: the queue's depth over time, and the shares of depths, with 1 accelerator and with 15."""

from __future__ import annotations

import altair as alt

from dlemu.report.document_report import OpenedDocument
from dlemu.report.figures import queue_depth, queue_depth_share
from dlemu.report.figures.figure_base import Canvas, Figure

ORDER = 30


def draw(opened: OpenedDocument, canvas: Canvas) -> Figure | None:
    panels, says = [], []
    for what in (queue_depth, queue_depth_share):
        for name in ("ranks-1", "ranks-15"):
            run = opened.run(name)
            figure = what.draw(run, canvas) if run is not None else None
            if figure is not None:
                count = name.removeprefix("ranks-")
                title = alt.Title(f"{figure.title}, {count} accelerator{'s' * (count != '1')}", fontSize=12)
                panels.append(figure.chart.properties(title=title, height=110))
                says.append(figure.says)
    if not panels:
        return None
    chart = alt.vconcat(*panels).resolve_scale(color="independent")
    return Figure("Queue depth over time, and shares of depths", " ".join(dict.fromkeys(says)), chart)

"""Throughput over time, of the loaders and of the devices."""

from __future__ import annotations

import altair as alt

from dlemu.jobs.training.figures._timeline import (
    APPLICATION,
    DEVICE,
    change_marks,
    epoch_marks,
    throughput_rows,
    x_axis,
)
from dlemu.jobs.training.result import Run
from dlemu.report.figure_base import AMBER, BLUE, Canvas, Figure, colours, data, legend

ORDER = 40


def draw(run: Run, canvas: Canvas) -> Figure | None:
    rows = throughput_rows(run, canvas)
    if not rows:
        return None
    names = sorted({row["what"] for row in rows}, reverse=True)
    y = alt.Y("mb:Q", title="MB/s (1e6 bytes)", scale=alt.Scale(domainMin=0))
    lines = alt.Chart(data(rows)).mark_line(interpolate="step-before", strokeWidth=1.4)
    colour = alt.Color("what:N", scale=colours([APPLICATION, DEVICE], (BLUE, AMBER)), legend=legend(canvas, 2))
    if len(names) == 1:
        colour = alt.ColorValue(BLUE)
    changes = change_marks(run)
    marks = [epoch_marks(run), *([changes] if changes else [])]
    chart = alt.layer(*marks, lines.encode(x=x_axis(run), y=y, color=colour))
    caption = (
        "Bytes of each batch over the time its worker took to fetch it, caches included. At the start of an epoch "
        "all workers fill their queues at once: the peak there shows what storage and host can deliver."
    )
    if len(names) > 1:
        caption += " Where the devices' line is below the loader's, the page cache or read-ahead served the rest."
    if changes:
        caption += " A red line marks where the storage's speed changed."
    return Figure("Throughput over time", caption, chart.properties(width=canvas.width, height=220))

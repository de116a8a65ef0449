"""Bytes read over time, as the application saw them and as the devices did: each epoch begins with a burst."""

from __future__ import annotations

import altair as alt

from dlemu.metrics.over_time import mean_rates
from dlemu.report.figures._time_axis import edges, epoch_marks, summed, x_axis
from dlemu.report.figures.figure_base import AMBER, BLUE, Canvas, Figure, Result, Row, colours, data, legend, rounded
from dlemu.report.result import Floats, Run

PLACE = 40
APPLICATION, DEVICE = "read by the loader", "read from the devices"


def draw(result: Result, canvas: Canvas) -> Figure | None:
    rows = throughput_rows(result, canvas)
    if not rows:
        return None
    names = sorted({row["what"] for row in rows}, reverse=True)
    y = alt.Y("mb:Q", title="MB/s (1e6 bytes)", scale=alt.Scale(domainMin=0))
    lines = alt.Chart(data(rows)).mark_line(interpolate="step-before", strokeWidth=1.4)
    colour = alt.Color("what:N", scale=colours([APPLICATION, DEVICE], (BLUE, AMBER)), legend=legend(canvas, 2))
    if len(names) == 1:
        colour = alt.value(BLUE)
    chart = alt.layer(epoch_marks(result), lines.encode(x=x_axis(result), y=y, color=colour))
    says = (
        "Every batch's bytes over the time its worker took to fetch it, caches included. At an epoch's start the "
        "workers fill their queues at once: the burst shows the most that storage and host can give."
    )
    if len(names) > 1:
        says += " Where the devices' line lies below the loader's, the page cache or a read-ahead served the rest."
    return Figure("Throughput over time", says, chart.properties(width=canvas.width, height=220))


def throughput_rows(run: Run, canvas: Canvas) -> list[Row]:
    """Return the points of both lines, none without a step log."""
    if run.training is None or run.steps is None:
        return []
    found = run.steps[(run.steps["app_bytes"] > 0) & (run.steps["finished_ns"] > run.steps["started_ns"])]
    if not len(found):
        return []
    bounds = edges(run, canvas)
    starts, ends = run.seconds("started_ns", found), run.seconds("finished_ns", found)
    rates = mean_rates(starts, ends, found["app_bytes"] / 1e6, bounds)
    rows = _rows(APPLICATION, bounds[1:], rates)
    devices = run.device_readings("block", "read_mb_per_second")
    return rows + _rows(DEVICE, bounds[1:], summed(devices, bounds)) if devices else rows


def _rows(what: str, at: Floats, values: Floats) -> list[Row]:
    pairs = zip(rounded(at), rounded(values, 4), strict=True)
    return [{"what": what, "at": second, "mb": value} for second, value in pairs]

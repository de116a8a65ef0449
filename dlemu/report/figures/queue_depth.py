"""Requests in the devices' queues over time, by operation when a block trace was taken."""

from __future__ import annotations

import altair as alt

from dlemu.report.figures._time_axis import epoch_marks, line, x_axis
from dlemu.report.figures.base import AMBER, BLUE, Canvas, Figure, Result, Row, colours, data, legend, rounded
from dlemu.report.result import Reading

PLACE = 50
_TRACED = {"queue_depth_read": "reads", "queue_depth_write": "writes"}


def draw(result: Result, canvas: Canvas) -> Figure | None:
    traced = result.readings("trace", *_TRACED)
    readings = traced or result.device_readings("block", "mean_queue_depth")
    rows = [row for one in readings for row in _rows(one, bool(traced), len(readings) > 1, canvas)]
    if not rows:
        return None
    names = list(dict.fromkeys(row["what"] for row in rows))
    y = alt.Y("depth:Q", title="requests in the queue", scale=alt.Scale(domainMin=0))
    colour = alt.Color("what:N", scale=colours(names, (BLUE, AMBER) if traced else (BLUE,)), legend=legend(canvas, 2))
    if len(names) == 1:
        colour = alt.value(BLUE)
    lines = alt.Chart(data(rows)).mark_line(clip=True, interpolate="step-before", strokeWidth=1.4)
    chart = alt.layer(epoch_marks(result), lines.encode(x=x_axis(result), y=y, color=colour))
    kind = "reads and writes apart, from the block trace" if traced else "reads and writes together"
    says = f"Mean number of requests that the device had not yet answered, in each interval; {kind}."
    return Figure("Device queue depth over time", says, chart.properties(width=canvas.width, height=200))


def _rows(one: Reading, traced: bool, several: bool, canvas: Canvas) -> list[Row]:
    name = _TRACED[one.metric] if traced else one.source or one.host
    if traced and several and one.source:
        name = f"{one.source} {name}"
    seconds, values = line(one, canvas)
    pairs = zip(rounded(seconds), rounded(values, 4), strict=True)
    return [{"what": name, "at": second, "depth": value} for second, value in pairs]

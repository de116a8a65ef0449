"""Requests in the devices' queues over time, by operation."""

from __future__ import annotations

from dataclasses import replace

import altair as alt
import numpy as np

from dlemu.report.figures._time_axis import binned, epoch_marks, x_axis
from dlemu.report.figures.figure_base import COLOURS, Canvas, Figure, Result, Row, colours, data, legend
from dlemu.report.result import Reading, Run

PLACE = 50
_TRACED = {"queue_depth_read": "reads", "queue_depth_write": "writes"}
_COUNTED = {
    "reads": ("reads_per_second", "mean_read_latency_ms"),
    "writes": ("writes_per_second", "mean_write_latency_ms"),
}
_MOST_LINES = len(COLOURS)


def draw(result: Result, canvas: Canvas) -> Figure | None:
    depths, how = _depths(result)
    if not depths:
        return None
    lines = _lines(depths)
    rows: list[Row] = [
        {"what": name, "at": at, "depth": depth}
        for name, readings in lines.items()
        for at, depth in binned(readings, result, canvas)
    ]
    y = alt.Y("depth:Q", title="requests in the queue", scale=alt.Scale(domainMin=0))
    colour = alt.Color("what:N", scale=colours([*lines]), legend=legend(canvas, 2))
    drawn = alt.Chart(data(rows)).mark_line(clip=True, interpolate="step-before", strokeWidth=1.4)
    chart = alt.layer(epoch_marks(result), drawn.encode(x=x_axis(result), y=y, color=colour))
    says = f"Mean number of requests that the device had not yet answered, {how}."
    if len(depths) > len(lines):
        says += " All devices behind the dataset together."
    return Figure("Device queue depth over time", says, chart.properties(width=canvas.width, height=200))


def _depths(run: Run) -> tuple[list[tuple[str, str, Reading]], str]:
    """Return operation, device and depth over time of each, and how that is known."""
    several = len({one.host for one in run.device_readings("block")}) > 1

    def device(one: Reading) -> str:
        return f"{one.host}: {one.source}" if several else one.source or one.host

    traced = [(_TRACED[one.metric], device(one), one) for one in run.readings("trace", *_TRACED)]
    if traced:
        return traced, "exactly, from the block trace"
    counted = [
        (operation, device(one), one)
        for operation, (rate, latency) in _COUNTED.items()
        for one in _by_littles_law(run, rate, latency)
    ]
    if counted:
        busy = [(name, where, one) for name, where, one in counted if name == "reads" or one.values.any()]
        return busy, "by Little's law: completed each second x their mean time in the device"
    whole = [("requests", device(one), one) for one in run.device_readings("block", "mean_queue_depth")]
    return whole, "reads and writes together"


def _by_littles_law(run: Run, rate: str, latency: str) -> list[Reading]:
    """Return each device's mean number of requests of one kind: none are there where none had a latency."""
    times = {(one.host, one.source): one for one in run.device_readings("block", latency)}
    found = []
    for one in run.device_readings("block", rate):
        took = times.get((one.host, one.source))
        if took is None:
            continue
        known = dict(zip(took.seconds.tolist(), took.values.tolist(), strict=True))
        ms = np.array([known.get(second, 0.0) for second in one.seconds.tolist()])
        found.append(replace(one, metric="depth", values=np.nan_to_num(one.values * ms / 1e3)))
    return found


def _lines(depths: list[tuple[str, str, Reading]]) -> dict[str, list[Reading]]:
    """Return a line for each device and operation, or of very many for each operation."""
    several = len({where for _, where, _ in depths}) > 1
    apart: dict[str, list[Reading]] = {}
    for operation, where, one in depths:
        apart.setdefault(f"{where} {operation}" if several and len(depths) <= _MOST_LINES else operation, []).append(
            one
        )
    return apart

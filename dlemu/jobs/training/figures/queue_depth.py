"""Requests in the devices' queues over time, by operation."""

from __future__ import annotations

import math
from dataclasses import replace

import altair as alt
import numpy as np

from dlemu.jobs.training.figures._timeline import binned, epoch_marks, x_axis
from dlemu.jobs.training.measured import Series
from dlemu.jobs.training.result import Run
from dlemu.report.figure_base import COLOURS, Canvas, Figure, Row, colours, data, legend, whole_ticks

ORDER = 50
_TRACED = {"queue_depth_read": "reads", "queue_depth_write": "writes"}
_COUNTED = {
    "reads": ("reads_per_second", "mean_read_latency_ms"),
    "writes": ("writes_per_second", "mean_write_latency_ms"),
}
_MAX_LINES = len(COLOURS)


def draw(run: Run, canvas: Canvas) -> Figure | None:
    depths, method = _depths(run)
    if not depths:
        return None
    lines = _lines(depths)
    rows: list[Row] = [
        {"what": name, "at": at, "depth": depth}
        for name, sources in lines.items()
        for at, depth in binned(sources, run, canvas)
    ]
    top = math.ceil(max((float(row["depth"]) for row in rows), default=0)) or 1
    scale, axis = alt.Scale(domain=[0, top]), alt.Axis(values=whole_ticks(top), format=",d")
    y = alt.Y("depth:Q", title="requests in the queue", scale=scale, axis=axis)
    colour = alt.Color("what:N", scale=colours([*lines]), legend=legend(canvas, 2))
    drawn = alt.Chart(data(rows)).mark_line(clip=True, interpolate="step-before", strokeWidth=1.4)
    chart = alt.layer(epoch_marks(run), drawn.encode(x=x_axis(run), y=y, color=colour))
    caption = f"Mean number of requests that the device had not yet completed, {method}."
    if len(depths) > len(lines):
        caption += " All devices behind the dataset together."
    return Figure("Device queue depth over time", caption, chart.properties(width=canvas.width, height=200))


def _depths(run: Run) -> tuple[list[tuple[str, str, Series]], str]:
    """Return operation, device and queue depth over time for each device, and how the depths were measured."""
    several = len({series.host for series in run.device_series("block")}) > 1

    def device(series: Series) -> str:
        return f"{series.host}: {series.source}" if several else series.source or series.host

    traced = [(_TRACED[series.metric], device(series), series) for series in run.series("trace", *_TRACED)]
    if traced:
        return traced, "exactly, from the block trace"
    counted = [
        (operation, device(series), series)
        for operation, (rate, latency) in _COUNTED.items()
        for series in _by_littles_law(run, rate, latency)
    ]
    if counted:
        busy = [(name, where, series) for name, where, series in counted if name == "reads" or series.values.any()]
        return busy, "by Little's law: completions per second x their mean time in the device"
    total = [("requests", device(series), series) for series in run.device_series("block", "mean_queue_depth")]
    return total, "reads and writes together"


def _by_littles_law(run: Run, rate: str, latency: str) -> list[Series]:
    """Return each device's mean number of requests of one operation; 0 at moments without a latency."""
    latencies = {(series.host, series.source): series for series in run.device_series("block", latency)}
    depths = []
    for series in run.device_series("block", rate):
        own = latencies.get((series.host, series.source))
        if own is None:
            continue
        by_second = dict(zip(own.seconds.tolist(), own.values.tolist(), strict=True))
        ms = np.array([by_second.get(second, 0.0) for second in series.seconds.tolist()])
        depths.append(replace(series, metric="depth", values=np.nan_to_num(series.values * ms / 1e3)))
    return depths


def _lines(depths: list[tuple[str, str, Series]]) -> dict[str, list[Series]]:
    """Return the sources of each line: one per device and operation, or per operation if that were too many lines."""
    by_device = len({device for _, device, _ in depths}) > 1 and len(depths) <= _MAX_LINES
    lines: dict[str, list[Series]] = {}
    for operation, device, series in depths:
        lines.setdefault(f"{device} {operation}" if by_device else operation, []).append(series)
    return lines

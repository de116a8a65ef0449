"""Figures over time: throughput, queue depths, the busiest host, and all hosts side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import altair as alt
import numpy as np

from dlemu.jobs.training.measured import READ_BINS, Series
from dlemu.jobs.training.result import Run
from dlemu.metrics.findings import Code
from dlemu.metrics.over_time import Floats, mean_rates
from dlemu.report.figure_base import (
    AMBER,
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    MUTED,
    PURPLE,
    RED,
    TEAL,
    Canvas,
    Figure,
    Row,
    colours,
    data,
    legend,
    rounded,
    whole_ticks,
)

BINS, NARROW_BINS = READ_BINS, READ_BINS // 2
"""Maximum points of a line, on a wide and a narrow page: more can't be distinguished at the figures' width."""
_MAX_NAMED_EPOCHS = 12  # more names would overlap at the figures' width
APPLICATION, DEVICE = "read by the loader", "read from the devices"
_HOST_PROBES = ("cpu", "pressure", "memory", "power")
_BUSY = ("user_percent", "system_percent", "steal_percent")


def edges(run: Run, canvas: Canvas) -> Floats:
    """Return the edges of the time bins of a line over the whole run."""
    return np.linspace(*run.span_seconds, (NARROW_BINS if canvas.narrow else BINS) + 1)


def x_axis(run: Run, *, named: bool = True) -> alt.X:
    """Return the time axis, for the field `at` in seconds; `named` false leaves out its labels, for upper panels."""
    scale = alt.Scale(domain=list(run.span_seconds), nice=False)
    title = "seconds since training began" if named else None
    return alt.X("at:Q", scale=scale, title=title, axis=alt.Axis(grid=False, labels=named, ticks=named))


def epoch_marks(run: Run, *, named: bool = True) -> alt.LayerChart:
    """Draw a line where each epoch begins, with its number when there are few."""
    starts = []
    for rows in run.training.by_epoch:
        ranks, (first,), _ = rows.ends("free_ns")
        by_rank = [free - run.rank_start_ns[rank] for rank, free in zip(ranks.tolist(), first.tolist(), strict=True)]
        starts.append({"at": round(min(by_rank) / 1e9, 3), "name": f"epoch {rows.values('epoch')[0]}"})
    marks = alt.Chart(data(starts)).mark_rule(color=MUTED, strokeDash=[2, 3], strokeWidth=1).encode(x=alt.X("at:Q"))
    if not named or len(starts) > _MAX_NAMED_EPOCHS:
        return alt.layer(marks)
    names = alt.Chart(data(starts)).mark_text(align="left", baseline="bottom", dx=3, dy=-2, color=MUTED, fontSize=10)
    return marks + names.encode(x=alt.X("at:Q"), y=alt.YValue(0), text=alt.Text("name:N"))


def change_marks(run: Run) -> alt.LayerChart | None:
    """Draw a line at each change of the storage's speed, with the new speed in percent of the old; None without any."""
    changes = [
        {"at": change["at_seconds"], "name": "{percent:.0f} % of before".format_map(change)}
        for change in run.summary.found(Code.STORAGE_NOT_STEADY, "speed_changed")
    ]
    if not changes:
        return None
    base = alt.Chart(data(changes)).encode(x=alt.X("at:Q"))
    text = base.mark_text(align="left", baseline="top", dx=3, dy=3, color=RED, fontSize=11)
    return base.mark_rule(color=RED, strokeWidth=1.5) + text.encode(y=alt.YValue(0), text=alt.Text("name:N"))


def line(series: Series, canvas: Canvas) -> tuple[Floats, Floats]:
    """Return a series from the start of training on, thinned to the canvas; its first value is also that at time 0."""
    kept = series.seconds > 0
    seconds, values = thinned(series.seconds[kept], series.values[kept], NARROW_BINS if canvas.narrow else BINS)
    if len(values):
        seconds, values = np.insert(seconds, 0, 0.0), np.insert(values, 0, values[0])
    return seconds, values


def summed(sources: list[Series], bounds: Floats) -> Floats:
    """Return the sum of several sources' rates in each time bin; a value is the mean since the previous reading."""
    total = np.zeros(len(bounds) - 1)
    for source in sources:
        if len(source.seconds) > 1:
            starts, ends = source.seconds[:-1], source.seconds[1:]
            valid = ends > starts
            total += mean_rates(starts[valid], ends[valid], (source.values[1:] * (ends - starts))[valid], bounds)
    return total


def binned(sources: list[Series], run: Run, canvas: Canvas) -> Iterator[tuple[float, float]]:
    """Yield the end of each time bin and the sum of several sources' values in it, up to the last reading."""
    bounds = edges(run, canvas)
    last = max((float(source.seconds[-1]) for source in sources if len(source.seconds)), default=0.0)
    for at, value in zip(rounded(bounds[1:]), rounded(summed(sources, bounds), 4), strict=True):
        if at <= last:
            yield at, value


def thinned(seconds: Floats, values: Floats, most: int = BINS) -> tuple[Floats, Floats]:
    """Return at most `most` points: the means of groups of neighbours, at the last moment of each group."""
    if len(values) <= most:
        return seconds, values
    first = np.linspace(0, len(values), most + 1).astype(int)[:-1]
    counts = np.diff(np.append(first, len(values)))
    return seconds[first + counts - 1], np.add.reduceat(values, first) / counts


def throughput_rows(run: Run, canvas: Canvas) -> list[Row]:
    """Return the throughput of all loaders, and of the devices, in each time bin; empty without steps."""
    if not len(run.training):
        return []
    rates = run.read_mb_per_second
    if rates is None:
        return []
    bounds = edges(run, canvas)
    lines = {APPLICATION: rates.reshape(len(bounds) - 1, -1).mean(axis=1)}
    devices = run.device_series("block", "read_mb_per_second")
    if devices:
        lines[DEVICE] = summed(devices, bounds)
    return [
        {"what": name, "at": second, "mb": mb}
        for name, rates in lines.items()
        for second, mb in zip(rounded(bounds[1:]), rounded(rates, 4), strict=True)
    ]


def _below_throughput(run: Run, panels: Sequence[alt.LayerChart], canvas: Canvas) -> alt.VConcatChart:
    """Draw the throughput of all loaders and of the devices, above panels that have the labelled time axis."""
    y = alt.Y("mb:Q", title="MB/s", scale=alt.Scale(domainMin=0))
    colour = alt.Color("what:N", scale=colours((APPLICATION, DEVICE), (BLUE, AMBER)), legend=legend(canvas, 2))
    lines = alt.Chart(data(throughput_rows(run, canvas))).mark_line(interpolate="step-before", strokeWidth=1.3)
    encoded = lines.encode(x=x_axis(run, named=False), y=y, color=colour)
    first = alt.layer(epoch_marks(run), encoded).properties(width=canvas.width, height=90)
    return alt.vconcat(first, *panels, spacing=10).resolve_scale(color="independent")


def hosts_by_load(run: Run) -> list[str]:
    """Return the hosts with telemetry of CPU, pressure, memory or power, those with the busiest cores first."""
    busy = {series.host: 0.0 for probe in _HOST_PROBES for series in run.series(probe)}
    for series in run.series("cpu", *_BUSY):
        if len(series.values):
            busy[series.host] += float(series.values.mean())
    return sorted(busy, key=lambda host: (-busy[host], host))


def throughput(run: Run, canvas: Canvas) -> Figure | None:
    """Throughput over time, of the loaders and of the devices."""
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
    caption = "Bytes of each batch over the time its worker took to fetch it, caches included."
    if len(names) > 1:
        caption += " Where the devices' line is below the loader's, the page cache or read-ahead served the rest."
    if changes:
        caption += " A red line marks where the storage's speed changed."
    return Figure("Throughput over time", caption, chart.properties(width=canvas.width, height=220))


_COUNTED = {
    "reads": ("reads_per_second", "mean_read_latency_ms"),
    "writes": ("writes_per_second", "mean_write_latency_ms"),
}
_MAX_LINES = len(COLOURS)


def queue_depth(run: Run, canvas: Canvas) -> Figure | None:
    """Requests in the devices' queues over time, by operation."""
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


_MAX_HOSTS = len(COLOURS)


class _HostsPanel(NamedTuple):
    axis: str
    probe: str
    metrics: tuple[str, ...]
    """Metrics that are added up, over all sources (meters) of the host."""
    factor: float = 1.0


_HOSTS_PANELS = (
    _HostsPanel("CPU busy, %", "cpu", _BUSY),
    _HostsPanel("stalled on I/O, %", "pressure", ("io_some_percent",)),
    _HostsPanel("memory used, GB", "memory", ("used_mb",), 1e-3),
    _HostsPanel("power, W", "power", ("watts",)),
)


def hosts(run: Run, canvas: Canvas) -> Figure | None:
    """All hosts on one time axis, one line each, to find one that is slower, busier or shorter of memory."""
    busiest = hosts_by_load(run)
    if len(busiest) < 2:
        return None
    shown = busiest[:_MAX_HOSTS]
    filled = [(panel, rows) for panel in _HOSTS_PANELS if (rows := _hosts_rows(run, panel, shown, canvas))]
    panels = [_hosts_panel(run, panel, rows, shown, canvas, last=panel is filled[-1][0]) for panel, rows in filled]
    caption = "Throughput of all ranks; below, one line per host, on its own clock from its own first step."
    if len(busiest) > len(shown):
        caption += f" Only the {len(shown)} of {len(busiest)} hosts with the busiest cores are drawn."
    return Figure("The hosts side by side", caption, _below_throughput(run, panels, canvas))


def _hosts_rows(run: Run, panel: _HostsPanel, hosts: list[str], canvas: Canvas) -> list[Row]:
    rows = []
    for host in hosts:
        sources = [series for series in run.series(panel.probe, *panel.metrics) if series.host == host]
        points = binned(sources, run, canvas)
        rows += [{"what": host, "at": at, "value": value * panel.factor} for at, value in points]
    return rows


def _hosts_panel(
    run: Run, panel: _HostsPanel, rows: list[Row], hosts: list[str], canvas: Canvas, *, last: bool
) -> alt.LayerChart:
    y = alt.Y("value:Q", title=panel.axis, scale=alt.Scale(domainMin=0))
    first = panel is _HOSTS_PANELS[0]
    colour = alt.Color("what:N", scale=colours(hosts), legend=legend(canvas) if first else None)
    lines = alt.Chart(data(rows)).mark_line(interpolate="step-before", strokeWidth=1.3, clip=True)
    encoded = lines.encode(x=x_axis(run, named=last), y=y, color=colour)
    return alt.layer(epoch_marks(run, named=False), encoded).properties(width=canvas.width, height=90)


@dataclass(frozen=True)
class _Panel:
    probe: str
    axis: str
    names: dict[str, str]
    """Metric -> its name in the legend."""
    colours: Sequence[str]
    stacked: bool = False
    top: float | None = None
    """Upper end of the axis; None fits it to the values."""
    factor: float = 1.0
    """Converts the metric to the unit of the axis."""


_PANELS = (
    _Panel(
        probe="cpu",
        axis="CPU, %",
        names={
            "user_percent": "user",
            "system_percent": "system",
            "iowait_percent": "waiting for I/O",
            "steal_percent": "stolen",
        },
        colours=(BLUE, PURPLE, AMBER, RED),
        stacked=True,
        top=100.0,
    ),
    _Panel(
        probe="pressure",
        axis="stalled, %",
        names={"cpu_some_percent": "for CPU", "io_some_percent": "for IO", "memory_some_percent": "for memory"},
        colours=(BLUE, AMBER, RED),
    ),
    _Panel(
        probe="memory",
        axis="memory, GB",
        names={"used_mb": "used", "page_cache_mb": "page cache"},
        colours=(PURPLE, TEAL),
        factor=1e-3,
    ),
    _Panel(probe="power", axis="power, W", names={"watts": "watts"}, colours=(RED, AMBER, GREEN, BLUE, GREY)),
)


def host_timeline(run: Run, canvas: Canvas) -> Figure | None:
    """Throughput, and the CPU, pressure, memory and power of the busiest host, on one time axis."""
    hosts = hosts_by_load(run)
    if not hosts:
        return None
    filled = [(panel, rows) for panel in _PANELS if (rows := list(_rows(run, panel, hosts[0], canvas)))]
    panels = [_panel(run, panel, rows, canvas, last=panel is filled[-1][0]) for panel, rows in filled]
    caption = "CPU: all cores together. Stalled: share of the time in which some task waited (the kernel's pressure)."
    if len(hosts) > 1:
        caption += f" This is {hosts[0]}, the busiest of {len(hosts)} hosts; throughput is that of all ranks."
    return Figure("The host during the run", caption, _below_throughput(run, panels, canvas))


def _rows(run: Run, panel: _Panel, host: str, canvas: Canvas) -> Iterator[Row]:
    order = list(panel.names)
    for series in run.series(panel.probe, *panel.names):
        if series.host != host:
            continue
        name = panel.names[series.metric] if len(order) > 1 else series.source or panel.names[series.metric]
        seconds, values = line(series, canvas)
        for second, value in zip(rounded(seconds), rounded(values * panel.factor, 4), strict=True):
            yield {"what": name, "at": second, "value": value, "order": order.index(series.metric)}


def _panel(run: Run, panel: _Panel, rows: list[Row], canvas: Canvas, *, last: bool) -> alt.LayerChart:
    names = list(dict.fromkeys(row["what"] for row in sorted(rows, key=lambda row: row["order"])))
    scale = alt.Scale(domain=[0, panel.top]) if panel.top else alt.Scale(domainMin=0)
    y = alt.Y("value:Q", title=panel.axis, scale=scale, stack="zero" if panel.stacked else None)
    colour = alt.Color("what:N", scale=colours(names, panel.colours), legend=legend(canvas))
    base = alt.Chart(data(rows))
    areas = partial(base.mark_area, opacity=0.85)
    mark = (areas if panel.stacked else partial(base.mark_line, strokeWidth=1.3))(clip=True, interpolate="step-before")
    encoded = mark.encode(x=x_axis(run, named=last), y=y, color=colour, order=alt.Order("order:Q"))
    return alt.layer(epoch_marks(run, named=False), encoded).properties(width=canvas.width, height=90)

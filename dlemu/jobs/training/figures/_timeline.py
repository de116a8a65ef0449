"""Parts of the figures over time: the time axis, marks of epochs and speed changes, binning, throughput, hosts."""

from __future__ import annotations

from collections.abc import Iterator

import altair as alt
import numpy as np

from dlemu.jobs.training.measured import READ_BINS, Series
from dlemu.jobs.training.result import Run
from dlemu.metrics.over_time import Floats, mean_rates
from dlemu.report.figure_base import AMBER, BLUE, MUTED, RED, Canvas, Row, colours, data, legend, rounded

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
        {"at": round(change.at_seconds, 3), "name": f"{change.percent:.0f} % of before"}
        for change in run.summary.speed_changes
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


def throughput_panel(run: Run, canvas: Canvas) -> alt.LayerChart:
    """Draw the throughput of all loaders and of the devices, above panels that have the labelled time axis."""
    y = alt.Y("mb:Q", title="MB/s", scale=alt.Scale(domainMin=0))
    colour = alt.Color("what:N", scale=colours((APPLICATION, DEVICE), (BLUE, AMBER)), legend=legend(canvas, 2))
    lines = alt.Chart(data(throughput_rows(run, canvas))).mark_line(interpolate="step-before", strokeWidth=1.3)
    encoded = lines.encode(x=x_axis(run, named=False), y=y, color=colour)
    return alt.layer(epoch_marks(run), encoded).properties(width=canvas.width, height=90)


def hosts_by_load(run: Run) -> list[str]:
    """Return the hosts with telemetry of CPU, pressure, memory or power, those with the busiest cores first."""
    busy = {series.host: 0.0 for probe in _HOST_PROBES for series in run.series(probe)}
    for series in run.series("cpu", *_BUSY):
        if len(series.values):
            busy[series.host] += float(series.values.mean())
    return sorted(busy, key=lambda host: (-busy[host], host))

"""The figures of a training run, in the order of its page. Each figure function's docstring ends with its question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import altair as alt
import numpy as np

from dlemu.jobs.training.measured import READ_BINS, Series
from dlemu.jobs.training.result import Run
from dlemu.metrics.findings import Code
from dlemu.metrics.loss import wait_parts
from dlemu.metrics.rates import Floats, Intervals
from dlemu.metrics.rows import StepTable
from dlemu.report import figure_base as base
from dlemu.report.figure_base import Figure, Row

_MAX_BARS = 32  # with more bars, neighbouring ranks or epochs share one
_MAX_NAMED_EPOCHS = 12  # more names would overlap at the figures' width
_MIN_LOST_PERCENT = 1.0  # the storage kept up if accelerators lost less of their time
# Part of a step's time -> its colour; the waits (reading to hand-over) are `dlemu.metrics.loss.PARTS`, in order
_PARTS = {
    "computing": base.GREEN,
    "reading": base.RED,
    "decoding": base.AMBER,
    "queueing in the loader": base.PURPLE,
    "hand-over": base.TEAL,
    "sync": base.BLUE,
}


def throughput(run: Run) -> Figure | None:
    """Return throughput over time beside what the accelerators take: did the storage keep up?"""
    read = run.read_mb_per_second if len(run.training) else None
    if read is None:
        return None
    bounds = np.linspace(*run.span_seconds, READ_BINS + 1)
    series = {"read by the loader": read}
    if devices := run.device_series("block", "read_mb_per_second"):
        series["read from devices"] = _summed(devices, bounds)
    rows = [
        {"line": name, "at": second, "value": mb_per_second}
        for name, rates in series.items()
        for second, mb_per_second in zip(base.rounded(bounds[1:]), base.rounded(rates, 4), strict=True)
    ]
    rate, au = run.summary.metrics.app_mb_per_second, run.summary.metrics.au_whole_percent
    levels = []
    title = "Reading was slower than the accelerators take"
    if rate is not None and rate.mean and au is not None and au.mean:
        levels = [base.Level(rate.mean * 100 / au.mean, "accelerators take")]
        if au.mean >= 100 - _MIN_LOST_PERCENT:
            title = "Reading kept up with the accelerators"
    chart = alt.layer(epoch_marks(run), base.lines(rows, x_axis(run), "MB/s", levels=levels))
    caption = "Bytes of each batch over the time its worker took to fetch it."
    if devices:
        caption += " Where the devices' line is lower, the page cache or read-ahead served the rest."
    if run.summary.memory is not None:
        title = "The page cache served what was read, or may have"
    elif run.summary.found(Code.STORAGE_NOT_STEADY, "speed_changed"):
        title = "The storage's speed changed"
    return Figure(title, caption, chart)


def step_split(run: Run) -> Figure | None:
    """Return the shares of the accelerators' time, in total, by epoch and by rank: where was it lost?"""
    if not len(run.training):
        return None
    percents_by_bar = _percents_by_bar(run.training)
    percents = percents_by_bar["all"]
    names = [f"{part} {percent:.1f} %" for part, percent in zip(_PARTS, percents, strict=True)]
    shown_parts = [index for index, percent in enumerate(percents) if percent >= 0.05]  # others would read 0.0 %
    rows: list[Row] = [
        {"at": bar, "part": names[index], "percent": bar_percents[index], "order": index}
        for bar, bar_percents in percents_by_bar.items()
        for index in shown_parts
    ]
    colours = list(_PARTS.values())
    scale = base.colours([names[index] for index in shown_parts], [colours[index] for index in shown_parts])
    chart = (
        alt.Chart(base.data(rows))
        .mark_bar(stroke=base.PAPER, strokeWidth=0.5)
        .encode(
            y=alt.Y("at:N", sort=None, title=None),
            x=alt.X("percent:Q", title="% of the time", scale=alt.Scale(domain=[0, 100]), axis=alt.Axis(grid=False)),
            color=alt.Color("part:N", scale=scale, legend=base.legend(3)),
            order=alt.Order("order:Q"),
        )
        .properties(width=base.WIDTH, height=alt.Step(18))
    )
    computing, *waits = percents
    causes = [*list(_PARTS)[1:-1], "the slowest of them"]  # of the waits, in order; the last one is sync
    cause = causes[waits.index(max(waits))]
    title = f"Accelerators computed {computing:.0f} % of the time and waited {max(waits):.0f} % for {cause}"
    kept_up = 100 - computing < _MIN_LOST_PERCENT
    if kept_up:
        title = "Hardly any of the accelerators' time was lost"
    caption = "All steps, the first of each epoch included. While a slow rank waits, the others wait for it in sync."
    return Figure(title, caption, chart, folded=kept_up)


def _percents_by_bar(steps: StepTable) -> dict[str, list[float]]:
    """Return name of a bar -> percentages of `_PARTS`; a bar is all steps, or those of neighbouring epochs or ranks."""
    part_ns = np.stack([steps["compute_ns"], *wait_parts(steps).T, steps["sync_ns"]]).astype(float)
    bar_ns = {"all": part_ns.sum(axis=1)}
    for column in ("epoch", "rank"):
        values, index = np.unique(steps[column], return_inverse=True)
        if len(values) == 1:
            continue
        groups = np.array_split(values, min(_MAX_BARS, len(values)))  # a bar for each
        group_of_step = np.repeat(np.arange(len(groups)), list(map(len, groups)))[index]
        for group, *group_ns in zip(groups, *(np.bincount(group_of_step, ns) for ns in part_ns), strict=True):
            first, last = group[0], group[-1]
            bar_ns[f"{column} {first}" if first == last else f"{column} {first}-{last}"] = np.array(group_ns)
    return {bar: base.rounded(100 * ns / (ns.sum() or 1.0), 4) for bar, ns in bar_ns.items()}


def x_axis(run: Run, *, named: bool = True) -> alt.X:
    """Return the time axis, for the field `at` in seconds; upper panels leave out its labels (`named` false)."""
    scale = alt.Scale(domain=list(run.span_seconds), nice=False)
    title = "seconds since training began" if named else None
    return alt.X("at:Q", scale=scale, title=title, axis=alt.Axis(grid=False, labels=named, ticks=named))


def epoch_marks(run: Run, *, named: bool = True) -> alt.LayerChart:
    """Return a line at the start of each epoch, with its number if there are few epochs."""
    starts = []
    for epoch in run.training.by_epoch:
        start_ns = min(int(rows["free_ns"][0]) - run.rank_start_ns[int(rows["rank"][0])] for rows in epoch.by_rank)
        starts.append({"at": round(start_ns / 1e9, 3), "name": f"epoch {epoch.values('epoch')[0]}"})
    chart = alt.Chart(base.data(starts)).encode(x=alt.X("at:Q"))
    marks = chart.mark_rule(color=base.MUTED, strokeDash=[2, 3], strokeWidth=1)
    if not named or len(starts) > _MAX_NAMED_EPOCHS:
        return alt.layer(marks)
    names = chart.mark_text(align="left", baseline="bottom", dx=3, dy=-2, color=base.MUTED, fontSize=10)
    return marks + names.encode(y=alt.YValue(0), text=alt.Text("name:N"))


def _summed(sources: Sequence[Series], bounds: Floats) -> Floats:
    """Return the sum of several sources' rates in each time bin; a reading is the mean rate since the one before it."""
    total = np.zeros(len(bounds) - 1)
    for source in sources:
        if len(source.seconds) > 1:
            starts, ends = source.seconds[:-1], source.seconds[1:]
            valid = ends > starts
            amounts = (source.values[1:] * (ends - starts))[valid]
            total += Intervals(starts[valid], ends[valid], bounds).rates(amounts)
    return total


def binned(sources: Sequence[Series], run: Run) -> Iterator[tuple[float, float]]:
    """Yield the end of each time bin and the sum of several sources' values in it, up to the last reading."""
    bounds = np.linspace(*run.span_seconds, READ_BINS + 1)
    last_reading = max((float(source.seconds[-1]) for source in sources if len(source.seconds)), default=0.0)
    for at, value in zip(base.rounded(bounds[1:]), base.rounded(_summed(sources, bounds), 4), strict=True):
        if at <= last_reading:
            yield at, value


_BUSY = ("user_percent", "system_percent", "steal_percent")
# Axis, probe, and the metrics whose sum over all sources of a host is drawn
_PANELS = (
    ("device requests", "block", ("mean_queue_depth",)),
    ("CPU busy, %", "cpu", _BUSY),
    ("stalled on I/O, %", "pressure", ("io_some_percent",)),
    ("memory used, MB", "memory", ("used_mb",)),
    ("page cache, MB", "memory", ("page_cache_mb",)),
    ("power, W", "power", ("watts",)),
)


def hosts(run: Run) -> Figure | None:
    """Return devices, CPU, stalls, memory and power over time, a line per host: is one busier or short of memory?"""
    busy_percents = {series.host: 0.0 for _, probe, metrics in _PANELS for series in run.series(probe, *metrics)}
    for series in run.series("cpu", *_BUSY):
        busy_percents[series.host] += float(series.values.mean()) if len(series.values) else 0.0
    # The hosts with the busiest cores, as many as there are colours
    drawn = sorted(busy_percents, key=lambda host: (-busy_percents[host], host))[: len(base.COLOURS)]
    panels: list[alt.LayerChart] = []
    for axis, probe, metrics in reversed(_PANELS):  # the lowest panel, drawn first, has the time axis
        sources = run.device_series(probe, *metrics) if probe == "block" else run.series(probe, *metrics)
        rows = [
            {"line": host, "at": at, "value": value}
            for host in drawn
            for at, value in binned([series for series in sources if series.host == host], run)
        ]
        if rows:
            panel = base.lines(rows, x_axis(run, named=not panels), axis, names=drawn, height=70)
            panels.insert(0, alt.layer(epoch_marks(run, named=False), panel))
    if not panels:
        return None
    caption = (
        "Device requests: not yet completed by the dataset's devices, on average; few of them keep no drive busy. "
        "CPU: all cores together. Stalled: share of the time in which some task waited for I/O (the kernel's pressure)."
    )
    if len(busy_percents) > len(drawn):
        caption += f" Only the {len(drawn)} of {len(busy_percents)} hosts with the busiest cores are drawn."
    title = f"{'The busiest host' if len(busy_percents) > 1 else 'The host'} used {busy_percents[drawn[0]]:.0f} %"
    return Figure(f"{title} of its cores", caption, alt.vconcat(*panels, spacing=12), folded=True)


FIGURES = (throughput, step_split, hosts)

"""The figures of a training run, in the order of its page. Each caption begins with the question that it answers."""

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
from dlemu.report.figure_base import (
    AMBER,
    BLUE,
    COLOURS,
    GREEN,
    MUTED,
    PURPLE,
    RED,
    TEAL,
    WIDTH,
    Figure,
    Row,
    colours,
    data,
    legend,
    parts,
    rounded,
)

_HALF = (WIDTH - 60) // 2
"""Width of each of two panels side by side."""
_MAX_BARS = 32
"""Neighbouring ranks or epochs share a bar where there would be more."""
_MAX_NAMED_EPOCHS = 12  # more names would overlap at the figures' width


_PARTS = {
    "computing": GREEN,
    "reading": RED,
    "decoding": AMBER,
    "queueing in the loader": PURPLE,
    "hand-over": TEAL,
    "sync": BLUE,
}
"""Part of the time of a step -> its colour; the waits are `dlemu.metrics.loss.PARTS`, in their order."""


def step_split(run: Run) -> Figure | None:
    """The accelerators' time by rank and by epoch: computing, waiting (for what), and synchronising with others."""
    if not len(run.training):
        return None
    ranks, epochs = (_split_panel(sums, name) for name, sums in run.training.once(_split).items())
    caption = "What did accelerators wait for, in all steps? While a slow rank waits, the others wait for it in sync."
    return Figure("Accelerator time", caption, ranks | epochs)


def _split(rows: StepTable) -> dict[str, dict[int, Floats]]:
    """Return the ns of each rank, and of each epoch, spent on each part, in the order of `_PARTS`."""
    sums: dict[str, dict[int, Floats]] = {"rank": {}, "epoch": {}}
    for own in rows.by_rank:
        for part in own.by_epoch:
            waits = wait_parts(part).sum(axis=0).tolist()
            spent = np.array([int(part["compute_ns"].sum()), *waits, int(part["sync_ns"].sum())], np.float64)
            for label, by_label in sums.items():
                (value,) = part.values(label)
                by_label[value] = by_label.get(value, np.zeros(len(spent))) + spent
    return sums


def _split_panel(sums: dict[int, Floats], name: str) -> alt.Chart:
    """Draw the share of each part for each rank or epoch, or for groups of neighbours."""
    groups = {
        (f"{group[0]}-{group[-1]}" if len(group) > 1 else str(group[0])): group
        for group in parts(sorted(sums), _MAX_BARS)
    }
    rows: list[Row] = []
    for at, group in groups.items():
        spent = sum((sums[owner] for owner in group), start=np.zeros(len(_PARTS)))
        shares = rounded(100 * spent / (spent.sum() or 1.0), 4)
        rows += [
            {"at": at, "part": part, "percent": share, "order": place}
            for place, (part, share) in enumerate(zip(_PARTS, shares, strict=True))
            if share
        ]
    known = {row["part"]: _PARTS[row["part"]] for row in sorted(rows, key=lambda row: row["order"])}
    axis = alt.Axis(labelAngle=-90 if len(sums) > _MAX_BARS else 0, labelOverlap=True)
    encoded = (
        alt.Chart(data(rows))
        .mark_bar()
        .encode(
            x=alt.X("at:N", sort=list(groups), title=name, axis=axis),
            y=alt.Y("percent:Q", title="% of the time", scale=alt.Scale(domain=[0, 100])),
            color=alt.Color(
                "part:N",
                scale=colours([*known], [*known.values()]),
                legend=legend(3),
            ),
            order=alt.Order("order:Q"),
        )
    )
    return encoded.properties(width=_HALF, height=200)


def throughput(run: Run) -> Figure | None:
    """Throughput over time, of the loaders and of the devices: did the storage keep its speed?"""
    read = run.read_mb_per_second if len(run.training) else None
    if read is None:
        return None
    bounds = np.linspace(*run.span_seconds, READ_BINS + 1)
    lines = {"read by the loader": read}
    if devices := run.device_series("block", "read_mb_per_second"):
        lines["read from the devices"] = _summed(devices, bounds)
    rows = [
        {"what": name, "at": second, "mb": mb}
        for name, rates in lines.items()
        for second, mb in zip(rounded(bounds[1:]), rounded(rates, 4), strict=True)
    ]
    colour = alt.Color("what:N", scale=colours([*lines], (BLUE, AMBER)), legend=legend(2))
    encoded = (
        alt.Chart(data(rows))
        .mark_line(interpolate="step-before", strokeWidth=1.4)
        .encode(x=x_axis(run), y=alt.Y("mb:Q", title="MB/s (1e6 bytes)", scale=alt.Scale(domainMin=0)), color=colour)
    )
    chart = alt.layer(epoch_marks(run), *_change_marks(run), encoded).properties(width=WIDTH, height=220)
    caption = "Did the storage keep its speed? Bytes of each batch over the time its worker took to fetch it."
    if devices:
        caption += " Where the devices' line is below the loader's, the page cache or read-ahead served the rest."
    if any(run.summary.found(Code.STORAGE_NOT_STEADY, "speed_changed")):
        caption += " A red line marks where the storage's speed changed."
    return Figure("Throughput over time", caption, chart)


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
    base = alt.Chart(data(starts)).encode(x=alt.X("at:Q"))
    marks = base.mark_rule(color=MUTED, strokeDash=[2, 3], strokeWidth=1)
    if not named or len(starts) > _MAX_NAMED_EPOCHS:
        return alt.layer(marks)
    names = base.mark_text(align="left", baseline="bottom", dx=3, dy=-2, color=MUTED, fontSize=10)
    return marks + names.encode(y=alt.YValue(0), text=alt.Text("name:N"))


def _change_marks(run: Run) -> Iterator[alt.LayerChart]:
    """Draw a line at each change of the storage's speed, with the new speed in percent of the old."""
    changes = [
        {"at": change["at_seconds"], "name": "{percent:.0f} % of before".format_map(change)}
        for change in run.summary.found(Code.STORAGE_NOT_STEADY, "speed_changed")
    ]
    if changes:
        base = alt.Chart(data(changes)).encode(x=alt.X("at:Q"))
        text = base.mark_text(align="left", baseline="top", dx=3, dy=3, color=RED, fontSize=11)
        yield base.mark_rule(color=RED, strokeWidth=1.5) + text.encode(y=alt.YValue(0), text=alt.Text("name:N"))


def _summed(sources: Sequence[Series], bounds: Floats) -> Floats:
    """Return the sum of several sources' rates in each time bin; a value is the mean since the previous reading."""
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
    last = max((float(source.seconds[-1]) for source in sources if len(source.seconds)), default=0.0)
    for at, value in zip(rounded(bounds[1:]), rounded(_summed(sources, bounds), 4), strict=True):
        if at <= last:
            yield at, value


def _lines(run: Run, lines: dict[str, list[Series]], y: alt.Y, *, last: bool, has_legend: bool) -> alt.LayerChart:
    """Draw the sum of each line's sources over time; `last`: below it no other panel has the same time axis."""
    rows = [
        {"what": name, "at": at, "value": value}
        for name, sources in lines.items()
        for at, value in binned(sources, run)
    ]
    colour = alt.Color("what:N", scale=colours([*lines]), legend=legend() if has_legend and len(lines) > 1 else None)
    drawn = alt.Chart(data(rows)).mark_line(clip=True, interpolate="step-before", strokeWidth=1.4)
    return alt.layer(epoch_marks(run, named=has_legend), drawn.encode(x=x_axis(run, named=last), y=y, color=colour))


_BUSY = ("user_percent", "system_percent", "steal_percent")
_PANELS = (
    ("device requests", "block", ("mean_queue_depth",)),
    ("CPU busy, %", "cpu", _BUSY),
    ("stalled on I/O, %", "pressure", ("io_some_percent",)),
    ("memory used, MB", "memory", ("used_mb",)),
    ("page cache, MB", "memory", ("page_cache_mb",)),
    ("power, W", "power", ("watts",)),
)
"""Axis, probe, and the metrics that are added up, over all sources (meters) of a host."""


def hosts(run: Run) -> Figure | None:
    """The hosts' devices, CPU, stalls, memory and power over time, a line each: is one busier or shorter of memory?"""
    busy = {series.host: 0.0 for _, probe, metrics in _PANELS for series in run.series(probe, *metrics)}
    for series in run.series("cpu", *_BUSY):
        busy[series.host] += float(series.values.mean()) if len(series.values) else 0.0
    shown = sorted(busy, key=lambda host: (-busy[host], host))[: len(COLOURS)]
    panels = []
    for axis, probe, metrics in _PANELS:
        known = run.device_series(probe, *metrics) if probe == "block" else run.series(probe, *metrics)
        lines = {host: [series for series in known if series.host == host] for host in shown}
        if any(lines.values()):
            panels.append((lines, alt.Y("value:Q", title=axis, scale=alt.Scale(domainMin=0))))
    if not panels:
        return None
    drawn = [
        _lines(run, lines, y, last=lines is panels[-1][0], has_legend=not place)
        for place, (lines, y) in enumerate(panels)
    ]
    caption = (
        "Is a host busy, or short of memory? Device requests: not yet completed by the dataset's devices, on average; "
        "few of them keep no drive busy. CPU: all cores together. Stalled: share of the time in which some task waited "
        "for I/O (the kernel's pressure)."
    )
    if len(busy) > len(shown):
        caption += f" Only the {len(shown)} of {len(busy)} hosts with the busiest cores are drawn."
    chart = alt.vconcat(*(panel.properties(width=WIDTH, height=90) for panel in drawn), spacing=10)
    return Figure("The hosts during the run", caption, chart)


FIGURES = (step_split, throughput, hosts)

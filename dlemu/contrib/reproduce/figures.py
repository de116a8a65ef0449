"""The figures of documents: a panel for each quantity, or what a run's devices did over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import altair as alt
import numpy as np

from dlemu.contrib.reproduce.document import DeclaredTable
from dlemu.contrib.reproduce.rows import MIB_PER_MB, OpenedDocument, Panel, panels_of
from dlemu.report.figure_base import BLUE, Canvas, Figure, colours, data, legend, rounded
from dlemu.results.wording import count

_ROOM = 70
"""Pixels between two panels, room for the second one's y axis."""
_MOST_DEPTHS = 64  # deeper queues share bars, as narrower ones could not be seen


def figures(opened: OpenedDocument, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    """Yield the name and figure of each table that has one, and values."""
    for table in opened.document.tables:
        if table.shape == "over time":
            yield from _over_time(opened, table, canvas)
        elif table.figure:
            panels = [panel for panel in panels_of(opened, table) if panel.values]
            drawn = [_panel(panel, opened.drives, canvas, lines=table.shape == "lines") for panel in panels]
            if drawn:
                chart = alt.concat(*drawn, columns=2)
                # without this, all bars are as wide as those of the first panel
                yield table.figure, Figure(table.title, table.caption, chart.resolve_scale(xOffset="independent"))


def _panel(panel: Panel, drives: list[str], canvas: Canvas, *, lines: bool) -> alt.Chart | alt.LayerChart:
    """Draw a line of the quantity (logarithmic x axis), or a bar at each place, for each drive."""
    rows = [{"at": place, "drive": drive, "value": value} for (drive, place), value in panel.values.items()]
    shown = legend(canvas, 2) if len(drives) > 1 else None
    base = alt.Chart(data(rows)).encode(
        y=alt.Y("value:Q", title=panel.title, scale=alt.Scale(domainMin=0)),
        color=alt.Color("drive:N", scale=colours(drives), legend=shown, sort=drives),
    )
    if lines:
        axis = alt.Axis(grid=False, values=sorted({row["at"] for row in rows}), format="~g", labelOverlap=True)
        scale = alt.Scale(type="log", base=2, nice=False)
        base = base.encode(x=alt.X("at:Q", title=panel.across, scale=scale, axis=axis))
        drawn = alt.layer(base.mark_line(strokeWidth=1.6), base.mark_point(filled=True, size=35, opacity=1))
    else:
        x = alt.X("at:O", title=panel.across, sort=None, axis=alt.Axis(labelAngle=0))
        drawn = base.mark_bar().encode(x=x, xOffset=alt.XOffset("drive:N", sort=drives))
    return drawn.properties(width=(canvas.width - _ROOM) // 2, height=150)


def _over_time(opened: OpenedDocument, table: DeclaredTable, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    """Yield throughput over time in MiB/s, and queue depth over time and its shares, a panel for each run."""
    from dlemu.jobs.training.figures import queue_depth

    results = opened.results_of(table)
    runs = {count(int(name.rpartition("-")[2]), "accelerator"): run for name, run in results.items()}
    rates = [
        _device_rate(run, on, canvas) for on, run in runs.items() if run.device_series("block", "read_mb_per_second")
    ]
    if rates:
        yield f"{table.figure}_throughput", Figure("Throughput over time", table.caption, _stacked(rates))
    drawn = [(on, draw(run, canvas)) for draw in (queue_depth, _depth_shares) for on, run in runs.items()]
    depths = {f"{figure.title}, {on}": figure for on, figure in drawn if figure is not None}
    if depths:
        low = [
            figure.chart.properties(title=alt.Title(title, fontSize=12), height=110) for title, figure in depths.items()
        ]
        says = " ".join(dict.fromkeys(figure.caption for figure in depths.values()))
        yield f"{table.figure}_depth", Figure("Queue depth over time, and shares of depths", says, _stacked(low))


def _device_rate(run: Any, on: str, canvas: Canvas) -> alt.LayerChart:
    from dlemu.jobs.training.figures import binned, epoch_marks, x_axis

    series = run.device_series("block", "read_mb_per_second")
    rows = [{"at": at, "rate": rate * MIB_PER_MB} for at, rate in binned(series, run)]
    line = alt.Chart(data(rows)).mark_line(color=BLUE, interpolate="step-before", strokeWidth=1.3)
    y = alt.Y("rate:Q", title=f"MiB/s, {on}", scale=alt.Scale(domainMin=0))
    return alt.layer(epoch_marks(run), line.encode(x=x_axis(run), y=y)).properties(width=canvas.width, height=130)


def _depth_shares(run: Any, canvas: Canvas) -> Figure | None:
    """Return the share of the recorder's readings that found each number of requests in the devices' queues."""
    values = [series.values[series.seconds >= 0] for series in run.device_series("block", "in_flight")]
    depths = np.concatenate(values).astype(int) if values else np.empty(0, int)
    if not len(depths):
        return None
    width = -(-(int(depths.max()) + 1) // _MOST_DEPTHS)
    shares = 100 * np.bincount(depths // width) / len(depths)
    rows = [{"at": at * width, "to": (at + 1) * width, "share": share} for at, share in enumerate(rounded(shares))]
    chart = (
        alt.Chart(data(rows))
        .mark_rect(color=BLUE)
        .encode(
            x=alt.X("at:Q", title="requests in the queue", axis=alt.Axis(grid=False, format=",d", tickMinStep=1)),
            x2=alt.X2("to:Q"),
            y=alt.Y("share:Q", title="share of time, %"),
            y2=alt.Y2Datum(0),
        )
    )
    caption = "Share of the readings that found this many requests in the queue, reads and writes together."
    return Figure("Time at each queue depth", caption, chart.properties(width=canvas.width))


def _stacked(panels: list[alt.LayerChart]) -> alt.VConcatChart:
    """Put panels below each other, each with its own colours."""
    return alt.vconcat(*panels).resolve_scale(color="independent")

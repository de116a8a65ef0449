"""Throughput of the ranks over time, as their mean, slowest and fastest."""

from __future__ import annotations

import altair as alt
import numpy as np
from numpy.typing import NDArray

from dlemu.checkpoints.io_rows import IoRows
from dlemu.jobs.checkpoint.figures._checkpoint_axes import PHASES, begin_ns, time_axis
from dlemu.jobs.checkpoint.result import CheckpointRun
from dlemu.report.figure_base import BLUE, GREY, RED, Canvas, Figure, Row, colours, data, legend

ORDER = 10
Floats = NDArray[np.float64]
_ALL, _SLOWEST, _FASTEST = "mean rank", "slowest rank", "fastest rank"


def draw(run: CheckpointRun, canvas: Canvas) -> Figure | None:
    rows = _rows(run, 80 if canvas.narrow else 240)
    if not rows:
        return None
    y = alt.Y("mb:Q", title="MB/s of a rank (1e6 bytes)", scale=alt.Scale(domainMin=0))
    colour = alt.Color("what:N", scale=colours([_ALL, _SLOWEST, _FASTEST], (BLUE, RED, GREY)), legend=legend(canvas, 3))
    lines = alt.Chart(data(rows)).mark_line(interpolate="step-before", strokeWidth=1.3)
    chart = lines.encode(x=time_axis(), y=y, color=colour, detail=alt.Detail("part:N")).properties(
        width=canvas.width, height=200
    )
    caption = (
        "Bytes that the ranks wrote or read per interval: the mean of all, and the lowest and the highest of one. "
        "Where the mean falls to zero within a checkpoint, the ranks wait for fsync."
    )
    return Figure("Throughput of the ranks over time", caption, chart)


def _rows(run: CheckpointRun, bins: int) -> list[Row]:
    """Return the mean, minimum and maximum MB/s over the ranks for each time interval of each checkpoint."""
    rows: list[Row] = []
    whole = run.whole
    if not len(whole):
        return rows
    start = begin_ns(run)
    width = max(1, (int(whole["ended_ns"].max()) - start) // bins)
    for phase, _ in PHASES:
        for number in dict.fromkeys(whole["checkpoint"][whole["phase"] == phase].tolist()):
            part = whole[(whole["phase"] == phase) & (whole["checkpoint"] == number)]
            moved = run.moved[(run.moved["phase"] == phase) & (run.moved["checkpoint"] == number)]
            first, last = int(part["began_ns"].min()), int(part["ended_ns"].max())
            count = max(1, (last - first) // width)
            edges = np.linspace(first, last, count + 1)
            took = (edges[1] - edges[0]) / 1e9
            rates = [_rate(moved[moved["rank"] == rank], first, edges, took) for rank in part["rank"].tolist()]
            table = np.array(rates)
            values = ((_ALL, table.mean(axis=0)), (_SLOWEST, table.min(axis=0)), (_FASTEST, table.max(axis=0)))
            for name, line in values if len(rates) > 1 else values[:1]:
                rows += [
                    {
                        "what": name,
                        "part": f"{phase}-{number}",
                        "at": round((edge - start) / 1e9, 3),
                        "mb": float(f"{mb:.5g}"),
                    }
                    for edge, mb in zip(edges[1:].tolist(), line.tolist(), strict=True)
                ]
    return rows


def _rate(moved: IoRows, first_ns: int, edges: Floats, seconds: float) -> Floats:
    """Return MB/s in each interval, spreading a progress row's bytes evenly over the time since the row before."""
    moved = np.sort(moved, order="at_ns")
    times = np.concatenate([[first_ns], moved["at_ns"]])
    total = np.concatenate([[0], np.cumsum(moved["bytes"])])
    rate: Floats = np.diff(np.interp(edges, times, total)) / 1e6 / seconds
    return rate

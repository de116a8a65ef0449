"""Figures of a checkpoint run: throughput of the ranks over time, and times over the ranks."""

from __future__ import annotations

import altair as alt
import numpy as np
from numpy.typing import NDArray

from dlemu.checkpoints.io_rows import READ, WRITE, IoRows
from dlemu.jobs.checkpoint.result import CheckpointRun
from dlemu.report.figure_base import AMBER, BLUE, GREY, RED, WIDTH, Figure, Row, colours, data, legend

PHASES = ((WRITE, "written"), (READ, "read"))
Floats = NDArray[np.float64]
_ALL, _SLOWEST, _FASTEST = "mean rank", "slowest rank", "fastest rank"


def checkpoint_throughput(run: CheckpointRun) -> Figure | None:
    """Throughput of the ranks over time, as their mean, slowest and fastest."""
    rows = _throughput_rows(run, 240)
    if not rows:
        return None
    x = alt.X("at:Q", title="seconds since the first checkpoint began", axis=alt.Axis(grid=False))
    y = alt.Y("mb:Q", title="MB/s of a rank (1e6 bytes)", scale=alt.Scale(domainMin=0))
    colour = alt.Color("what:N", scale=colours([_ALL, _SLOWEST, _FASTEST], (BLUE, RED, GREY)), legend=legend(3))
    lines = alt.Chart(data(rows)).mark_line(interpolate="step-before", strokeWidth=1.3)
    chart = lines.encode(x=x, y=y, color=colour, detail=alt.Detail("part:N")).properties(width=WIDTH, height=200)
    caption = "Bytes per interval. Where the mean falls to zero within a checkpoint, the ranks wait for fsync."
    return Figure("Throughput of the ranks over time", caption, chart)


def _throughput_rows(run: CheckpointRun, bins: int) -> list[Row]:
    """Return the mean, minimum and maximum MB/s over the ranks for each time interval of each checkpoint."""
    rows: list[Row] = []
    whole = run.whole
    if not len(whole):
        return rows
    start = int(whole["began_ns"].min())
    width = max(1, (int(whole["ended_ns"].max()) - start) // bins)
    for phase, _ in PHASES:
        for number in dict.fromkeys(whole["checkpoint"][whole["phase"] == phase].tolist()):
            part = whole[(whole["phase"] == phase) & (whole["checkpoint"] == number)]
            files = run.files[(run.files["phase"] == phase) & (run.files["checkpoint"] == number)]
            first, last = int(part["began_ns"].min()), int(part["ended_ns"].max())
            edges = np.linspace(first, last, max(1, (last - first) // width) + 1)
            table = np.array([_rate(files[files["rank"] == rank], edges) for rank in part["rank"].tolist()])
            values = ((_ALL, table.mean(axis=0)), (_SLOWEST, table.min(axis=0)), (_FASTEST, table.max(axis=0)))
            for name, line in values if len(table) > 1 else values[:1]:
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


def _rate(files: IoRows, edges: Floats) -> Floats:
    """Return MB/s in each interval, spreading each file's bytes evenly over the time in which they were moved."""
    files = np.sort(files, order="started_ns")
    moved = np.cumsum(files["bytes"])
    times = np.stack([files["started_ns"], files["moved_ns"]], axis=1).ravel()
    total = np.stack([moved - files["bytes"], moved], axis=1).ravel()
    rate: Floats = np.diff(np.interp(edges, times, total)) / 1e6 / ((edges[1] - edges[0]) / 1e9)
    return rate


def rank_times(run: CheckpointRun) -> Figure | None:
    """The ranks' times for each checkpoint, from fastest to slowest; training waits for the slowest."""
    rows: list[Row] = []
    for phase, name in PHASES:
        whole = run.whole[run.whole["phase"] == phase]
        for number in dict.fromkeys(whole["checkpoint"].tolist()):
            part = whole[whole["checkpoint"] == number]
            seconds = (part["ended_ns"] - part["began_ns"]) / 1e9
            low, middle, high = (float(f"{value:.4g}") for value in np.percentile(seconds, (0, 50, 100)))
            rank0 = float(f"{float(seconds[part['rank'].argmin()]):.4g}")
            rows.append({"at": int(number), "what": name, "low": low, "middle": middle, "high": high, "rank0": rank0})
    if not rows:
        return None
    base = alt.Chart(data(rows)).encode(
        x=alt.X("at:O", title="checkpoint", axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("what:N"),
        color=alt.Color("what:N", scale=colours([name for _, name in PHASES], (BLUE, AMBER)), legend=legend(2)),
    )
    y = alt.Y("low:Q", title="seconds", scale=alt.Scale(domainMin=0))
    bars = base.mark_rule(strokeWidth=3).encode(y=y, y2=alt.Y2("high:Q"))
    dots = base.mark_point(filled=True, size=40).encode(y=alt.Y("middle:Q"))
    first = base.mark_tick(thickness=2, size=10).encode(y=alt.Y("rank0:Q"))
    chart = alt.layer(bars, dots, first).properties(width=WIDTH, height=180)
    caption = "From the fastest to the slowest rank; a dot is the median, a tick rank 0, whose time DLIO publishes."
    return Figure("Time of each checkpoint over the ranks", caption, chart)


FIGURES = (checkpoint_throughput, rank_times)

"""The figure of a checkpoint run: throughput of all ranks over time."""

from __future__ import annotations

import altair as alt
import numpy as np
from numpy.typing import NDArray

from dlemu.checkpoints.io_rows import READ, WRITE, IoRows
from dlemu.jobs.checkpoint.result import CheckpointRun
from dlemu.report.figure_base import AMBER, BLUE, Figure, lines

PHASES = ((WRITE, "written"), (READ, "read"))
Floats = NDArray[np.float64]
_BINS = 160


def checkpoint_throughput(run: CheckpointRun) -> Figure | None:
    """Throughput of all ranks together over time, of writing and of reading."""
    whole, files, rows = run.whole, run.files, []
    if not len(whole):
        return None
    start, end = int(whole["began_ns"].min()), int(whole["ended_ns"].max())
    edges = np.linspace(start, end, _BINS + 1)
    for phase, name in PHASES:
        own = whole[whole["phase"] == phase]
        if not len(own):
            continue
        moved = files[files["phase"] == phase]
        rates = sum((_rate(moved[moved["rank"] == rank], edges) for rank in set(own["rank"].tolist())), np.zeros(_BINS))
        within = (edges[1:] > own["began_ns"].min()) & (edges[:-1] < own["ended_ns"].max())
        rows += [
            {"line": name, "at": round((edge - start) / 1e9, 3), "value": float(f"{gb:.4g}")}
            for edge, gb in zip(edges[1:][within].tolist(), rates[within].tolist(), strict=True)
        ]
    axis, scale = alt.Axis(grid=False), alt.Scale(domainMin=0, nice=False)
    x = alt.X("at:Q", title="seconds since the first checkpoint began", axis=axis, scale=scale)
    title, write, read = "Throughput over time", run.summary.write, run.summary.read
    if write is not None and read is not None and write.slowest_gib_per_second and read.slowest_gib_per_second:
        times = read.slowest_gib_per_second / write.slowest_gib_per_second
        faster, slower = ("Reading", "writing") if times >= 1 else ("Writing", "reading")
        title = f"{faster} was {max(times, 1 / times):.1f} times as fast as {slower}"
    caption = "All ranks together. Where a line falls to zero within a checkpoint, the ranks wait for fsync."
    return Figure(title, caption, alt.layer(lines(rows, x, "GB/s", chosen=(BLUE, AMBER))))


def _rate(files: IoRows, edges: Floats) -> Floats:
    """Return GB/s in each interval, spreading each file's bytes evenly over the time in which they were moved."""
    files = np.sort(files, order="started_ns")
    moved = np.cumsum(files["bytes"])
    times = np.stack([files["started_ns"], files["moved_ns"]], axis=1).ravel()
    total = np.stack([moved - files["bytes"], moved], axis=1).ravel()
    rate: Floats = np.diff(np.interp(edges, times, total)) / (edges[1] - edges[0])  # bytes/ns
    return rate


FIGURES = (checkpoint_throughput,)

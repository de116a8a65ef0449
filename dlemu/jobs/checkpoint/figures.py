"""The figure of a checkpoint run: throughput of all ranks over time."""

from __future__ import annotations

import altair as alt
import numpy as np

from dlemu.checkpoints.io_rows import READ, WRITE
from dlemu.jobs.checkpoint.analyse import CheckpointRun
from dlemu.jobs.checkpoint.wording import rounded
from dlemu.metrics.rates import Intervals
from dlemu.report.figure_base import AMBER, BLUE, Figure, lines

_BINS = 160


def checkpoint_throughput(run: CheckpointRun) -> Figure | None:
    """Return MB/s of all ranks over time, with a line for writing and one for reading; None without checkpoints."""
    checkpoints = run.whole
    if not len(checkpoints):
        return None
    points = []
    start, end = int(checkpoints["began_ns"].min()), int(checkpoints["ended_ns"].max())
    edges = np.linspace(start, end, _BINS + 1)
    for phase, name in ((WRITE, "written"), (READ, "read")):
        phase_rows = checkpoints[checkpoints["phase"] == phase]
        if not len(phase_rows):
            continue
        files = run.files[run.files["phase"] == phase]
        starts, ends = files["started_ns"], np.maximum(files["moved_ns"], files["started_ns"] + 1)
        rates = 1e3 * Intervals(starts, ends, edges).rates(files["bytes"])  # bytes per ns are 1e9 bytes/s
        in_phase = (edges[1:] > phase_rows["began_ns"].min()) & (edges[:-1] < phase_rows["ended_ns"].max())
        points += [
            {"line": name, "at": round((edge - start) / 1e9, 3), "value": float(f"{rate:.4g}")}
            for edge, rate in zip(edges[1:][in_phase].tolist(), rates[in_phase].tolist(), strict=True)
        ]
    axis, scale = alt.Axis(grid=False), alt.Scale(domainMin=0, nice=False)
    x = alt.X("at:Q", title="seconds since the first checkpoint began", axis=axis, scale=scale)
    title, write, read = "Throughput over time", run.summary.write, run.summary.read
    if write is not None and read is not None and write.slowest_gib_per_second and read.slowest_gib_per_second:
        ratio = read.slowest_gib_per_second / write.slowest_gib_per_second
        title = f"Reading ran at {rounded(ratio)} times the rate of writing"
    caption = "All ranks together. A page cache takes bytes faster than its storage; the rate is 0 while fsync runs."
    return Figure(title, caption, alt.layer(lines(points, x, "MB/s", palette=(BLUE, AMBER))))


FIGURES = (checkpoint_throughput,)

"""Quantiles of the fsync time of files, in which data goes from the page cache to the storage."""

from __future__ import annotations

import altair as alt
import numpy as np

from dlemu.checkpoints.io_rows import WRITE
from dlemu.jobs.checkpoint.result import CheckpointRun
from dlemu.report.figure_base import BLUE, Canvas, Figure, data

ORDER = 30
_POINTS = 200


def draw(run: CheckpointRun, canvas: Canvas) -> Figure | None:
    files = run.files[run.files["phase"] == WRITE]
    seconds = np.sort((files["synced_ns"] - files["moved_ns"]) / 1e9)
    if not len(seconds) or not run.facts.workload.checkpoint.fsync:
        return None
    shares = np.linspace(0, 100, min(_POINTS, len(seconds)) + 1)[1:]
    values = np.percentile(seconds, shares)
    rows = [
        {"share": float(f"{share:.4g}"), "seconds": float(f"{value:.4g}")}
        for share, value in zip(shares.tolist(), values.tolist(), strict=True)
    ]
    chart = (
        alt.Chart(data(rows))
        .mark_line(interpolate="step-before", color=BLUE, strokeWidth=1.6, point=len(rows) < 20)
        .encode(
            x=alt.X("share:Q", title="share of the files, %", scale=alt.Scale(domain=[0, 100])),
            y=alt.Y("seconds:Q", title="seconds in fsync", scale=alt.Scale(domainMin=0)),
        )
        .properties(width=canvas.width, height=160)
    )
    caption = f"All {len(seconds):,} files written, sorted by time in fsync: the right end is the tail."
    return Figure("fsync, from the fastest file to the slowest", caption, chart)

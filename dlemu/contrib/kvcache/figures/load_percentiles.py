"""Figure: loads from the fastest to the slowest, as measured and in the FIFO model."""

from __future__ import annotations

import altair as alt
import numpy as np

from dlemu.contrib.kvcache.analyse import RunRows
from dlemu.extend import RowsRun
from dlemu.report.figure_base import AMBER, BLUE, Canvas, Figure, colours, data, legend

ORDER = 10
_POINTS = 200


def draw(run: RowsRun, canvas: Canvas) -> Figure | None:
    measured = RunRows(run)
    model = measured.fifo
    if model is None or not run.summary.sustained:
        return None
    shares = np.linspace(0, 100, min(_POINTS, len(measured.loaded)) + 1)[1:]
    rows = [
        {"line": name, "share": float(f"{share:.4g}"), "seconds": float(f"{value:.4g}")}
        for name, seconds in (("measured", measured.load_seconds), ("one pipe", model[1]))
        for share, value in zip(shares.tolist(), np.percentile(seconds, shares).tolist(), strict=True)
    ]
    colour = alt.Color("line:N", scale=colours(["measured", "one pipe"], (BLUE, AMBER)), legend=legend(canvas))
    chart = (
        alt.Chart(data(rows))
        .mark_line(interpolate="step-before", strokeWidth=1.6)
        .encode(
            x=alt.X("share:Q", title="share of the loads, %", scale=alt.Scale(domain=[0, 100])),
            y=alt.Y("seconds:Q", title="seconds from arrival", scale=alt.Scale(domainMin=0)),
            color=colour,
        )
        .properties(width=canvas.width, height=220)
    )
    caption = (
        f"All {len(measured.loaded):,} loads by how long they took, and what one pipe of {model[0]:.3g} GB/s "
        "that serves them in order would take: above it the storage slowed down, waited for writes, or stalled."
    )
    return Figure("Loads, from the fastest to the slowest", caption, chart)

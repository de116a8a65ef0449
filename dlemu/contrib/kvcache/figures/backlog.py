"""Figure: the bytes waiting to be read and to be written over time."""

from __future__ import annotations

import altair as alt
import numpy as np

from dlemu.contrib.kvcache.analyse import RunRows
from dlemu.extend import RowsRun
from dlemu.report.figure_base import AMBER, BLUE, Canvas, Figure, colours, data, legend

ORDER = 30
_POINTS = 200


def draw(run: RowsRun, canvas: Canvas) -> Figure | None:
    measured = RunRows(run)
    if not len(measured.prompts):
        return None
    times = np.linspace(0, measured.end_seconds, _POINTS).tolist()
    rows = [
        {"line": name, "at": float(f"{at:.5g}"), "mb": float(f"{waiting.at(at):.5g}")}
        for name, waiting in zip(("to be read", "to be written"), measured.waiting(1e-6), strict=True)
        for at in times
    ]
    chart = (
        alt.Chart(data(rows))
        .mark_line(interpolate="step-after", strokeWidth=1.4)
        .encode(
            x=alt.X("at:Q", title="seconds from the start"),
            y=alt.Y("mb:Q", title="MB waiting"),
            color=alt.Color(
                "line:N", scale=colours(["to be read", "to be written"], (BLUE, AMBER)), legend=legend(canvas)
            ),
        )
        .properties(width=canvas.width, height=180)
    )
    caption = "Blocks of prompts that had arrived but were not loaded yet, and of those computed but not written yet."
    return Figure("What waited", caption, chart)

"""The figure of a run of KV-cache offload."""

from __future__ import annotations

import altair as alt
import numpy as np

from dlemu.contrib.kvcache.analyse import RunRows
from dlemu.extend import rows_job
from dlemu.report.figure_base import GREEN, PURPLE, RED, WIDTH, Figure, Row, colours, data, legend, rounded

_BINS = 80


def first_token(run: rows_job.RowsRun) -> Figure | None:
    """The parts of the time to the first token (computing, waiting), over the time of arrival."""
    measured = RunRows(run)
    done = measured.computed
    if not len(done):
        return None
    arrived = measured.at(done, "arrived_ns")
    width = max(measured.span_seconds, 1e-3) / min(_BINS, len(done))
    bins = (arrived / width).astype(np.int64)
    names, shades = ("computing", "waiting for blocks", "waiting for an accelerator"), (GREEN, RED, PURPLE)
    parts = done["compute_ns"] / 1e9, measured.waits, measured.queueing
    rows: list[Row] = []
    for number in np.unique(bins).tolist():
        below = 0.0
        for name, seconds in zip(names, parts, strict=True):
            top = below + float(seconds[bins == number].mean())
            begin, end, low, high = rounded([width * number, width * (number + 1), below, top])
            rows.append({"at": begin, "to": end, "part": name, "low": low, "high": high})
            below = top
    chart = (
        alt.Chart(data(rows))
        .mark_bar()
        .encode(
            x=alt.X("at:Q", title="arrival, seconds from the start"),
            x2=alt.X2("to:Q"),
            y=alt.Y("low:Q", title="seconds to the first token, mean"),
            y2=alt.Y2("high:Q"),
            color=alt.Color("part:N", scale=colours(names, shades), legend=legend(3)),
        )
        .properties(width=WIDTH, height=220)
    )
    caption = "Prompts by arrival. Bars that rise to the right: more arrive than storage and accelerators can serve."
    return Figure("Where the time to the first token goes", caption, chart)

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
    computed = measured.computed
    if not len(computed):
        return None
    width = max(measured.span_seconds, 1e-3) / min(_BINS, len(computed))
    bins = (measured.at(computed, "arrived_ns") / width).astype(np.int64)
    parts = {"computing": computed["compute_ns"] / 1e9, "waiting for blocks": measured.waits}
    parts["waiting for an accelerator"] = measured.queueing
    rows: list[Row] = []
    for number in np.unique(bins).tolist():
        low = 0.0
        for name, seconds in parts.items():
            high = low + float(seconds[bins == number].mean())
            begin, end, bottom, top = rounded([width * number, width * (number + 1), low, high])
            rows.append({"at": begin, "to": end, "part": name, "low": bottom, "high": top})
            low = high
    chart = (
        alt.Chart(data(rows))
        .mark_bar()
        .encode(
            x=alt.X("at:Q", title="arrival, seconds from the start"),
            x2=alt.X2("to:Q"),
            y=alt.Y("low:Q", title="seconds to the first token, mean"),
            y2=alt.Y2("high:Q"),
            color=alt.Color("part:N", scale=colours(list(parts), (GREEN, RED, PURPLE)), legend=legend(3)),
        )
        .properties(width=WIDTH, height=220)
    )
    caption = "Prompts by arrival. Bars that rise to the right: more arrive than storage and accelerators can serve."
    return Figure("Where the time to the first token goes", caption, chart)

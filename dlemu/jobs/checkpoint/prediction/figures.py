"""The figure of a prediction of checkpoints."""

from __future__ import annotations

import altair as alt
import numpy as np

from dlemu.jobs.checkpoint.prediction.prediction import CheckpointPrediction
from dlemu.metrics.checkpoint_rates import cost_percent, wasted_percent
from dlemu.report.figure_base import AMBER, BLUE, WIDTH, Figure, data, legend, rounded

SPAN = 30.0
"""The figure covers intervals from 1/30 of the configured one to 30 times it."""


def training_lost(answer: CheckpointPrediction) -> Figure | None:
    """Training time lost to checkpoints and failures, by the interval between checkpoints."""
    cost = answer.training
    if cost is None or cost.stall_seconds <= 0 or answer.write is None:
        return None
    drain = 0.0 if cost.stall_seconds == answer.write.seconds else answer.write.seconds  # the whole save, or a snapshot
    intervals = np.geomspace(cost.interval_seconds / SPAN, cost.interval_seconds * SPAN, 60).tolist()
    lines = {"checkpoints": [cost_percent(cost.stall_seconds, interval, drain) for interval in intervals]}
    if cost.mtbf_hours:
        lines["with failures"] = [
            wasted_percent(interval, cost.stall_seconds, cost.recovery_seconds or 0.0, cost.mtbf_hours * 3600, drain)
            for interval in intervals
        ]
    rows = [
        {"at": at, "value": value, "line": name}
        for name, values in lines.items()
        for at, value in zip(rounded(intervals), rounded(values), strict=True)
    ]
    x = alt.X("at:Q", title="seconds between checkpoints", scale=alt.Scale(type="log"), axis=alt.Axis(grid=False))
    chart = (
        alt.Chart(data(rows))
        .mark_line(strokeWidth=1.6)
        .encode(
            x=x,
            y=alt.Y("value:Q", title="% of the time lost", scale=alt.Scale(zero=True)),
            color=alt.Color(
                "line:N",
                scale=alt.Scale(domain=list(lines), range=[BLUE, AMBER][: len(lines)]),
                legend=legend() if len(lines) > 1 else None,
            ),
        )
    )
    caption = f"Training stalls {cost.stall_seconds:,.3g} s for each checkpoint"
    caption += f", which is on the storage {drain:,.3g} s later." if drain else "."
    if cost.mtbf_hours:
        caption += f" With failures: half an interval is computed again every {cost.mtbf_hours:g} h, and one is read."
    return Figure(
        "Training time lost by the interval of checkpoints", caption, chart.properties(width=WIDTH, height=220)
    )


FIGURES = (training_lost,)

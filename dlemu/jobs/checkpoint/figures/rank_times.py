"""The ranks' times for each checkpoint, from fastest to slowest; training waits for the slowest."""

from __future__ import annotations

import altair as alt
import numpy as np

from dlemu.jobs.checkpoint.figures._checkpoint_axes import PHASES
from dlemu.jobs.checkpoint.result import CheckpointRun
from dlemu.report.figure_base import AMBER, BLUE, Canvas, Figure, Row, colours, data, legend

ORDER = 20


def draw(run: CheckpointRun, canvas: Canvas) -> Figure | None:
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
        color=alt.Color("what:N", scale=colours([name for _, name in PHASES], (BLUE, AMBER)), legend=legend(canvas, 2)),
    )
    y = alt.Y("low:Q", title="seconds", scale=alt.Scale(domainMin=0))
    bars = base.mark_rule(strokeWidth=3).encode(y=y, y2=alt.Y2("high:Q"))
    dots = base.mark_point(filled=True, size=40).encode(y=alt.Y("middle:Q"))
    first = base.mark_tick(thickness=2, size=10).encode(y=alt.Y("rank0:Q"))
    chart = alt.layer(bars, dots, first).properties(width=canvas.width, height=180)
    caption = (
        "From the fastest to the slowest rank; a dot is the median rank, a tick is rank 0, whose time DLIO publishes. "
        "Training waits for the upper end."
    )
    return Figure("Time of each checkpoint over the ranks", caption, chart)

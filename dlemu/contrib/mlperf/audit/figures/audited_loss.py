"""Where runs lost time: a bar per run, or the distribution of each cause over many runs."""

from __future__ import annotations

import altair as alt
import numpy as np

from dlemu.contrib.mlperf.audit.audit_answer import PlacedRun
from dlemu.contrib.mlperf.audit.figures._audit_axes import label_axis, plot_width
from dlemu.contrib.mlperf.audit.page import Audit
from dlemu.report.figure_base import (
    AMBER,
    BLUE,
    GREY,
    INK,
    PINK,
    PURPLE,
    RED,
    Canvas,
    Figure,
    Row,
    colours,
    data,
    legend,
    rounded,
)

ORDER = 30
_MAX_BARS = 40  # with more runs, distributions are drawn: the bars would be too narrow to tell apart
_LOSS = {
    "first_step": (PINK, "first steps"),
    "load": (RED, "load"),
    "oversleep": (GREY, "late"),
    "slower_rank": (AMBER, "slower rank"),
    "barrier": (BLUE, "barrier"),
    "all_other": (PURPLE, "all other"),
}
"""Cause of lost time -> colour and label."""


def draw(audit: Audit, canvas: Canvas) -> Figure | None:
    runs = [run for run in audit.runs if any(value is not None for value in run.loss_percent.values())]
    if not runs:
        return None
    return _bars(runs, canvas) if len(runs) <= _MAX_BARS else _distribution(runs, canvas)


def _colour(canvas: Canvas, parts: list[str]) -> alt.Color:
    return alt.Color("part:N", scale=_colours(parts), legend=legend(canvas, 2 if canvas.narrow else 6))


def _colours(parts: list[str]) -> alt.Scale:
    return colours([_LOSS[part][1] for part in parts], [_LOSS[part][0] for part in parts])


def _known_causes(runs: list[PlacedRun]) -> list[str]:
    return [part for part in _LOSS if any(run.loss_percent[part] is not None for run in runs)]


def _bars(runs: list[PlacedRun], canvas: Canvas) -> Figure:
    parts = _known_causes(runs)
    rows: list[Row] = []
    for run in runs:
        known = [(part, run.loss_percent[part]) for part in parts]
        shares = [(part, max(0.0, value)) for part, value in known if value is not None]
        for place, (part, value) in enumerate(shares):
            rows.append({"run": run.name, "part": _LOSS[part][1], "place": place, "value": rounded([value])[0]})
    chart = alt.Chart(data(rows)).mark_bar(height={"band": 0.75})
    chart = chart.encode(
        x=alt.X("sum(value):Q", title="lost, % of the blocks' time", stack="zero"),
        y=alt.Y("run:N", title=None, sort=None, axis=label_axis(canvas, [row["run"] for row in rows])),
        color=_colour(canvas, parts),
        order=alt.Order("place:Q"),
    )
    says = "For each run: the time in which accelerators did not compute, by cause."
    height = max(60, 18 * len(runs))
    return Figure("Where the time went", says, chart.properties(width=plot_width(canvas), height=height))


def _distribution(runs: list[PlacedRun], canvas: Canvas) -> Figure:
    rows: list[Row] = []
    for name in sorted({run.kind for run in runs}):
        for part in _LOSS:
            values = [value for run in runs if run.kind == name and (value := run.loss_percent[part]) is not None]
            if values:
                low, left, middle, right, high = rounded(np.percentile(values, [5, 25, 50, 75, 95]).clip(0))
                label = _LOSS[part][1]
                row: Row = {"row": f"{name}, {label} ({len(values)})", "part": label, "low": low, "left": left}
                rows.append(row | {"middle": middle, "right": right, "high": high})
    x = {name: alt.X(f"{name}:Q", title="lost, % of the blocks' time") for name in ("low", "left", "middle")}
    y = alt.Y("row:N", title=None, sort=None, axis=label_axis(canvas, [row["row"] for row in rows], max_letters=36))
    colour = alt.Color("part:N", scale=_colours(list(_LOSS)), legend=None)
    base = alt.Chart(data(rows)).encode(y=y, color=colour)
    chart = alt.layer(
        base.mark_rule(strokeWidth=1.4).encode(x=x["low"], x2=alt.X2("high:Q")),
        base.mark_bar(height={"band": 0.7}).encode(x=x["left"], x2=alt.X2("right:Q")),
        base.mark_tick(thickness=2).encode(x=x["middle"], color=alt.ColorValue(INK)),
    )
    says = (
        "For each kind of run and cause: half of the runs are within the bar, 9 of 10 on the line; the tick is the "
        "median. In parentheses: the number of runs for which it is known."
    )
    height = max(90, 16 * len(rows))
    return Figure("Where the time went", says, chart.properties(width=plot_width(canvas), height=height))

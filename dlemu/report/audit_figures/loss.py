"""Where the runs lost their time: a bar a run, or of many runs how each part is spread."""

from __future__ import annotations

import os

import altair as alt
import numpy as np

from dlemu.report.audit import Audit, AuditRow, kind
from dlemu.report.audit_figures._rows import LOSS, label_axis, plot_width
from dlemu.report.figures.figure_base import INK, Canvas, Figure, Row, colours, data, legend, rounded

PLACE = 30
_MOST_BARS = 40


def draw(audit: Audit, canvas: Canvas) -> Figure | None:
    runs = [run for run in audit.runs if any(_part(run, part) is not None for part in LOSS)]
    if not runs:
        return None
    return _bars(runs, canvas) if len(runs) <= _MOST_BARS else _spread(runs, canvas)


def _part(run: AuditRow, part: str) -> float | None:
    value: float | None = run.get(f"loss_{part}_percent")
    return value


def _colour(canvas: Canvas, parts: list[str]) -> alt.Color:
    return alt.Color("part:N", scale=_colours(parts), legend=legend(canvas, 2 if canvas.narrow else 6))


def _colours(parts: list[str]) -> alt.Scale:
    return colours([LOSS[part][1] for part in parts], [LOSS[part][0] for part in parts])


def _known(runs: list[AuditRow]) -> list[str]:
    return [part for part in LOSS if any(_part(run, part) is not None for run in runs)]


def _bars(runs: list[AuditRow], canvas: Canvas) -> Figure:
    parts = _known(runs)
    found: list[Row] = []
    for run in runs:
        name = os.path.normpath(os.path.join(run["system"], run["run"]))
        shares = [(part, max(0.0, value)) for part in parts if (value := _part(run, part)) is not None]
        for place, (part, value) in enumerate(shares):
            found.append({"run": name, "part": LOSS[part][1], "place": place, "value": rounded([value])[0]})
    chart = alt.Chart(data(found)).mark_bar(height={"band": 0.75})
    chart = chart.encode(
        x=alt.X("sum(value):Q", title="lost, % of the blocks' time", stack="zero"),
        y=alt.Y("run:N", title=None, sort=None, axis=label_axis(canvas, [row["run"] for row in found])),
        color=_colour(canvas, parts),
        order=alt.Order("place:Q"),
    )
    says = "Of each run: the time in which accelerators did not compute, by what they waited for."
    height = max(60, 18 * len(runs))
    return Figure("Where the time went", says, chart.properties(width=plot_width(canvas), height=height))


def _spread(runs: list[AuditRow], canvas: Canvas) -> Figure:
    found: list[Row] = []
    for name in sorted({kind(run) for run in runs}):
        for part in LOSS:
            values = [value for run in runs if kind(run) == name and (value := _part(run, part)) is not None]
            if values:
                low, left, middle, right, high = rounded(np.percentile(values, [5, 25, 50, 75, 95]).clip(0))
                row = {
                    "row": f"{name}, {LOSS[part][1]} ({len(values)})",
                    "part": LOSS[part][1],
                    "low": low,
                    "left": left,
                }
                found.append(row | {"middle": middle, "right": right, "high": high})
    x = {name: alt.X(f"{name}:Q", title="lost, % of the blocks' time") for name in ("low", "left", "middle")}
    y = alt.Y("row:N", title=None, sort=None, axis=label_axis(canvas, [row["row"] for row in found], most=36))
    colour = alt.Color("part:N", scale=_colours(list(LOSS)), legend=None)
    base = alt.Chart(data(found)).encode(y=y, color=colour)
    chart = alt.layer(
        base.mark_rule(strokeWidth=1.4).encode(x=x["low"], x2="high:Q"),
        base.mark_bar(height={"band": 0.7}).encode(x=x["left"], x2="right:Q"),
        base.mark_tick(thickness=2).encode(x=x["middle"], color=alt.value(INK)),
    )
    says = (
        "Of each kind of run: half of the runs lie within the bar, 9 of 10 on the line, and the stroke is the median. "
        "In brackets: of how many runs the part is known."
    )
    height = max(90, 16 * len(found))
    return Figure("Where the time went", says, chart.properties(width=plot_width(canvas), height=height))

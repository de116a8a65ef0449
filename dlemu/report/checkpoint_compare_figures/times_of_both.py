"""How long each checkpoint took on either side: whether one drifts, or has slow ones between."""

from __future__ import annotations

import altair as alt

from dlemu.report.checkpoint_comparison import OpenedCheckpointComparison
from dlemu.report.figures.figure_base import Canvas, Figure, Row, colours, data, legend

ORDER = 20


def draw(comparison: OpenedCheckpointComparison, canvas: Canvas) -> Figure | None:
    rows: list[Row] = []
    for name, side in zip(comparison.names, comparison.answer.sides, strict=True):
        for phase, times in (("written", side.write_seconds), ("read", side.read_seconds)):
            rows += [
                {"line": name, "phase": phase, "at": place, "value": float(f"{seconds:.4g}")}
                for place, seconds in enumerate(times, start=1)
            ]
    phases = [phase for phase in ("written", "read") if any(row["phase"] == phase for row in rows)]
    if not rows or max(row["at"] for row in rows) < 2:
        return None
    width = canvas.width if canvas.narrow or len(phases) == 1 else (canvas.width - 62) // 2
    hue = alt.Color("line:N", scale=colours(comparison.names), legend=legend(canvas, 1 if canvas.narrow else 2))
    panels = []
    for phase in phases:
        shown = [row for row in rows if row["phase"] == phase]
        most = max(row["at"] for row in shown)
        axis = alt.Axis(grid=False, format="d", values=list(range(1, most + 1, max(1, most // 10))))
        base = alt.Chart(data(shown)).encode(
            x=alt.X("at:Q", title=f"checkpoint {phase}, in order", axis=axis),
            y=alt.Y("value:Q", title="seconds", scale=alt.Scale(domainMin=0)),
            color=hue,
        )
        layers = base.mark_line(strokeWidth=1.6), base.mark_point(filled=True, size=40, opacity=1)
        panels.append(alt.layer(*layers).properties(width=width, height=170))
    says = "Of the slowest rank, for which training waits."
    chart = alt.concat(*panels, columns=1 if canvas.narrow else 2, spacing=24)
    return Figure("Time of each checkpoint", says, chart)

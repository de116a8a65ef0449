"""Figure: GB/s against requests in flight, a line for each size, and the rates that accelerators need."""

from __future__ import annotations

import altair as alt

from dlemu.jobs.probe.page import axis_title, cell_line
from dlemu.jobs.probe.result import ProbeAnswer
from dlemu.report.figure_base import GREEN, Canvas, Figure, colours, data, legend, rule

ORDER = 10


def draw(answer: ProbeAnswer, canvas: Canvas) -> Figure | None:
    if not answer.cells:
        return None
    rows = [
        {"line": cell_line(answer, cell), "at": cell.in_flight, "value": round(cell.mb_per_second / 1e3, 5)}
        for cell in answer.cells
    ]
    names = list(dict.fromkeys(str(row["line"]) for row in rows))
    depths = sorted({cell.in_flight for cell in answer.cells})
    x = alt.X(
        "at:Q", title=axis_title(answer), scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=depths, grid=False)
    )
    y, level = (alt.Y(field, title="GB/s", scale=alt.Scale(zero=True)) for field in ("value:Q", "level:Q"))
    shown = legend(canvas) if len(names) > 1 else None
    base = alt.Chart(data(rows)).encode(x=x, y=y, color=alt.Color("line:N", scale=colours(names), legend=shown))
    most = max(cell.mb_per_second for cell in answer.cells) / 1e3
    lines = []
    for fed in answer.feeds:
        each = fed.threshold_percent / 100 * fed.mb_per_second_each / 1e3
        if each <= most:
            lines.append(
                rule(each, f"one {fed.accelerator or 'accelerator'} on {fed.workload}", GREEN, level, left=True)
            )
    chart = alt.layer(*lines[:3], base.mark_line(strokeWidth=1.6), base.mark_point(filled=True, size=45, opacity=1))
    caption = "Horizontal: demand of one accelerator at its threshold." if lines else "Each point is one measurement."
    return Figure(f"Speed against {axis_title(answer)}", caption, chart.properties(width=canvas.width, height=260))

"""Figure: GB/s against the size of requests, a line for each number of requests in flight."""

from __future__ import annotations

import altair as alt

from dlemu.jobs.probe.page import size_name
from dlemu.jobs.probe.result import ProbeAnswer
from dlemu.report.figure_base import Canvas, Figure, colours, data, legend

ORDER = 20


def draw(answer: ProbeAnswer, canvas: Canvas) -> Figure | None:
    sizes = sorted({cell.size_bytes for cell in answer.cells})
    if len(sizes) < 2 or answer.question.workload:
        return None
    rows = [
        {
            "line": f"{cell.access}, {cell.in_flight} in flight",
            "at": size_name(cell.size_bytes),
            "value": round(cell.mb_per_second / 1e3, 5),
        }
        for cell in sorted(answer.cells, key=lambda cell: (cell.in_flight, cell.size_bytes))
    ]
    names = list(dict.fromkeys(str(row["line"]) for row in rows))
    x = alt.X("at:N", title="bytes of a request", sort=[size_name(size) for size in sizes], axis=alt.Axis(labelAngle=0))
    colour = alt.Color("line:N", scale=colours(names), legend=legend(canvas))
    base = alt.Chart(data(rows)).encode(x=x, y=alt.Y("value:Q", title="GB/s"), color=colour)
    chart = alt.layer(base.mark_line(strokeWidth=1.6), base.mark_point(filled=True, size=45, opacity=1))
    caption = "Small requests are limited by IOPS, large ones by bandwidth."
    return Figure("Speed against size", caption, chart.properties(width=canvas.width, height=260))

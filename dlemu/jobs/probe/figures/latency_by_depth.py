"""Figure: latency percentiles against requests in flight."""

from __future__ import annotations

import altair as alt

from dlemu.jobs.probe.page import axis_title, cell_line
from dlemu.jobs.probe.result import ProbeAnswer
from dlemu.report.figure_base import Canvas, Figure, colours, data, legend

ORDER = 30
_DASHES = {"p50": [1, 0], "p99": [6, 3], "p99.9": [2, 3]}
FIRST_BYTE = "first byte p50"


def draw(answer: ProbeAnswer, canvas: Canvas) -> Figure | None:
    dashes = _DASHES | ({FIRST_BYTE: [8, 2, 2, 2]} if any(cell.first_byte_ms for cell in answer.cells) else {})
    rows = [
        {"line": cell_line(answer, cell), "at": cell.in_flight, "which": which, "value": float(f"{value:.5g}")}
        for cell in answer.cells
        if cell.latency_ms is not None
        for which, value in (
            ("p50", cell.latency_ms.p50),
            ("p99", cell.latency_ms.p99),
            ("p99.9", cell.latency_ms.p999),
            *([(FIRST_BYTE, cell.first_byte_ms.p50)] if cell.first_byte_ms else []),
        )
        if value > 0
    ]
    if not rows:
        return None
    names = list(dict.fromkeys(str(row["line"]) for row in rows))
    depths = sorted({cell.in_flight for cell in answer.cells})
    x = alt.X(
        "at:Q", title=axis_title(answer), scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=depths, grid=False)
    )
    y = alt.Y("value:Q", title="latency, ms", scale=alt.Scale(type="log"))
    dash = alt.StrokeDash(
        "which:N", scale=alt.Scale(domain=list(dashes), range=list(dashes.values())), legend=legend(canvas)
    )
    shown = legend(canvas) if len(names) > 1 else None
    base = alt.Chart(data(rows)).encode(x=x, y=y, color=alt.Color("line:N", scale=colours(names), legend=shown))
    chart = alt.layer(base.mark_line(strokeWidth=1.5).encode(strokeDash=dash), base.mark_point(filled=True, size=25))
    caption = "From submission to completion: p50, p99 and p99.9 of the requests."
    return Figure(f"Latency against {axis_title(answer)}", caption, chart.properties(width=canvas.width, height=260))

"""Figures of a probe: speed by depth and by size, latency by depth."""

from __future__ import annotations

import altair as alt

from dlemu.jobs.probe.result import ProbeAnswer, axis_title, cell_line, size_name
from dlemu.report.figure_base import GREEN, Canvas, Figure, colours, data, legend, rule


def speed_by_depth(answer: ProbeAnswer, canvas: Canvas) -> Figure | None:
    """GB/s against requests in flight, a line for each size, and the rates that accelerators need."""
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
            lines.append(rule(each, f"one {fed.kind}", GREEN, level, left=True))
    chart = alt.layer(*lines[:3], base.mark_line(strokeWidth=1.6), base.mark_point(filled=True, size=45, opacity=1))
    caption = "Horizontal: demand of one accelerator at its threshold." if lines else "Each point is one measurement."
    return Figure(f"Speed against {axis_title(answer)}", caption, chart.properties(width=canvas.width, height=260))


def speed_by_size(answer: ProbeAnswer, canvas: Canvas) -> Figure | None:
    """GB/s against the size of requests, a line for each number of requests in flight."""
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


_DASHES = {"p50": [1, 0], "p99": [6, 3], "p99.9": [2, 3]}
FIRST_BYTE = "first byte p50"


def latency_by_depth(answer: ProbeAnswer, canvas: Canvas) -> Figure | None:
    """Latency percentiles against requests in flight."""
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


FIGURES = (speed_by_depth, speed_by_size, latency_by_depth)

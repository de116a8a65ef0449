"""The figure of a probe: speed by requests in flight."""

from __future__ import annotations

import altair as alt

from dlemu.jobs.probe.result import ProbeAnswer, size_name
from dlemu.report.figure_base import GREEN, WIDTH, Figure, colours, data, legend, rule


def speed_by_depth(answer: ProbeAnswer) -> Figure | None:
    """GB/s against requests in flight, a line for each size, and the rates that accelerators need."""
    if not answer.cells:
        return None
    across = "requests in flight"
    rows = [
        {
            "line": f"{cell.access} {size_name(cell.size_bytes)}",
            "at": cell.in_flight,
            "value": round(cell.mb_per_second / 1e3, 5),
        }
        for cell in answer.cells
    ]
    names = list(dict.fromkeys(str(row["line"]) for row in rows))
    depths = sorted({cell.in_flight for cell in answer.cells})
    x = alt.X("at:Q", title=across, scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=depths, grid=False))
    y, level = (alt.Y(field, title="GB/s", scale=alt.Scale(zero=True)) for field in ("value:Q", "level:Q"))
    shown = legend() if len(names) > 1 else None
    base = alt.Chart(data(rows)).encode(x=x, y=y, color=alt.Color("line:N", scale=colours(names), legend=shown))
    most = max(cell.mb_per_second for cell in answer.cells) / 1e3
    needs = [(fed.kind, fed.threshold_percent / 100 * fed.mb_per_second_each / 1e3) for fed in answer.feeds]
    lines = [rule(each, f"one {kind}", GREEN, level, left=True) for kind, each in needs if each <= most]
    chart = alt.layer(*lines[:3], base.mark_line(strokeWidth=1.6), base.mark_point(filled=True, size=45, opacity=1))
    caption = "Horizontal: demand of one accelerator at its threshold." if lines else "Each point is one measurement."
    return Figure(f"Speed against {across}", caption, chart.properties(width=WIDTH, height=260))


FIGURES = (speed_by_depth,)

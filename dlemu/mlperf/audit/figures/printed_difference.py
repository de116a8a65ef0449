"""How far what was recomputed lies from what was printed."""

from __future__ import annotations

from collections.abc import Callable

import altair as alt

from dlemu.mlperf.audit.audit_answer import PlacedRun
from dlemu.mlperf.audit.figures._audit_axes import kind_colour
from dlemu.mlperf.audit.page import Audit
from dlemu.report.figure_base import GRID, MUTED, Canvas, Figure, Row, data, rounded

ORDER = 10
_MOST_POINTS = 600  # bounds the page's size; the least differences lie on top of each other anyway
_POINTS_TOLERANCE, _PERCENT_TOLERANCE = 0.02, 0.05
"""From which difference on an audit says so (docs/audit.md)."""


def draw(audit: Audit, canvas: Canvas) -> Figure | None:
    au, rate = (_rows(audit, lambda run: run.au_apart_points), _rows(audit, lambda run: run.rate_apart_percent))
    panels = []
    if au:
        panels.append(_panel(audit, au, "AU: recomputed - printed, points", _POINTS_TOLERANCE, canvas))
    if rate:
        panels.append(_panel(audit, rate, "samples/s: recomputed - printed, %", _PERCENT_TOLERANCE, canvas))
    if not panels:
        return None
    says = (
        "Full points: from the steps of all ranks, and exact. Hollow: from rank 0's time stamps alone, which the other "
        "ranks need not share. Dashed: from there on an audit reports it. Between the dashed lines the scale is even, "
        "beyond them logarithmic."
    )
    if max(len(au), len(rate)) == _MOST_POINTS:
        says += f" The {_MOST_POINTS} largest differences."
    return Figure("Printed against recomputed", says, alt.vconcat(*panels))


def _rows(audit: Audit, value: Callable[[PlacedRun], float | None]) -> list[Row]:
    rows: list[Row] = []
    for run in audit.runs:
        apart, printed = value(run), run.au_printed_percent
        if apart is not None and printed is not None:
            at, off = rounded([printed, apart], 6)
            rows.append({"kind": run.kind, "at": at, "off": off, "exact": run.basis == "steps"})
    return sorted(rows, key=lambda row: -abs(row["off"]))[:_MOST_POINTS]


def _panel(audit: Audit, rows: list[Row], title: str, tolerance: float, canvas: Canvas) -> alt.LayerChart:
    reach = 2 * max([tolerance, *(abs(row["off"]) for row in rows)])
    scale = alt.Scale(type="symlog", constant=tolerance, domain=[-reach, reach], nice=False)
    ticks = [sign * tolerance * 10**power for sign in (-1, 1) for power in range(6) if tolerance * 10**power <= reach]
    axis = alt.Axis(values=[0, *ticks], format="~g", grid=False)
    x = alt.X("at:Q", title="printed AU, %", scale=alt.Scale(zero=False), axis=alt.Axis(grid=False, tickCount=6))
    y = alt.Y("off:Q", title=title, scale=scale, axis=axis)
    lines = alt.Chart(data([{"off": level} for level in (-tolerance, 0, tolerance)]))
    edges = lines.transform_filter(alt.datum.off != 0).mark_rule(color=MUTED, strokeDash=[6, 4]).encode(y=y)
    zero = lines.transform_filter(alt.datum.off == 0).mark_rule(color=GRID).encode(y=y)
    points = alt.Chart(data(rows)).encode(x=x, y=y, color=kind_colour(audit, canvas))
    full = points.transform_filter("datum.exact").mark_point(filled=True, size=38, opacity=0.9)
    hollow = points.transform_filter("!datum.exact").mark_point(size=18, opacity=0.7, strokeWidth=1)
    return alt.layer(zero, edges, hollow, full).properties(width=canvas.width, height=200)

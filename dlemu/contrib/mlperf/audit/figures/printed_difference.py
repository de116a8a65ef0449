"""Differences between printed and recomputed numbers."""

from __future__ import annotations

from collections.abc import Callable

import altair as alt

from dlemu.contrib.mlperf.audit.audit_answer import PlacedRun
from dlemu.contrib.mlperf.audit.figures._audit_axes import kind_colour
from dlemu.contrib.mlperf.audit.page import Audit
from dlemu.report.figure_base import GRID, MUTED, Canvas, Figure, Row, data, rounded

ORDER = 10
_MAX_POINTS = 600  # limits the page's size; the smallest differences overlap anyway
_POINTS_TOLERANCE, _PERCENT_TOLERANCE = 0.02, 0.05
"""An audit reports larger differences of AU (points) and samples/s (%); docs/audit.md."""


def draw(audit: Audit, canvas: Canvas) -> Figure | None:
    au = _rows(audit, lambda run: run.au_difference_points)
    rate = _rows(audit, lambda run: run.rate_difference_percent)
    panels = []
    if au:
        panels.append(_panel(audit, au, "AU: recomputed - printed, points", _POINTS_TOLERANCE, canvas))
    if rate:
        panels.append(_panel(audit, rate, "samples/s: recomputed - printed, %", _PERCENT_TOLERANCE, canvas))
    if not panels:
        return None
    says = (
        "Full points: recomputed from the steps of all ranks, exactly. Hollow: from rank 0's time stamps only; other "
        "ranks may differ. Beyond the dashed lines, the audit reports the difference. The scale is linear between "
        "them, logarithmic beyond."
    )
    if max(len(au), len(rate)) == _MAX_POINTS:
        says += f" Only the {_MAX_POINTS} largest differences are shown."
    return Figure("Printed against recomputed", says, alt.vconcat(*panels))


def _rows(audit: Audit, value: Callable[[PlacedRun], float | None]) -> list[Row]:
    rows: list[Row] = []
    for run in audit.runs:
        difference, printed = value(run), run.au_printed_percent
        if difference is not None and printed is not None:
            at, off = rounded([printed, difference], 6)
            rows.append({"kind": run.kind, "at": at, "off": off, "exact": run.basis == "steps"})
    return sorted(rows, key=lambda row: -abs(row["off"]))[:_MAX_POINTS]


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

"""AU of each system: as printed, and recomputed for whole epochs, no step dropped."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from dlemu.contrib.mlperf.audit.audit_answer import PlacedRun
from dlemu.contrib.mlperf.audit.figures._audit_axes import kind_colour, label_axis, plot_width
from dlemu.contrib.mlperf.audit.page import Audit
from dlemu.report.figure_base import INK, MUTED, Canvas, Figure, Row, data, percent_domain, rounded

ORDER = 20
_MAX_SYSTEMS = 160  # rows of 11 pixels; if there are more systems, those with the lowest AU are drawn
_ROW_PIXELS = 11


def draw(audit: Audit, canvas: Canvas) -> Figure | None:
    rows = [row for name, runs in audit.systems if (row := _row(name, runs))]
    if not rows:
        return None
    shown = sorted(rows, key=lambda row: row["printed"])[:_MAX_SYSTEMS]
    order = [row["system"] for row in reversed(shown)]
    levels = [value for row in shown for value in (row["low"], row["whole"], row["pass"]) if value is not None]
    x = alt.Scale(domain=percent_domain(levels), nice=False)
    y = alt.Y("system:N", sort=order, title=None, axis=label_axis(canvas, order))
    base = alt.Chart(data(shown)).encode(y=y)
    places = {name: alt.X(f"{name}:Q", title="AU, %", scale=x) for name in ("low", "printed", "whole", "pass")}
    known = base.transform_filter("datum.whole !== null")
    chart = alt.layer(
        known.mark_rule(color=MUTED, opacity=0.5).encode(x=places["whole"], x2=alt.X2("printed:Q")),
        base.mark_tick(color=MUTED, thickness=1, size=_ROW_PIXELS).encode(x=places["pass"]),
        base.mark_rule(strokeWidth=3).encode(x=places["low"], x2=alt.X2("high:Q"), color=kind_colour(audit, canvas)),
        known.mark_point(size=22, color=INK, strokeWidth=1, opacity=1).encode(x=places["whole"]),
        base.mark_point(filled=True, size=30, opacity=1).encode(x=places["printed"], color=kind_colour(audit, canvas)),
    )
    says = (
        "Full points: the mean of a system's printed AU, with their range. Hollow points: their mean AU of whole "
        "epochs, which counts every step. Small ticks: the AU from which a run passes."
    )
    if len(shown) < len(rows):
        says += f" Only the {len(shown)} of {len(rows)} systems with the lowest AU are shown."
    height = max(60, _ROW_PIXELS * len(shown))
    return Figure("AU of each system", says, chart.properties(width=plot_width(canvas), height=height))


def _row(name: str, runs: Sequence[PlacedRun]) -> Row | None:
    printed = [run.au_printed_percent for run in runs if run.au_printed_percent is not None]
    if not printed:
        return None
    whole = [run.au_whole_percent for run in runs if run.au_whole_percent is not None]
    mean, low, high = rounded([sum(printed) / len(printed), min(printed), max(printed)])
    return {
        "system": name,
        "kind": runs[0].kind,
        "printed": mean,
        "low": low,
        "high": high,
        "whole": rounded([sum(whole) / len(whole)])[0] if whole else None,
        "pass": runs[0].au_threshold_percent,
    }

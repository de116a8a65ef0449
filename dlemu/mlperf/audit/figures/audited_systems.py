"""AU of each system: what it printed, and what the rules' text makes of it."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from dlemu.mlperf.audit.audit_answer import PlacedRun
from dlemu.mlperf.audit.figures._audit_axes import kind_colour, label_axis, plot_width
from dlemu.mlperf.audit.page import Audit
from dlemu.report.figure_base import INK, MUTED, Canvas, Figure, Row, data, percent_domain, rounded

ORDER = 20
_MOST_SYSTEMS = 160  # rows of 11 pixels; of more systems those with the lowest AU are drawn
_ROW_PIXELS = 11


def draw(audit: Audit, canvas: Canvas) -> Figure | None:
    rows = [row for name, runs in audit.systems if (row := _row(name, runs))]
    if not rows:
        return None
    shown = sorted(rows, key=lambda row: row["printed"])[:_MOST_SYSTEMS]
    order = [row["system"] for row in reversed(shown)]
    levels = [value for row in shown for value in (row["low"], row["rules"], row["pass"]) if value is not None]
    x = alt.Scale(domain=percent_domain(levels), nice=False)
    y = alt.Y("system:N", sort=order, title=None, axis=label_axis(canvas, order))
    base = alt.Chart(data(shown)).encode(y=y)
    places = {name: alt.X(f"{name}:Q", title="AU, %", scale=x) for name in ("low", "printed", "rules", "pass")}
    known = base.transform_filter("datum.rules !== null")
    chart = alt.layer(
        known.mark_rule(color=MUTED, opacity=0.5).encode(x=places["rules"], x2="printed:Q"),
        base.mark_tick(color=MUTED, thickness=1, size=_ROW_PIXELS).encode(x=places["pass"]),
        base.mark_rule(strokeWidth=3).encode(x=places["low"], x2="high:Q", color=kind_colour(audit, canvas)),
        known.mark_point(size=22, color=INK, strokeWidth=1, opacity=1).encode(x=places["rules"]),
        base.mark_point(filled=True, size=30, opacity=1).encode(x=places["printed"], color=kind_colour(audit, canvas)),
    )
    says = (
        "Full points: the mean of a system's runs as printed, with their range. Hollow points: their mean AU by the "
        "formula in the rules' text, which counts every step. Small ticks: where a run passes."
    )
    if len(shown) < len(rows):
        says += f" The {len(shown)} of {len(rows)} systems with the lowest AU."
    height = max(60, _ROW_PIXELS * len(shown))
    return Figure("AU of each system", says, chart.properties(width=plot_width(canvas), height=height))


def _row(name: str, runs: Sequence[PlacedRun]) -> Row | None:
    printed = [run.au_printed_percent for run in runs if run.au_printed_percent is not None]
    if not printed:
        return None
    rules = [run.whole_percent for run in runs if run.whole_percent is not None]
    mean, low, high = rounded([sum(printed) / len(printed), min(printed), max(printed)])
    return {
        "system": name,
        "kind": runs[0].kind,
        "printed": mean,
        "low": low,
        "high": high,
        "rules": rounded([sum(rules) / len(rules)])[0] if rules else None,
        "pass": runs[0].au_threshold_percent,
    }

"""AU against accelerators, with the pass line and the ceiling (the emulator's AU on this host without storage)."""

from __future__ import annotations

import altair as alt

from dlemu.report.figure_base import (
    GREEN,
    PURPLE,
    Canvas,
    Figure,
    data,
    percent_domain,
    rule,
)
from dlemu.report.series import RunSeries
from dlemu.studies.series.figures._lines import bars, lines, metric_rows, x_axis

ORDER = 10


MOST_LINES = 3
"""With more lines than this, the title has no room for how many accelerators pass on each."""


def draw(series: RunSeries, canvas: Canvas) -> Figure | None:
    if series.catalogue.judged != "au_percent" or not (marks := metric_rows(series, series.judged)):
        return None
    metric = series.catalogue[series.judged]
    ceilings = metric_rows(series, "ceiling_au_percent")
    passing = [] if series.threshold_percent is None else [series.threshold_percent]
    domain = percent_domain([row["low"] for row in marks] + [row["value"] for row in ceilings] + passing)
    scale = alt.Scale(domain=domain, nice=False, clamp=True)
    y, level = (alt.Y(field, title=metric.label, scale=scale) for field in ("value:Q", "level:Q"))
    # AU falls to the right, so the label has room on the left.
    layers = [rule(value, f"pass {value:g} %", GREEN, level, left=True) for value in passing]
    if ceilings:
        dots = alt.Chart(data(ceilings)).mark_line(color=PURPLE, strokeDash=[2, 3], strokeWidth=1.4)
        layers.append(alt.layer(dots.encode(x=x_axis(series), y=y, detail=alt.Detail("line:N"))))
    layers.append(bars(series, marks, metric.label, scale, canvas))
    chart = alt.layer(*layers, lines(series, marks, y, canvas))
    caption = "Filled points passed, hollow ones did not."
    if any(row["low"] != row["high"] for row in marks):
        caption += " Bars are intervals: 95 % over the epochs of a run, or those of a search."
    if ceilings:
        caption += " Dotted: the emulator's own ceiling, its AU on this host without any storage."
    title = f"{metric.title[0].upper()}{metric.title[1:]} against {series.axis}{_found(series)}"
    return Figure(title, caption, chart.properties(width=canvas.width, height=260))


def _found(series: RunSeries) -> str:
    """Return the finding for the title: how many pass on each line; empty where a larger count passes than fails."""
    names = list(dict.fromkeys(map(series.line, series.points)))
    if series.axis != series.counted or len(names) > MOST_LINES:
        return ""
    found = []
    for name in names:
        passed, others = (
            [
                point.ranks
                for point in series.points
                if series.line(point) == name and bool(point.figures.passed) is passes
            ]
            for passes in (True, False)
        )
        if passed and others and max(passed) > min(others):
            return ""
        most = f"{max(passed)} pass" if passed else "none passes"
        below = f", {min(others)} do not" if passed and others else ""
        found.append(f"{most}{below}" + f" ({name})" * (len(names) > 1))
    return ": " + "; ".join(found)

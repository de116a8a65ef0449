"""The main metrics except the judged one (AU of training) over whatever was varied, a panel each."""

from __future__ import annotations

import altair as alt

from dlemu.metrics.catalogue import Metric
from dlemu.report.figure_base import Canvas, Figure
from dlemu.report.series import RunSeries
from dlemu.studies.series.figures._lines import bars, lines, metric_rows

ORDER = 30


def draw(series: RunSeries, canvas: Canvas) -> Figure | None:
    catalogue = series.catalogue
    shown = [metric for metric in catalogue.drawn if metric.name != catalogue.judged]
    panels = [panel for metric in shown if (panel := _panel(series, metric, canvas))]
    if not panels:
        return None
    chart = alt.concat(*panels, columns=1 if canvas.narrow else 2)
    caption = f"{catalogue.note} Vertical lines are 95 % intervals over {catalogue.repetition}s."
    return Figure(f"Metrics against {series.axis}", caption.strip(), chart)


def _panel(series: RunSeries, metric: Metric, canvas: Canvas) -> alt.LayerChart | None:
    marks = metric_rows(series, metric.name)
    if not marks:
        return None
    scale = alt.Scale(domainMin=0, clamp=True)
    y = alt.Y("value:Q", title=metric.label, scale=scale)
    width = canvas.width if canvas.narrow else (canvas.width - 70) // 2
    layers = bars(series, marks, metric.label, scale, canvas), lines(series, marks, y, canvas)
    return alt.layer(*layers).properties(width=width, height=170)

"""The main metrics of both sides; for training, the six by which KIOXIA's white paper compares drives."""

from __future__ import annotations

import math
from functools import partial

from dlemu.metrics.catalogue import Metric
from dlemu.report.figure_base import Canvas, Figure
from dlemu.report.panels import Panel, bars, grid
from dlemu.studies.compare.figures._sides import lines
from dlemu.studies.compare.page import OpenedComparison

ORDER = 20


def draw(comparison: OpenedComparison, canvas: Canvas) -> Figure | None:
    catalogue = comparison.catalogue
    single = all(len(side.runs) == 1 for side in comparison.answer.sides)
    panel = _bars if single else _lines
    judged = comparison.series.judged
    shown = [catalogue[judged] if metric.name == catalogue.judged else metric for metric in catalogue.drawn]
    panels = [panel(comparison, metric, canvas) for metric in shown]
    chart = grid(panels, canvas, 3 if single and not canvas.narrow else 1 if canvas.narrow and not single else 2)
    if chart is None:
        return None
    said = [catalogue.note]
    if single:
        said.append("Thin lines: 95 % intervals.")
    if catalogue.judged:
        said.append("Dashed: the pass line." if single else "Filled points passed, hollow ones did not.")
    return Figure("The figures side by side", " ".join(filter(None, said)), chart)


def _lines(comparison: OpenedComparison, metric: Metric, canvas: Canvas) -> Panel:
    return partial(
        lines,
        comparison=comparison,
        value=lambda point: point.figures.mean(metric.name),
        title=metric.label,
        canvas=canvas,
        most=_maximum(metric),
    )


def _bars(comparison: OpenedComparison, metric: Metric, canvas: Canvas) -> Panel:
    return partial(
        bars,
        names=comparison.names,
        values=[side.runs[0].figures.metrics.get(metric.name) for side in comparison.answer.sides],
        title=metric.label,
        canvas=canvas,
        level=comparison.series.threshold_percent if metric.name == comparison.series.judged else None,
        maximum=_maximum(metric),
    )


def _maximum(metric: Metric) -> float:
    return 100.0 if metric.unit == "%" else math.inf

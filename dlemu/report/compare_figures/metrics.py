"""The six figures by which the KIOXIA CM7 white paper on DLIO compares two drives, side by side."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from dlemu.report.compare_figures._sides import Panel, bars, grid, lines
from dlemu.report.comparison_report import OpenedComparison
from dlemu.report.figures.figure_base import Canvas, Figure
from dlemu.report.series import Point

ORDER = 20
_SHOWN: dict[str, tuple[str, Callable[[Point], float | None]]] = {
    "total_seconds": ("total time, s", lambda point: point.total_seconds),
    "au_percent": ("AU, %", lambda point: point.au_percent),
    "samples_per_second": ("samples/s", lambda point: point.samples_per_second),
    "device_mb_per_second": ("mean device MB/s", lambda point: point.device_mb_per_second),
    "max_device_mb_per_second": ("largest device MB/s", lambda point: point.max_device_mb_per_second),
    "mean_device_read_latency_ms": ("device read latency, ms", lambda point: point.mean_device_read_latency_ms),
}


def draw(comparison: OpenedComparison, canvas: Canvas) -> Figure | None:
    single = all(len(side.counts) == 1 for side in comparison.answer.sides)
    panels = [_bars(comparison, metric, canvas) if single else _lines(comparison, metric, canvas) for metric in _SHOWN]
    chart = grid(panels, canvas, 3 if single and not canvas.narrow else 1 if canvas.narrow and not single else 2)
    if chart is None:
        return None
    says = "Of whole runs; device figures are those of the devices behind the dataset, by the kernel's counters."
    marks = (
        "Thin lines: 95 % intervals. Dashed: the pass line." if single else "Full points passed, hollow ones did not."
    )
    return Figure("The figures side by side", f"{says} {marks}", chart)


def _lines(comparison: OpenedComparison, metric: str, canvas: Canvas) -> Panel:
    title, value = _SHOWN[metric]
    return partial(lines, comparison=comparison, value=value, title=title, canvas=canvas, most=_most(metric))


def _bars(comparison: OpenedComparison, metric: str, canvas: Canvas) -> Panel:
    values = [side.counts[0].metrics.get(metric) for side in comparison.answer.sides]
    level = comparison.series.threshold_percent if metric == "au_percent" else None
    title = _SHOWN[metric][0]
    return partial(
        bars,
        names=comparison.names,
        values=values,
        title=title,
        canvas=canvas,
        level=level,
        most=_most(metric),
    )


def _most(metric: str) -> float:
    return 100.0 if metric == "au_percent" else math.inf

"""Both sides' AU against accelerators, with the pass line."""

from __future__ import annotations

from dlemu.report.comparison import Comparison
from dlemu.report.figures.base import Canvas, Figure
from dlemu.report.series_figures import au_by_count

PLACE = 10


def draw(comparison: Comparison, canvas: Canvas) -> Figure | None:
    series = comparison.series
    if len({series.place(point) for point in series.points}) < 2:
        return None  # a single place: its AU stands among the metrics
    return au_by_count.draw(series, canvas)

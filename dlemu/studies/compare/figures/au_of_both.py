"""Both sides' sustained AU against accelerators, with the pass line."""

from __future__ import annotations

from dlemu.report.figure_base import Canvas, Figure
from dlemu.studies.compare.page import OpenedComparison
from dlemu.studies.series.figures import au_by_count

ORDER = 10


def draw(comparison: OpenedComparison, canvas: Canvas) -> Figure | None:
    series = comparison.series
    if len({series.position(point) for point in series.points}) < 2:
        return None  # a single x position: the figure of the metrics shows its AU
    return au_by_count.draw(series, canvas)

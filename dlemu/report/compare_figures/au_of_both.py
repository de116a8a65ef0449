"""Both sides' AU against accelerators, with the pass line."""

from __future__ import annotations

from dataclasses import replace

from dlemu.report.comparison_report import OpenedComparison
from dlemu.report.figures.figure_base import Canvas, Figure
from dlemu.report.series_figures import au_by_count

ORDER = 10


def draw(comparison: OpenedComparison, canvas: Canvas) -> Figure | None:
    series = comparison.series
    if len({series.position(point) for point in series.points}) < 2:
        return None  # a single place: its AU stands among the metrics
    figure = au_by_count.draw(series, canvas)
    says = (
        "Full points passed, hollow ones did not. Bars are intervals: 95 % over the epochs of a run, or those of a "
        "search. Dotted: the emulator's own ceiling."
    )
    return None if figure is None else replace(figure, says=says)

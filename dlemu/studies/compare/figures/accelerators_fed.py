"""How many accelerators each storage feeds, and how fast."""

from __future__ import annotations

from functools import partial

from dlemu.report.figure_base import Canvas, Figure
from dlemu.report.panels import bars, grid
from dlemu.report.units import at
from dlemu.results.figures import Value
from dlemu.studies.answers import ComparedSide
from dlemu.studies.compare.page import OpenedComparison

ORDER = 50
_SHOWN = {
    "accelerators_fed": "accelerators fed",
    "gb_per_second": "GB/s that they read",
}


def draw(comparison: OpenedComparison, canvas: Canvas) -> Figure | None:
    if not comparison.catalogue.feeds_accelerators:
        return None
    sides = comparison.answer.sides
    panels = [
        partial(bars, names=comparison.names, values=[_value(side, key) for side in sides], title=title, canvas=canvas)
        for key, title in _SHOWN.items()
    ]
    chart = grid(panels, canvas, 2)
    if chart is None:
        return None
    caption = "Accelerators fed: the answer of a search, or the largest count that passed. GB/s is what they read."
    return Figure("Accelerators fed", caption, chart)


def _value(side: ComparedSide, field: str) -> Value | None:
    amount: float | None = at(side, field)
    return None if amount is None else Value(amount, None)

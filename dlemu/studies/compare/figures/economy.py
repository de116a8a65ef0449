"""What each storage feeds, and what that takes in money and power."""

from __future__ import annotations

from functools import partial

from dlemu.report.figure_base import Canvas, Figure
from dlemu.report.panels import bars, grid
from dlemu.report.units import at
from dlemu.results.figures import Value
from dlemu.studies.answers import Economy
from dlemu.studies.compare.page import OpenedComparison

ORDER = 50
_SHOWN = {
    "accelerators_fed": "accelerators fed",
    "gb_per_second": "GB/s to them",
    "cost_per_accelerator": "price for each one fed",
    "gb_per_second_per_watt": "GB/s per watt",
    "watts_per_accelerator": "watts for each one fed",
    "cost_over_years_per_accelerator": "price and energy for each one",
}


def draw(comparison: OpenedComparison, canvas: Canvas) -> Figure | None:
    sides = comparison.answer.economy
    if sides is None:
        return None
    panels = [
        partial(bars, names=comparison.names, values=[_value(side, key) for side in sides], title=title, canvas=canvas)
        for key, title in _SHOWN.items()
    ]
    chart = grid(panels, canvas, 2 if canvas.narrow else 4)
    if chart is None:
        return None
    caption = "Accelerators fed: the answer of a search, or the largest count that passed. GB/s is what these read."
    if any(side.cost_per_accelerator is not None for side in sides):
        caption += " Prices are as given with --price, in their currency."
    if any(side.gb_per_second_per_watt is not None for side in sides):
        caption += " Watts are as given with --watts."
    return Figure("What each feeds, and what that takes", caption, chart)


def _value(side: Economy, field: str) -> Value | None:
    amount: float | None = at(side, field)
    return None if amount is None else Value(amount, None)

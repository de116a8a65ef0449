"""How many accelerators each storage feeds, at which price and power."""

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
    "gb_per_second": "GB/s that they read",
    "cost_per_accelerator": "price per accelerator fed",
    "gb_per_second_per_watt": "GB/s per watt",
    "watts_per_accelerator": "watts per accelerator fed",
    "cost_over_years_per_accelerator": "price and energy per accelerator",
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
    caption = "Accelerators fed: the answer of a search, or the largest count that passed. GB/s is what they read."
    if any(side.cost_per_accelerator is not None for side in sides):
        caption += " Prices are as given with --price, in their currency."
    if any(side.gb_per_second_per_watt is not None for side in sides):
        caption += " Watts are as given with --watts."
    return Figure("Accelerators fed, their price and their power", caption, chart)


def _value(side: Economy, field: str) -> Value | None:
    amount: float | None = at(side, field)
    return None if amount is None else Value(amount, None)

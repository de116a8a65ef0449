"""What the difference comes to: the time that 100 epochs take on either side, and the days saved in a year."""

from __future__ import annotations

from functools import partial
from typing import Any

from dlemu.report.compare_figures._sides import Panel, Value, bars, grid, lines, over_pairs
from dlemu.report.comparison import Comparison
from dlemu.report.figures.figure_base import Canvas, Figure
from dlemu.report.series import Point
from dlemu.report.units import at
from dlemu.sizing.compare_sides import PLANNED_EPOCHS

PLACE = 40


def draw(comparison: Comparison, canvas: Canvas) -> Figure | None:
    runs = [run for run in comparison.found["runs"] if run["plan"]]
    single = len(comparison.found["runs"]) == 1
    panels = _pair(comparison, runs[0]["plan"], canvas) if single and runs else _pairs(comparison, runs, canvas)
    chart = grid(panels, canvas, 1 if canvas.narrow and not single else 2)
    if chart is None:
        return None
    says = f"{PLANNED_EPOCHS} epochs at the measured pace, and what that leaves in a year of 8760 hours."
    if not single:
        says += " Days saved: what B trains in a year, A trains in so many days less (below 0: more)."
    return Figure(f"The time of {PLANNED_EPOCHS} epochs, and a year", says, chart)


def _pair(comparison: Comparison, plan: dict[str, Any], canvas: Canvas) -> list[Panel]:
    shown = {f"hours for {PLANNED_EPOCHS} epochs": "hours_per_model", "models a year": "models_per_year"}
    return [
        partial(bars, comparison=comparison, values=[Value(one) for one in plan[key]], title=title, canvas=canvas)
        for title, key in shown.items()
    ]


def _pairs(comparison: Comparison, runs: list[dict[str, Any]], canvas: Canvas) -> list[Panel]:
    hours = {
        (name, _key(run["settings"])): run["plan"]["hours_per_model"][side]
        for run in runs
        for side, name in enumerate(comparison.names)
    }

    def of(point: Point) -> float | None:
        return hours.get((point.line, _key(point.settings)))

    def saved(run: dict[str, Any]) -> Value:
        return Value(at(run, "plan.days_saved_per_year"))

    title = f"hours for {PLANNED_EPOCHS} epochs"
    return [
        partial(lines, comparison=comparison, value=of, title=title, canvas=canvas),
        partial(over_pairs, comparison=comparison, value=saved, title="days saved a year", canvas=canvas),
    ]


def _key(settings: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(settings.items()))

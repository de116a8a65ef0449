"""What the difference means in practice: the time of 100 epochs on either side, and the days saved in a year."""

from __future__ import annotations

from functools import partial

from dlemu.report.figure_base import Canvas, Figure
from dlemu.report.panels import Panel, bars, grid
from dlemu.report.series import Point
from dlemu.results.figures import Value
from dlemu.studies.answers import RunPair, YearPlan
from dlemu.studies.compare.compare_sides import PLANNED_EPOCHS
from dlemu.studies.compare.figures._sides import lines, over_pairs
from dlemu.studies.compare.page import OpenedComparison

ORDER = 40


def draw(comparison: OpenedComparison, canvas: Canvas) -> Figure | None:
    pairs = comparison.answer.runs
    single = len(pairs) == 1
    plan = pairs[0].plan if single else None
    panels = _pair(comparison, plan, canvas) if plan else _pairs(comparison, canvas)
    chart = grid(panels, canvas, 1 if canvas.narrow and not single else 2)
    if chart is None:
        return None
    caption = f"{PLANNED_EPOCHS} epochs at the measured pace, and how often they fit into a year of 8760 hours."
    if not single:
        caption += " Days saved: how many days less A takes for what B trains in a year (below 0: more)."
    return Figure(f"The time of {PLANNED_EPOCHS} epochs, and a year", caption, chart)


def _pair(comparison: OpenedComparison, plan: YearPlan, canvas: Canvas) -> list[Panel]:
    shown = {f"hours for {PLANNED_EPOCHS} epochs": plan.hours_per_model, "models per year": plan.models_per_year}
    return [
        partial(bars, names=comparison.names, values=[Value(side, None) for side in both], title=title, canvas=canvas)
        for title, both in shown.items()
    ]


def _pairs(comparison: OpenedComparison, canvas: Canvas) -> list[Panel]:
    hours = {
        (name, _key(pair.settings)): hours_of_side
        for pair in comparison.answer.runs
        if pair.plan
        for name, hours_of_side in zip(comparison.names, pair.plan.hours_per_model, strict=True)
    }

    def of(point: Point) -> float | None:
        return hours.get((point.line, _key(point.settings)))

    def saved(pair: RunPair) -> Value | None:
        return Value(pair.plan.days_saved_per_year, None) if pair.plan else None

    title = f"hours for {PLANNED_EPOCHS} epochs"
    return [
        partial(lines, comparison=comparison, value=of, title=title, canvas=canvas),
        partial(over_pairs, comparison=comparison, value=saved, title="days saved per year", canvas=canvas),
    ]


def _key(settings: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(settings.items()))

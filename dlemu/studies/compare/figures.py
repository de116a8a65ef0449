"""Figures of a comparison: both sides as bars, or as lines over accelerators or whatever else the runs vary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import altair as alt

from dlemu.metrics.catalogue import Catalogue, Metric
from dlemu.report.figure_base import (
    BLUE,
    COLOURS,
    GREY,
    INK,
    MUTED,
    PADDING,
    PANEL_HEIGHT,
    Canvas,
    Figure,
    Panel,
    Row,
    bars,
    colours,
    data,
    grid,
    legend,
    side_colour,
)
from dlemu.report.series import Point, RunSeries
from dlemu.report.units import side_names
from dlemu.results.compared import Difference
from dlemu.results.figures import JobFigures, Value
from dlemu.results.kinds import catalogue_of
from dlemu.studies.answers import Comparison, RunPair, YearPlan
from dlemu.studies.compare.compare_sides import PLANNED_EPOCHS
from dlemu.studies.series.figures import au_by_count, in_order, x_axis


@dataclass(frozen=True)
class OpenedComparison:
    """A comparison with the folder it is in."""

    folder: str
    answer: Comparison

    @cached_property
    def names(self) -> tuple[str, str]:
        """The names of the sides in figures."""
        return side_names(self.answer.a, self.answer.b)

    @cached_property
    def series(self) -> RunSeries:
        """Both sides as lines over accelerators, or over whatever else was varied."""
        sides = zip(self.names, self.answer.sides, strict=True)
        points = (
            Point(line=name, settings=tried.settings, figures=tried.figures)
            for name, side in sides
            for tried in side.runs
        )
        return RunSeries(self.folder, tuple(points))

    @property
    def catalogue(self) -> Catalogue:
        """The metrics of the kind of job compared."""
        return catalogue_of(self.answer.kind)


def figures(comparison: OpenedComparison, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    """Yield name and figure of what both sides show, in the order of the page."""
    for draw in (au_of_both, metrics, times_of_both, metric_differences, year_plan, accelerators_fed):
        figure = draw(comparison, canvas)
        if figure is not None:
            yield draw.__name__, figure


def au_of_both(comparison: OpenedComparison, canvas: Canvas) -> Figure | None:
    """Both sides' AU against accelerators, with the pass line."""
    series = comparison.series
    if len({series.position(point) for point in series.points}) < 2:
        return None  # a single x position: the figure of the metrics shows its AU
    return au_by_count(series, canvas)


def metrics(comparison: OpenedComparison, canvas: Canvas) -> Figure | None:
    """The main metrics of both sides; for training, the six by which KIOXIA's white paper compares drives."""
    catalogue, judged = comparison.catalogue, comparison.series.judged
    single = all(len(side.runs) == 1 for side in comparison.answer.sides)
    panel = _metric_bars if single else _metric_lines
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


def _metric_lines(comparison: OpenedComparison, metric: Metric, canvas: Canvas) -> Panel:
    return partial(
        _lines,
        comparison=comparison,
        value=lambda point: point.figures.mean(metric.name),
        title=metric.label,
        canvas=canvas,
        most=_maximum(metric),
    )


def _metric_bars(comparison: OpenedComparison, metric: Metric, canvas: Canvas) -> Panel:
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


def times_of_both(comparison: OpenedComparison, canvas: Canvas) -> Figure | None:
    """How long each repetition of a phase took on either side, to see drift and slow outliers."""
    if any(len(side.runs) != 1 for side in comparison.answer.sides):
        return None
    known = {metric.label: rows for metric in comparison.catalogue.times if (rows := _time_rows(comparison, metric))}
    if not known or max(row["at"] for rows in known.values() for row in rows) < 2:
        return None
    repetition = comparison.catalogue.repetition
    width = canvas.width if canvas.narrow or len(known) == 1 else (canvas.width - 62) // 2
    hue = alt.Color("line:N", scale=colours(comparison.names), legend=legend(canvas, 1 if canvas.narrow else 2))
    panels = []
    for title, rows in known.items():
        most = max(row["at"] for row in rows)
        axis = alt.Axis(grid=False, format="d", values=list(range(1, most + 1, max(1, most // 10))))
        base = alt.Chart(data(rows)).encode(
            x=alt.X("at:Q", title=f"{repetition}, in order", axis=axis),
            y=alt.Y("value:Q", title=title, scale=alt.Scale(domainMin=0)),
            color=hue,
        )
        layers = base.mark_line(strokeWidth=1.6), base.mark_point(filled=True, size=40, opacity=1)
        panels.append(alt.layer(*layers).properties(width=width, height=170))
    chart = alt.concat(*panels, columns=1 if canvas.narrow else 2, spacing=24)
    return Figure(f"Time of each {repetition}", "Time of the slowest rank, for which the others wait.", chart)


def _time_rows(comparison: OpenedComparison, metric: Metric) -> list[Row]:
    return [
        {"line": name, "at": place, "value": float(f"{seconds:.4g}")}
        for name, side in zip(comparison.names, comparison.answer.sides, strict=True)
        if (value := side.runs[0].figures.metrics.get(metric.name)) is not None
        for place, seconds in enumerate(value.each, start=1)
    ]


def metric_differences(comparison: OpenedComparison, canvas: Canvas) -> Figure | None:
    """How much more or less A is than B, metric by metric, with the uncertainty of the difference."""
    runs, catalogue = comparison.answer.runs, comparison.catalogue
    if len(runs) == 1:
        chart: alt.LayerChart | alt.ConcatChart | None = _differences(runs[0], catalogue, canvas)
    else:
        panels = [_difference_panel(comparison, metric, canvas) for metric in catalogue.drawn]
        chart = grid(panels, canvas, 1 if canvas.narrow else 2)
    if chart is None:
        return None
    caption = (
        f"100 x (A / B - 1) %: below 0 A has less. Lines are 95 % intervals over {catalogue.repetition}s; where one "
        "reaches 0, no difference is shown."
    )
    return Figure("A relative to B", caption, chart)


def _differences(pair: RunPair, catalogue: Catalogue, canvas: Canvas) -> alt.LayerChart | None:
    known = ((metric, pair.metrics.get(metric.name)) for metric in catalogue)
    rows = [row for metric, difference in known if difference and (row := _difference_row(metric, difference))]
    if not rows:
        return None
    x = alt.X("percent:Q", title="A to B, %", scale=alt.Scale(zero=True, padding=34), axis=alt.Axis(tickCount=6))
    names = alt.Axis(labelLimit=190, labelFontSize=9 if canvas.narrow else 11, ticks=False, domain=False)
    y = alt.Y("metric:N", sort=[row["metric"] for row in rows], title=None, axis=names)
    hue = alt.ColorValue(GREY, condition={"test": "datum.distinct", "value": BLUE})
    base = alt.Chart(data(rows)).encode(y=y)
    whiskers = base.transform_filter("datum.high > datum.low").mark_rule(strokeWidth=1.6)
    layers = (
        alt.Chart(data([{"zero": 0}])).mark_rule(color=MUTED, strokeWidth=1.2).encode(x=alt.X("zero:Q")),
        whiskers.encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"), color=hue),
        base.mark_point(filled=True, size=60, opacity=1).encode(x=x, color=hue),
        base.mark_text(baseline="bottom", dy=-5, color=INK, fontSize=11).encode(x=x, text=alt.Text("text:N")),
    )
    return alt.layer(*layers).properties(width=canvas.width - 150, height=34 * len(rows), padding=PADDING)


def _difference_row(metric: Metric, difference: Difference) -> Row | None:
    percent, half = difference.difference_percent, difference.half_width_percent or 0.0
    if percent is None:
        return None
    point = {"metric": metric.title, "percent": percent, "text": f"{percent:+.1f} %"}
    return point | {"low": percent - half, "high": percent + half, "distinct": difference.distinct is not False}


def _difference_panel(comparison: OpenedComparison, metric: Metric, canvas: Canvas) -> Panel:
    def value(pair: RunPair) -> Value | None:
        both = pair.metrics.get(metric.name)
        if both is None or both.difference_percent is None:
            return None
        return Value(both.difference_percent, both.half_width_percent)

    return partial(_over_pairs, comparison=comparison, value=value, title=f"{metric.title}, %", canvas=canvas)


def year_plan(comparison: OpenedComparison, canvas: Canvas) -> Figure | None:
    """What the difference means in practice: the time of 100 epochs on either side, and the days saved in a year."""
    pairs = comparison.answer.runs
    single = len(pairs) == 1
    plan = pairs[0].plan if single else None
    panels = _plan_bars(comparison, plan, canvas) if plan else _plan_lines(comparison, canvas)
    chart = grid(panels, canvas, 1 if canvas.narrow and not single else 2)
    if chart is None:
        return None
    caption = f"{PLANNED_EPOCHS} epochs at the measured pace, and how often they fit into a year of 8760 hours."
    if not single:
        caption += " Days saved: how many days less A takes for what B trains in a year (below 0: more)."
    return Figure(f"The time of {PLANNED_EPOCHS} epochs, and a year", caption, chart)


def _plan_bars(comparison: OpenedComparison, plan: YearPlan, canvas: Canvas) -> list[Panel]:
    shown = {f"hours for {PLANNED_EPOCHS} epochs": plan.hours_per_model, "models per year": plan.models_per_year}
    return [
        partial(bars, names=comparison.names, values=[*map(Value, both)], title=title, canvas=canvas)
        for title, both in shown.items()
    ]


def _plan_lines(comparison: OpenedComparison, canvas: Canvas) -> list[Panel]:
    hours = {
        (name, frozenset(pair.settings.items())): hours_of_side
        for pair in comparison.answer.runs
        if pair.plan
        for name, hours_of_side in zip(comparison.names, pair.plan.hours_per_model, strict=True)
    }

    def of(point: Point) -> float | None:
        return hours.get((point.line, frozenset(point.settings.items())))

    def saved(pair: RunPair) -> Value | None:
        return Value(pair.plan.days_saved_per_year) if pair.plan else None

    title = f"hours for {PLANNED_EPOCHS} epochs"
    return [
        partial(_lines, comparison=comparison, value=of, title=title, canvas=canvas),
        partial(_over_pairs, comparison=comparison, value=saved, title="days saved per year", canvas=canvas),
    ]


def accelerators_fed(comparison: OpenedComparison, canvas: Canvas) -> Figure | None:
    """How many accelerators each storage feeds, and how fast."""
    if not comparison.catalogue.feeds_accelerators:
        return None
    a, b = comparison.answer.sides
    shown = {
        "accelerators fed": (a.accelerators_fed, b.accelerators_fed),
        "GB/s that they read": (a.gb_per_second, b.gb_per_second),
    }
    panels = [
        partial(
            bars,
            names=comparison.names,
            values=[None if amount is None else Value(amount) for amount in both],
            title=title,
            canvas=canvas,
        )
        for title, both in shown.items()
    ]
    chart = grid(panels, canvas, 2)
    if chart is None:
        return None
    caption = "Accelerators fed: the answer of a search, or the largest count that passed. GB/s is what they read."
    same = a.scaled if a.scaled == b.scaled else ""
    return Figure(f"Accelerators{same} fed", caption, chart)


def _lines(
    width: int,
    comparison: OpenedComparison,
    value: Callable[[Point], float | None],
    title: str,
    canvas: Canvas,
    *,
    most: float = math.inf,
) -> alt.LayerChart | None:
    """Draw one line per side over accelerators, or over what was varied; None when no value is known.

    Points of runs that passed are filled. The y axis ends at `most`, where it is finite.
    """
    series = comparison.series
    rows: list[Row] = [
        {
            "line": series.line(point),
            "at": series.position(point),
            "value": known,
            "passed": point.figures.passed is True or not series.catalogue.judged,
        }
        for point in series.points
        if (known := value(point)) is not None
    ]
    if not rows:
        return None
    names = sorted({series.line(point) for point in series.points})
    scale = alt.Scale(domain=[0, most]) if math.isfinite(most) else alt.Scale(domainMin=0)
    y = alt.Y("value:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5))
    base = alt.Chart(data(in_order(rows))).encode(x=x_axis(series), y=y, color=side_colour(names, canvas))
    hollow = base.transform_filter("!datum.passed").mark_point(size=45, opacity=1, strokeWidth=1.6)
    full = base.transform_filter("datum.passed").mark_point(size=45, opacity=1, filled=True)
    return alt.layer(base.mark_line(strokeWidth=1.6), full, hollow).properties(width=width, height=PANEL_HEIGHT)


def _over_pairs(
    width: int, comparison: OpenedComparison, value: Callable[[RunPair], Value | None], title: str, canvas: Canvas
) -> alt.LayerChart | None:
    """Draw a value of each pair, with its interval, relative to a line at 0; None when no value is known."""
    kind, runs = comparison.answer.kind, comparison.answer.runs
    points = [  # as a series, which knows the line and the x position of each
        Point(line="A to B", settings=pair.settings, figures=JobFigures(kind=kind, workload="", ranks=pair.ranks[0]))
        for pair in runs
    ]
    pairs = RunSeries(comparison.folder, tuple(points))
    rows: list[Row] = []
    for point, pair in zip(pairs.points, runs, strict=True):
        known = value(pair)
        if known is not None:
            half = known.half_width or 0.0
            mark = {"line": pairs.line(point), "at": pairs.position(point), "value": known.mean}
            rows.append(mark | {"low": known.mean - half, "high": known.mean + half})
    if not rows:
        return None
    names = sorted({row["line"] for row in rows})
    hue = side_colour(names, canvas) if len(names) > 1 else alt.ColorValue(COLOURS[3])
    base = alt.Chart(data(in_order(rows))).encode(x=x_axis(pairs), color=hue)
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5))
    zero = alt.Chart(data([{"zero": 0}])).mark_rule(color=MUTED, strokeWidth=1.2).encode(y=alt.Y("zero:Q"))
    whiskers = base.transform_filter("datum.high > datum.low").mark_rule().encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
    layers = zero, whiskers, base.mark_line().encode(y=y), base.mark_point(filled=True, size=45, opacity=1).encode(y=y)
    return alt.layer(*layers).properties(width=width, height=PANEL_HEIGHT)

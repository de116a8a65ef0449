"""The figure of studies: what was measured against what was varied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile

import altair as alt

from dlemu.metrics.catalogue import Catalogue, Metric
from dlemu.metrics.t_interval import percent_interval
from dlemu.report.figure_base import Figure, Level, Row, colours, data, lines, percent_domain
from dlemu.report.units import short_names, verdict_word
from dlemu.results.figures import JobFigures, difference
from dlemu.results.kinds import catalogue_of
from dlemu.results.wording import scaled

_PANELS = 2
_MOST_IN_TITLE = 3
_CEILING = "ceiling_au_percent"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run, or all trials with one number of accelerators."""

    name: str
    """Of its line, apart from settings: workload and accelerator, or the side of a comparison."""
    settings: Mapping[str, str] = field(default_factory=dict)
    figures: JobFigures


@dataclass(frozen=True)
class Series:
    """Points of one kind of job; at least one."""

    points: tuple[Point, ...]

    @cached_property
    def catalogue(self) -> Catalogue:
        """The metrics of the runs; raises UserError if their kind of job is not installed."""
        return catalogue_of(self.points[0].figures.kind)

    @cached_property
    def _varied(self) -> dict[str, dict[str, str]]:
        """Setting that varies -> value -> what is shown of it: of paths, the part in which they differ."""
        keys = dict.fromkeys(key for point in self.points for key in point.settings)
        values = {key: {point.settings.get(key, "") for point in self.points} for key in keys}
        return {key: short_names(sorted(known)) for key, known in values.items() if len(known) > 1}

    @cached_property
    def axis(self) -> str:
        """The x axis: the ranks if their number varies, else the first setting with several values."""
        ranks, counts = f"{self.catalogue.rank}s", {point.figures.ranks for point in self.points}
        return ranks if len(counts) > 1 else next(iter(self._varied), ranks)

    @cached_property
    def positions(self) -> list[float | str]:
        """The value of each point on the x axis: numbers if all values are numbers."""
        if self.axis not in self._varied:
            return [point.figures.ranks for point in self.points]
        values = [point.settings.get(self.axis, "") for point in self.points]
        try:
            return [float(value) for value in values]
        except ValueError:
            return [self._varied[self.axis][value] for value in values]

    @cached_property
    def lines(self) -> list[str]:
        """The name of the line that each point is on, with the settings that differ between lines."""
        several, found = len({point.name for point in self.points}) > 1, []
        varied = {key: short for key, short in self._varied.items() if key not in (self.axis, "ranks")}
        for point in self.points:
            named = [f"{key.rpartition('.')[2]}={short[point.settings.get(key, '')]}" for key, short in varied.items()]
            found.append(", ".join([point.name, *named] if several or not named else named))
        return found

    @property
    def judged(self) -> str:
        """The metric to draw beside the threshold: the one that decides, where all points have it."""
        names = (self.catalogue.decisive, self.catalogue.judged, self.catalogue.fallback)
        everywhere = (name for name in names if all(name in point.figures.metrics for point in self.points))
        return next(everywhere, self.catalogue.judged)

    @property
    def threshold(self) -> float | None:
        """The value of the judged metric at which a run passes; None where that is not known."""
        if self.judged == self.catalogue.fallback:
            return None
        known = (point.figures.threshold_percent for point in self.points)
        return next((value for value in known if value is not None), None)

    @property
    def shown(self) -> list[Metric]:
        """The judged metric, and the main rates."""
        judged, rest = self.judged, (metric for metric in self.catalogue.drawn if metric.better == "higher")
        shown = [self.catalogue[judged]] if judged else []
        return [*shown, *(metric for metric in rest if metric.name != self.catalogue.judged)]


def charts(points: Iterable[Point]) -> Iterator[tuple[str, Figure]]:
    """Yield the figure of a study's points, if there are any, with its name.

    The judged metric (AU, with pass line and ceiling), else the main rates, against accelerators, or what was varied;
    where nothing was, each line's value, beside its repetitions.
    """
    series = Series(tuple(points))
    shown = [metric for metric in series.shown if _rows(series, metric.name)] if series.points else []
    if not shown:
        return
    is_alone = len(set(series.positions)) == 1
    if is_alone and len(series.points) > 1:  # what a comparison's verdict is about
        shown = [metric for metric in series.catalogue.times if _rows(series, metric.name)] or shown
    panels = shown[:_PANELS] if is_alone or not series.judged else shown[:1]
    caption = "Lines through points are 95 % intervals."
    if series.catalogue.judged:
        caption = f"Filled points passed, hollow ones did not. {caption}"
    if _rows(series, _CEILING) and not is_alone:
        caption += " Dotted: the emulator's own ceiling, its AU on this host without any storage."
    chart = alt.vconcat(*(_panel(series, metric, is_alone=is_alone) for metric in panels), spacing=18)
    title = _ahead(series, panels[0]) if is_alone else _up_to(series, panels[0])
    yield "by_count", Figure(title, caption, chart)


def _ahead(series: Series, metric: Metric) -> str:
    """Return which line is the better one for certain, as a title."""
    sign = 1 if metric.better == "lower" else -1
    both = zip(series.lines, series.points, strict=True)
    known = [(line, point.figures.metrics[metric.name]) for line, point in both if metric.name in point.figures.metrics]
    (name, best), *others = sorted(known, key=lambda one: sign * one[1].mean)
    if not others:
        return f"{metric.title} with its interval"
    distinct = difference(best, others[0][1]).distinct
    return f"{name} is ahead in {metric.title}" if distinct else f"No difference in {metric.title} is certain"


def _up_to(series: Series, metric: Metric) -> str:
    """Return up to which count each line passes, as a title; else what is drawn."""
    small = {scaled(point.figures.sample_divisor) for point in series.points}
    of_samples, most = small.pop() if len(small) == 1 else "", {}
    for line in dict.fromkeys(series.lines):
        tried = sorted((at, passed) for at, of, passed in _judged(series) if of == line)
        passing = list(takewhile(lambda one: one[1], tried))
        if passing:
            most[line] = f"{passing[-1][0]:,g}"
    if series.threshold is None or not 0 < len(most) == len(set(series.lines)) < _MOST_IN_TITLE:
        return f"{metric.title} against {series.axis}{of_samples}"
    counts = [f"{count} ({line})" if len(most) > 1 else count for line, count in most.items()]
    return f"AU stays above {series.threshold:g} % up to {' and '.join(counts)} {series.axis}{of_samples}"


def _judged(series: Series) -> Iterator[tuple[float, str, bool]]:
    for at, line, point in zip(series.positions, series.lines, series.points, strict=True):
        if not isinstance(at, str):
            yield at, line, point.figures.passed is True


def _panel(series: Series, metric: Metric, *, is_alone: bool) -> alt.LayerChart:
    """Draw a line for each name against what was varied; where nothing was, a point for each, side by side."""
    rows, is_judged = _rows(series, metric.name), metric.name == series.judged
    levels = [Level(series.threshold, "pass")] if is_judged and series.threshold is not None else []
    ceilings = _rows(series, _CEILING) if is_judged and metric.unit == "%" and not is_alone else []
    ends = [end for row in [*rows, *ceilings] for end in (row["low"], row["high"])] + [level.value for level in levels]
    domain, x, height = [], _x_axis(series), 220
    if metric.unit == "%":
        domain = percent_domain(ends)
    elif is_alone:
        room = 0.2 * (max(ends) - min(ends)) or 0.1 * max(ends)
        domain = [min(ends) - room, max(ends) + room]
    if is_alone:
        x, height = alt.X("line:N", axis=None, sort=None), 120
    chart = lines(rows, x, metric.label, domain=domain, levels=levels, points=True, height=height)
    if not ceilings:
        return chart
    dots = alt.Chart(data(ceilings)).mark_line(strokeDash=[2, 3], strokeWidth=1.4)
    scale = colours(list(dict.fromkeys(row["line"] for row in rows)))
    y = alt.Y("value:Q", title=metric.label)
    return alt.layer(chart, dots.encode(x=x, y=y, color=alt.Color("line:N", scale=scale, legend=None)))


def _rows(series: Series, metric: str) -> list[Row]:
    """Return a row for each point that has the metric, by line and position; jobs that are not judged all "pass"."""
    rows: list[Row] = []
    for point, line, at in zip(series.points, series.lines, series.positions, strict=True):
        known = point.figures.metrics.get(metric)
        if known is None:
            continue
        judged, half = series.catalogue.judged, known.half_width or 0.0
        verdict = verdict_word(point.figures.passed, unknown="open") if judged else "pass"
        row = {"line": line, "at": at, "value": known.mean, "verdict": verdict}
        low, high = known.mean - half, known.mean + half
        if series.catalogue[metric].unit == "%":
            low, high = percent_interval(known.mean, half)
        rows.append(row | {"low": low, "high": high})
    return sorted(rows, key=lambda row: (row["line"], isinstance(row["at"], str), row["at"]))


def _x_axis(series: Series) -> alt.X:
    """Return the x axis: linear for numbers, with ticks at what was tried; names in the order of the points."""
    emulated = series.catalogue.feeds_accelerators and series.axis == f"{series.catalogue.rank}s"
    title = f"emulated {series.axis}" if emulated else series.axis
    numbers = sorted({at for at in series.positions if not isinstance(at, str)})
    if not numbers:
        return alt.X("at:N", title=title, sort=None, axis=alt.Axis(labelAngle=0, labelLimit=130))
    axis = alt.Axis(grid=False, values=numbers, format=",~f", labelOverlap=True)
    return alt.X("at:Q", title=title, axis=axis, scale=alt.Scale(zero=numbers[0] < 0.4 * numbers[-1], padding=12))

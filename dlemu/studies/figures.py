"""The figure of studies: what was measured against what was varied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import altair as alt

from dlemu.metrics.catalogue import Catalogue, Metric
from dlemu.metrics.t_interval import percent_interval
from dlemu.report.figure_base import (
    GREEN,
    GRID,
    PURPLE,
    WIDTH,
    Figure,
    Row,
    colours,
    data,
    legend,
    percent_domain,
    rule,
)
from dlemu.report.units import short_names, verdict_word
from dlemu.results.figures import JobFigures
from dlemu.results.kinds import catalogue_of
from dlemu.results.wording import scaled

_PANELS = 2
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

    The judged metric (AU, with pass line and ceiling) and the main rate against accelerators, or what was varied.
    """
    series = Series(tuple(points))
    shown = series.shown if series.points else []
    panels = [panel for metric in shown if (panel := _panel(series, metric))][:_PANELS]
    if not panels:
        return
    small = {scaled(point.figures.sample_divisor) for point in series.points}
    of_samples = small.pop() if len(small) == 1 else ""
    caption = "Vertical lines are 95 % intervals."
    if series.catalogue.judged:
        caption = f"Filled points passed, hollow ones did not. {caption}"
    if _rows(series, _CEILING):
        caption += " Dotted: the emulator's own ceiling, its AU on this host without any storage."
    chart = alt.concat(*panels, columns=_PANELS, spacing=24)
    yield "by_count", Figure(f"Measured against {series.axis}{of_samples}", caption, chart)


def _panel(series: Series, metric: Metric) -> alt.LayerChart | None:
    rows = _rows(series, metric.name)
    if not rows:
        return None
    is_judged, is_percent = metric.name == series.judged, metric.unit == "%"
    ceilings = _rows(series, _CEILING) if is_judged and is_percent else []
    passing = [series.threshold] if is_judged and series.threshold is not None else []
    scale = alt.Scale(domainMin=0)
    if is_percent:
        for row in rows:
            row["low"], row["high"] = percent_interval(row["value"], row["value"] - row["low"])
        lows = [row["low"] for row in rows] + [row["value"] for row in ceilings] + passing
        scale = alt.Scale(domain=percent_domain(lows), nice=False, clamp=True)
    y, level = (alt.Y(name, title=metric.label, scale=scale) for name in ("value:Q", "level:Q"))
    x = _x_axis(series)
    layers = [rule(value, f"pass {value:g}", GREEN, level, left=True) for value in passing]
    if ceilings:
        dots = alt.Chart(data(ceilings)).mark_line(color=PURPLE, strokeDash=[2, 3], strokeWidth=1.4)
        layers.append(alt.layer(dots.encode(x=x, y=y, detail=alt.Detail("line:N"))))
    names = sorted(set(series.lines))
    key = legend(2) if len(names) > 1 else None
    base = alt.Chart(data(rows)).encode(x=x, color=alt.Color("line:N", scale=colours(names), legend=key))
    layers.append(
        base.mark_rule(strokeWidth=1.4).encode(y=alt.Y("low:Q", title=metric.label, scale=scale), y2="high:Q")
    )
    marks = base.encode(y=y)
    layers += [
        marks.mark_line(strokeWidth=1.6),
        marks.transform_filter(alt.datum.verdict == "pass").mark_point(filled=True, size=55, opacity=1),
        marks.transform_filter(alt.datum.verdict != "pass").mark_point(size=55, fill=GRID, opacity=1),
    ]
    width = (WIDTH - 70) // _PANELS
    return alt.layer(*layers).properties(width=width, height=210)


def _rows(series: Series, metric: str) -> list[Row]:
    """Return a row for each point that has the metric, by line and position; jobs that are not judged all "pass"."""
    rows = []
    for point, line, at in zip(series.points, series.lines, series.positions, strict=True):
        known = point.figures.metrics.get(metric)
        if known is None:
            continue
        judged, half = series.catalogue.judged, known.half_width or 0.0
        verdict = verdict_word(point.figures.passed, unknown="open") if judged else "pass"
        row = {"line": line, "at": at, "value": known.mean, "verdict": verdict}
        rows.append(row | {"low": known.mean - half, "high": known.mean + half})
    return sorted(rows, key=lambda row: (row["line"], isinstance(row["at"], str), row["at"]))


def _x_axis(series: Series) -> alt.X:
    """Return the x axis: linear for numbers, with ticks at what was tried; names in the order of the points."""
    emulated = series.catalogue.feeds_accelerators and series.axis == f"{series.catalogue.rank}s"
    title = f"emulated {series.axis}" if emulated else series.axis
    numbers = sorted({at for at in series.positions if not isinstance(at, str)})
    if not numbers:
        return alt.X("at:N", title=title, sort=None, axis=alt.Axis(labelAngle=0, labelLimit=130))
    axis = alt.Axis(grid=False, values=numbers, format="~g", labelOverlap=True)
    return alt.X("at:Q", title=title, axis=axis, scale=alt.Scale(zero=numbers[0] < 0.4 * numbers[-1], padding=12))

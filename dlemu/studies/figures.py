"""The figure of studies: what was measured against what was varied."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import altair as alt

from dlemu.metrics.catalogue import Metric
from dlemu.metrics.t_interval import percent_interval
from dlemu.report.figure_base import Figure, Level, Row, colours, data, lines, percent_domain
from dlemu.report.units import short_names, verdict_word
from dlemu.results.figures import JobFigures
from dlemu.results.kinds import catalogue_of
from dlemu.results.wording import scaled

_CEILING = "ceiling_au_percent"


class Point(NamedTuple):
    """One run, or all trials with one number of accelerators."""

    name: str
    """Of its line, apart from settings: workload and accelerator, or the side of a comparison."""
    settings: Mapping[str, str]
    figures: JobFigures


def charts(points: Iterable[Point]) -> Iterator[tuple[str, Figure]]:
    """Yield the figure of a study's points, if there are any, with its name.

    The judged metric (AU, with pass line and ceiling), else the main rate, against accelerators, or what was varied;
    where nothing was, what a comparison's verdict is about: a point for each run.
    """
    runs = list(points)
    if not runs:
        return
    catalogue = catalogue_of(runs[0].figures.kind)
    axis, places = _places(runs, f"{catalogue.rank}s")
    emulated = "emulated " * (catalogue.feeds_accelerators and axis == f"{catalogue.rank}s")

    def rows(metric: Metric) -> list[Row]:
        """Return a row for each point that has the metric; jobs that are not judged all "pass"."""
        found = []
        for (line, at), point in zip(places, runs, strict=True):
            if (known := point.figures.metrics.get(metric.name)) is not None:
                word = verdict_word(point.figures.passed, unknown="open") if catalogue.judged else "pass"
                half, row = known.half_width or 0.0, {"line": line, "at": at, "value": known.mean, "verdict": word}
                ends = (
                    percent_interval(known.mean, half) if metric.unit == "%" else (known.mean - half, known.mean + half)
                )
                found.append(row | dict(zip(("low", "high"), ends, strict=True)))
        return sorted(found, key=lambda row: (row["line"], isinstance(row["at"], str), row["at"]))

    # the metric that decides, where all points have it
    candidates = (catalogue.decisive, catalogue.judged, catalogue.fallback)
    everywhere = (name for name in candidates if all(name in run.figures.metrics for run in runs))
    judged = next(everywhere, catalogue.judged)
    shown = [one for one in catalogue if one.is_drawn and one.better == "higher" and one.name != catalogue.judged]
    shown = [*([catalogue[judged]] if judged else []), *shown]
    if is_alone := len({at for _, at in places}) == 1 < len(runs):
        shown = [*catalogue.times, *shown]
    metric = next((metric for metric in shown if rows(metric)), None)
    if metric is None:
        return
    measured, ceilings, levels = rows(metric), [], []
    if metric.name == judged:
        thresholds = {run.figures.threshold_percent for run in runs} - {None}
        levels = [Level(value or 0.0, "pass") for value in thresholds if judged != catalogue.fallback][:1]
        ceilings = [row for one in catalogue if one.name == _CEILING for row in rows(one)]
    caption = "Vertical lines are 95 % intervals."
    if catalogue.judged:
        caption = f"Filled points passed, hollow ones did not. {caption}"
    if ceilings:
        caption += " Dotted: the emulator's own ceiling, its AU on this host without any storage."
    small = {scaled(run.figures.sample_divisor) for run in runs}
    of_samples = small.pop() if len(small) == 1 else ""
    if is_alone:
        title = _ahead(metric, {row["line"]: row for row in measured})
        x = alt.X("line:N", axis=None, sort=None)
    else:
        title = f"{metric.title} against {axis}{of_samples}"
        if levels and not isinstance(measured[0]["at"], str):
            title = _passing(measured, axis + of_samples)
        x = _x_axis(emulated + axis, [at for _, at in places])
    yield "by_count", Figure(title, caption, _panel(metric, measured, x, levels, ceilings))


def _ahead(metric: Metric, lines: Mapping[str, Row]) -> str:
    """Return which line is the better one for certain, as a title."""
    best, second, *_ = sorted(lines.values(), key=lambda row: row["value"], reverse=metric.better == "higher")
    width = math.hypot(*((row["high"] - row["low"]) / 2 for row in (best, second)))
    if 0 < width < abs(best["value"] - second["value"]):
        return f"{best['line']} is ahead in {metric.title}"
    return f"No difference in {metric.title} is certain"


def _passing(rows: Sequence[Row], axis: str) -> str:
    """Return with how many each line passes, as a title."""
    most = {row["line"]: row["at"] for row in rows if row["verdict"] == "pass"}
    named = [f"{at:,g} ({line})" if len(most) > 1 else f"{at:,g}" for line, at in most.items()]
    return f"Up to {' and '.join(named)} {axis} pass" if most else f"None of these numbers of {axis} passes"


def _places(runs: Sequence[Point], ranks: str) -> tuple[str, list[tuple[str, float | str]]]:
    """Return what the x axis is, and the line and the place on it of each run.

    The axis is the ranks if their number varies, else the first setting with several values: numbers, if all of them
    are, or else names, of paths the parts in which they differ. Lines are named by the other settings that vary.
    """
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    values = {key: [run.settings.get(key, "") for run in runs] for key in keys}
    varied = {key: short_names(sorted(set(known))) for key, known in values.items() if len(set(known)) > 1}
    axis = ranks if len({run.figures.ranks for run in runs}) > 1 else next(iter(varied), ranks)
    at: list[float | str] = [run.figures.ranks for run in runs]
    if axis in varied:
        try:
            at = [float(value) for value in values[axis]]
        except ValueError:
            at = [varied[axis][value] for value in values[axis]]
    others = {key: short for key, short in varied.items() if key not in (axis, "ranks")}
    several, lines = len({run.name for run in runs}) > 1, []
    for number, run in enumerate(runs):
        named = [f"{key.rpartition('.')[2]}={short[values[key][number]]}" for key, short in others.items()]
        lines.append(", ".join([run.name, *named] if several or not named else named))
    return axis, list(zip(lines, at, strict=True))


def _panel(metric: Metric, rows: list[Row], x: alt.X, levels: list[Level], ceilings: list[Row]) -> alt.LayerChart:
    ends = [row[end] for row in [*rows, *ceilings] for end in ("low", "high")] + [level.value for level in levels]
    domain: list[float] = []
    if metric.unit == "%":
        domain = percent_domain(ends)
    elif x.axis is None:  # what is compared alone differs too little to begin at 0
        room = 0.2 * (max(ends) - min(ends)) or 0.1 * max(ends)
        domain = [min(ends) - room, max(ends) + room]
    chart = lines(rows, x, metric.label, domain=domain, levels=levels, points=True)
    if not ceilings:
        return chart
    scale = colours(list(dict.fromkeys(row["line"] for row in rows)))
    y, colour = alt.Y("value:Q", title=metric.label), alt.Color("line:N", scale=scale, legend=None)
    return alt.layer(chart, alt.Chart(data(ceilings)).mark_line(strokeDash=[2, 3]).encode(x=x, y=y, color=colour))


def _x_axis(title: str, places: Sequence[float | str]) -> alt.X:
    """Return the x axis: linear for numbers, with ticks at what was tried; names in the order of the points."""
    numbers = sorted({at for at in places if not isinstance(at, str)})
    if not numbers:
        return alt.X("at:N", title=title, sort=None, axis=alt.Axis(labelAngle=0, labelLimit=130))
    axis = alt.Axis(grid=False, values=numbers, format=",~f", labelOverlap=True)
    return alt.X("at:Q", title=title, axis=axis, scale=alt.Scale(zero=numbers[0] < 0.4 * numbers[-1], padding=12))

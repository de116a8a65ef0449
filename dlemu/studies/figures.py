"""The figure of studies: what was measured against what was varied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import altair as alt

from dlemu.metrics.catalogue import Metric
from dlemu.metrics.t_interval import percent_interval
from dlemu.report import figure_base as base
from dlemu.report.figure_base import Figure, Row, data
from dlemu.report.units import short_names, verdict_word
from dlemu.results.figures import JobFigures
from dlemu.results.kinds import catalogue_of
from dlemu.results.wording import scaled

_PANELS = 2
_CEILING = "ceiling_au_percent"


class Point(NamedTuple):
    """One run, or all trials with one number of accelerators."""

    name: str
    """Of its line, apart from settings: workload and accelerator, or the side of a comparison."""
    settings: Mapping[str, str]
    figures: JobFigures


def charts(points: Iterable[Point]) -> Iterator[tuple[str, Figure]]:
    """Yield the figure of a study's points, if there are any, with its name.

    The judged metric (AU, with pass line and ceiling) and the main rate against accelerators, or what was varied.
    """
    runs = list(points)
    if not runs:
        return
    catalogue = catalogue_of(runs[0].figures.kind)
    axis, places = _places(runs, f"{catalogue.rank}s")
    emulated = "emulated " * (catalogue.feeds_accelerators and axis == f"{catalogue.rank}s")
    lines, x = sorted({line for line, _ in places}), _x_axis(emulated + axis, [at for _, at in places])

    def rows(metric: str) -> list[Row]:
        """Return a row for each point that has the metric; jobs that are not judged all "pass"."""
        found = []
        for (line, at), point in zip(places, runs, strict=True):
            if (known := point.figures.metrics.get(metric)) is not None:
                word = verdict_word(point.figures.passed, unknown="open") if catalogue.judged else "pass"
                half, row = known.half_width or 0.0, {"line": line, "at": at, "value": known.mean, "verdict": word}
                found.append(row | {"low": known.mean - half, "high": known.mean + half})
        return sorted(found, key=lambda row: (row["line"], isinstance(row["at"], str), row["at"]))

    # the metric that decides, where all points have it
    candidates = (catalogue.decisive, catalogue.judged, catalogue.fallback)
    everywhere = (name for name in candidates if all(name in run.figures.metrics for run in runs))
    judged = next(everywhere, catalogue.judged)
    thresholds = [run.figures.threshold_percent for run in runs] if judged != catalogue.fallback else []
    passing = [value for value in thresholds if value is not None][:1]
    rates = [metric for metric in catalogue.drawn if metric.better == "higher" and metric.name != catalogue.judged]
    panels = []
    for metric in [*([catalogue[judged]] if judged else []), *rates]:
        is_judged = metric.name == judged
        ceilings = rows(_CEILING) if is_judged and metric.unit == "%" else []
        if measured := rows(metric.name):
            panels.append(_panel(metric, measured, lines, x, passing if is_judged else [], ceilings))
    if not panels:
        return
    small = {scaled(run.figures.sample_divisor) for run in runs}
    caption = "Vertical lines are 95 % intervals."
    if catalogue.judged:
        caption = f"Filled points passed, hollow ones did not. {caption}"
    if rows(_CEILING):
        caption += " Dotted: the emulator's own ceiling, its AU on this host without any storage."
    chart = alt.concat(*panels[:_PANELS], columns=_PANELS, spacing=24)
    yield "by_count", Figure(f"Measured against {axis}{small.pop() if len(small) == 1 else ''}", caption, chart)


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


def _panel(
    metric: Metric, rows: list[Row], lines: list[str], x: alt.X, passing: list[float], ceilings: list[Row]
) -> alt.LayerChart:
    scale = alt.Scale(domainMin=0)
    if metric.unit == "%":
        for row in rows:
            row["low"], row["high"] = percent_interval(row["value"], row["value"] - row["low"])
        lows = [row["low"] for row in rows] + [row["value"] for row in ceilings] + passing
        scale = alt.Scale(domain=base.percent_domain(lows), nice=False, clamp=True)
    y, level, low = (alt.Y(name, title=metric.label, scale=scale) for name in ("value:Q", "level:Q", "low:Q"))
    layers = [base.rule(value, f"pass {value:g}", base.GREEN, level, left=True) for value in passing]
    if ceilings:
        dots = alt.Chart(data(ceilings)).mark_line(color=base.PURPLE, strokeDash=[2, 3], strokeWidth=1.4)
        layers.append(alt.layer(dots.encode(x=x, y=y, detail=alt.Detail("line:N"))))
    key = base.legend(2) if len(lines) > 1 else None
    drawn = alt.Chart(data(rows)).encode(x=x, color=alt.Color("line:N", scale=base.colours(lines), legend=key))
    marks = drawn.encode(y=y)
    layers += [
        drawn.mark_rule(strokeWidth=1.4).encode(y=low, y2="high:Q"),
        marks.mark_line(strokeWidth=1.6),
        marks.transform_filter(alt.datum.verdict == "pass").mark_point(filled=True, size=55, opacity=1),
        marks.transform_filter(alt.datum.verdict != "pass").mark_point(size=55, fill=base.GRID, opacity=1),
    ]
    return alt.layer(*layers).properties(width=(base.WIDTH - 70) // _PANELS, height=210)


def _x_axis(title: str, places: Sequence[float | str]) -> alt.X:
    """Return the x axis: linear for numbers, with ticks at what was tried; names in the order of the points."""
    numbers = sorted({at for at in places if not isinstance(at, str)})
    if not numbers:
        return alt.X("at:N", title=title, sort=None, axis=alt.Axis(labelAngle=0, labelLimit=130))
    axis = alt.Axis(grid=False, values=numbers, format="~g", labelOverlap=True)
    return alt.X("at:Q", title=title, axis=axis, scale=alt.Scale(zero=numbers[0] < 0.4 * numbers[-1], padding=12))

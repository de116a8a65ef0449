"""A comparison on the terminal and on its page."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dlemu.config.overrides import override
from dlemu.metrics.catalogue import RUN, Metric
from dlemu.report.screen import Said, Screen
from dlemu.report.table import Table, columns, listing
from dlemu.report.units import short_names, verdict_word, with_interval
from dlemu.results import CONFIG
from dlemu.results.figures import Difference, JobFigures
from dlemu.results.kinds import Parts, catalogue_of
from dlemu.results.wording import at_scale, count
from dlemu.studies.answers import PLANNED_EPOCHS, ComparedSide, Comparison, RunPair
from dlemu.studies.compare.compare_sides import pair_settings
from dlemu.studies.sweep.page import points_table

_HEAD = columns("metric", "A", "B", "A vs B", "±", right=range(1, 5), whole=range(5))


def screen(answer: Comparison, folder: str) -> Screen:
    """Return the first screen: the verdict, both sides, and the main pair's metrics."""
    pair, catalogue = answer.main_pair, catalogue_of(answer.kind)
    headline, *phrases = answer.verdict.replace("+-", "±").split("; ")
    lines = [Said("" if index else "answer", phrase, tone="strong") for index, phrase in enumerate(phrases)]
    runs = (pair.a, pair.b) if pair else tuple(map(_run_at_limit, answer.sides))
    lines += [_side_line(name, side, run) for name, side, run in zip("AB", answer.sides, runs, strict=True)]
    table: Table | None = None
    if pair is not None and not answer.reasons:
        lines += [Said("year", line) for line in _year_lines(pair)]
        is_equal_work = pair.a.epochs == pair.b.epochs
        times = [metric for metric in catalogue.times if is_equal_work and pair.compares_storage(metric.phase)]
        shown = [one for one in catalogue if one in times or one.is_tile or one.name == catalogue.decisive]
        table = Table(columns=_HEAD, rows=difference_rows(pair.metrics, shown))
    config = os.path.join(answer.sides[0].name, CONFIG)
    if pair is not None and catalogue.feeds_accelerators and os.path.exists(config):
        new_folder = override(["output", "folder"], f"{answer.sides[0].name.rstrip('/')}-next")
        words = shlex.join([override(["workload"], config), new_folder])
        command, why = f"dlemu size {words}, and of B", "how many each feeds"
        if answer.reasons:
            command, why = f"dlemu compare {words} drives=FOLDER-A,FOLDER-B --make", "runs the same on both"
        lines.append(Said("next", command, why))
    subject = " and ".join(dict.fromkeys(run.title for run in runs if run)) or answer.kind
    return Screen(title=f"{subject}: {headline}", lines=lines, notes=answer.issues, folder=folder, table=table)


def _run_at_limit(side: ComparedSide) -> JobFigures | None:
    """Return a search's first failing run, which shows the bottleneck, or its largest run if none failed."""
    runs = [point.figures for point in side.unpaired if point.figures is not None]
    return next((run for run in runs if run.passed is False), runs[-1] if runs else None)


def _side_line(name: str, side: ComparedSide, run: JobFigures | None) -> Said:
    """Return the line of a side: its storage, what limited a run on it, and how much of the data it delivered."""
    text = side.name
    explanations = [side.about.get("storage", "")]
    if run is not None:
        for phase, limit in run.limited_by.items():
            if limit not in (None, "", "nothing"):
                text += f", limited by {limit}" if phase == RUN else f", limited by {phase}: {limit}"
        if run.epochs:
            explanations.append(count(run.epochs, "epoch"))
            if run.from_storage_percent is not None:
                explanations.append(f"{run.from_storage_percent:.0f} % of the bytes came from it")
    return Said(name, text, "; ".join(filter(None, explanations)))


def _year_lines(pair: RunPair) -> Iterator[str]:
    """Yield what the times mean for a year of training: models trained, and days saved unless that may be chance."""
    if pair.plan is None or at_scale(pair.a.sample_divisor):  # no real model trains on smaller samples
        return
    (hours_a, hours_b), (models_a, models_b), days_saved = pair.plan
    hours = f"{PLANNED_EPOCHS} epochs take A {hours_a:.3g} h and B {hours_b:.3g} h"
    yield f"{hours}: {models_a:.0f} and {models_b:.0f} models per year"
    seconds = pair.metrics.get("total_seconds")
    if seconds is None or seconds.distinct is not False:  # distinct is None with fewer than three epochs
        yield f"what B trains in a year takes A {abs(days_saved):.1f} days {'less' if days_saved >= 0 else 'more'}"


def sections(answer: Comparison, _: str) -> Iterator[Table]:
    """Yield the sections: why the sides are not comparable, each pair of runs, unpaired runs, and the conditions."""
    main, catalogue = answer.main_pair, catalogue_of(answer.kind)
    if answer.reasons:
        yield listing("Not comparable", answer.reasons)
    for pair in answer.runs:
        rows = difference_rows(pair.metrics, catalogue)
        if catalogue.judged:
            rows.append(("verdict", verdict_word(pair.a.passed), verdict_word(pair.b.passed), "", ""))
        for phase in catalogue.phases:
            limit_a, limit_b = (run.limited_by.get(phase) or "-" for run in (pair.a, pair.b))
            rows.append((catalogue.limited_by(phase), limit_a, limit_b, "", ""))
        title = f"A and B with {pair_settings(pair, catalogue)}"
        yield Table(title=title, columns=_HEAD, rows=rows, notes=list(_year_lines(pair)), folded=pair is not main)
    for name, side in zip("AB", answer.sides, strict=True):
        if side.unpaired:
            yield replace(points_table(side.unpaired, f"{name} alone"), folded=True)
    a, b = (side.about for side in answer.sides)
    facts = [(key, a.get(key, "not known"), b.get(key, "not known")) for key in dict.fromkeys((*a, *b))]
    facts.sort(key=lambda fact: fact[1] == fact[2])
    yield Table(title="How they were measured, what differs first", columns=columns("", "A", "B"), rows=facts)


def difference_rows(differences: Mapping[str, Difference], metrics: Iterable[Metric]) -> list[tuple[str, ...]]:
    """Return a row for each metric: its title, A and B with their intervals, A relative to B, and that interval."""
    rows: list[tuple[str, ...]] = []
    for metric in metrics:
        difference = differences.get(metric.name)
        if difference is None:
            continue
        a, b = difference.a, difference.b
        percent, width = difference.difference_percent, difference.half_width_percent
        if percent is None:
            change = "-"
        elif difference.distinct is False:
            change = "not significant"
        elif metric.unit != "%":
            change = f"{percent:+.1f} %"
        else:  # in percentage points, because a percentage of a percentage would mislead
            change, width = f"{a.mean - b.mean:+.1f} points", None
            if a.half_width is not None and b.half_width is not None:
                width = math.hypot(a.half_width, b.half_width)
        interval = "-" if width is None else f"{width:.1f}"
        values = with_interval(a, metric.unit), with_interval(b, metric.unit)
        rows.append((f"{metric.title}, {metric.unit}", *values, change, interval))
    return rows


def _charts(answer: Comparison, _: str) -> Iterator[tuple[str, Any]]:
    from dlemu.studies.figures import Point, charts

    a, b = answer.sides
    short = short_names([a.name, b.name])
    name_a, name_b = f"A: {short[a.name]}", f"B: {short[b.name]}"
    runs = [(name, run.settings, run.figures) for name, side in ((name_a, a), (name_b, b)) for run in side.unpaired]
    for pair in answer.runs:
        runs += [(name_a, pair.settings, pair.a), (name_b, pair.settings, pair.b)]
    return charts(Point(name, settings, run) for name, settings, run in runs if run)


PARTS = Parts(answer_type=Comparison, screen=screen, sections=sections, charts=_charts)

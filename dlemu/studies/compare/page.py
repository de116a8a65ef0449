"""A comparison on the terminal and on its page."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dlemu.metrics.catalogue import RUN, Catalogue, Metric
from dlemu.report.screen import Said, Screen
from dlemu.report.table import Table, columns, listing
from dlemu.report.units import short_names, verdict_word, with_interval
from dlemu.results.figures import Difference, JobFigures
from dlemu.results.kinds import Parts, catalogue_of
from dlemu.results.wording import count, scaled
from dlemu.studies.answers import PLANNED_EPOCHS, ComparedSide, Comparison, RunPair
from dlemu.studies.compare.compare_sides import pair_settings
from dlemu.studies.sweep.page import points_table

_HEAD = columns("metric", "A", "B", "A vs B", "±", right=range(1, 5), whole=range(5))


def screen(answer: Comparison, folder: str) -> Screen:
    """Return what is said first of a comparison: the main pair's metrics, and the verdict that rests on them."""
    pair, catalogue = answer.main_pair, catalogue_of(answer.kind)
    table: Table | None = None
    first, *others = answer.verdict.replace("+-", "±").split("; ")
    lines = [Said("answer" if text is others[0] else "", text, tone="strong") for text in others]
    shown = (pair.a, pair.b) if pair else tuple(map(_at_edge, answer.sides))
    for name, side, figures in zip("AB", answer.sides, shown, strict=True):
        words, explained = side.name, [side.about.get("storage", "")]
        if figures is not None:
            limits = {phase: limit for phase, limit in figures.limited_by.items() if limit not in (None, "", "nothing")}
            for phase, limit in limits.items():
                words += f", limited by {limit}" if phase == RUN else f", limited by {phase}: {limit}"
            if figures.epochs:
                explained.append(count(figures.epochs, "epoch"))
                if figures.from_storage_percent is not None:
                    explained.append(f"{figures.from_storage_percent:.0f} % of the bytes came from it")
        lines.append(Said(name, words, "; ".join(filter(None, explained))))
    if pair is not None and not answer.reasons:
        lines += [Said("year", line) for line in _year_lines(pair)]
        table = Table(columns=_HEAD, rows=difference_rows(pair.metrics, _headlines(pair, catalogue)))
        if catalogue.feeds_accelerators:
            config = f"{answer.sides[0].name}/config.yaml"
            which = f"{shlex.quote(f'workload={config}')}, and of B" if os.path.exists(config) else "of each"
            lines.append(Said("next", f"dlemu size {which}", "how many each feeds"))
    elif pair is not None and catalogue.feeds_accelerators:
        words = f"dlemu compare workload={pair.a.workload} ranks={pair.a.ranks} drives=FOLDER-A,FOLDER-B --make"
        lines.append(Said("next", words, "runs the same on both, past the page cache"))
    subject = " and ".join(dict.fromkeys(figures.title for figures in shown if figures)) or answer.kind
    return Screen(title=f"{subject}: {first}", lines=lines, notes=answer.issues, folder=folder, table=table)


def _at_edge(side: ComparedSide) -> JobFigures | None:
    """Return the figures of the least count that failed, which names the limit, or else of the largest count."""
    runs = [point.figures for point in side.unpaired if point.figures is not None]
    return next((run for run in runs if run.passed is False), runs[-1] if runs else None)


def _headlines(pair: RunPair, catalogue: Catalogue) -> Iterator[Metric]:
    """Yield the metrics to show first: times only if both runs did equal work in that phase, and from storage."""
    for metric in catalogue:
        is_comparable = pair.compares_storage(metric.phase) and pair.a.epochs == pair.b.epochs
        if metric.is_tile or metric.name == catalogue.decisive or (metric.phase and is_comparable):
            yield metric


def _year_lines(pair: RunPair) -> Iterator[str]:
    """Yield the lines of the plan of a year; days saved only if the difference in time may be real."""
    time = pair.metrics.get("total_seconds")
    if pair.plan is None or scaled(pair.a.sample_divisor):  # smaller samples are of no model that anybody trains
        return
    (a, b), (models_a, models_b), days = pair.plan
    yield f"{PLANNED_EPOCHS} epochs take A {a:.3g} h and B {b:.3g} h: {models_a:.0f} and {models_b:.0f} models per year"
    if time is None or time.distinct is not False:  # not known with fewer than three epochs
        yield f"what B trains in a year takes A {abs(days):.1f} days {'less' if days >= 0 else 'more'}"


def sections(answer: Comparison, _: str) -> Iterator[Table]:
    """Yield what follows: why not comparable, each pair of runs, the counts of searches, and the conditions."""
    main, catalogue = answer.main_pair, catalogue_of(answer.kind)
    if answer.reasons:
        yield listing("Not comparable", answer.reasons)
    for pair in answer.runs:
        rows = [*difference_rows(pair.metrics, catalogue), *_ends(pair, catalogue)]
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
    """Return a row per metric, in their order: A and B with their intervals, A against B, and its interval."""
    rows: list[tuple[str, ...]] = []
    for metric in metrics:
        if (both := differences.get(metric.name)) is None:
            continue
        a, b, percent, width = both.a, both.b, both.difference_percent, both.half_width_percent
        change = "-" if percent is None else "not significant" if both.distinct is False else f"{percent:+.1f} %"
        if metric.unit == "%" and change.endswith("%"):  # percentage points: a share of a share tells nobody anything
            change, width = f"{a.mean - b.mean:+.1f} points", None
            if a.half_width is not None and b.half_width is not None:
                width = math.hypot(a.half_width, b.half_width)
        interval = "-" if width is None else f"{width:.1f}"
        shown = with_interval(a, metric.unit), with_interval(b, metric.unit)
        rows.append((f"{metric.title}, {metric.unit}", *shown, change, interval))
    return rows


def _ends(pair: RunPair, catalogue: Catalogue) -> Iterator[tuple[str, ...]]:
    a, b = pair.a, pair.b
    if catalogue.judged:
        yield "verdict", verdict_word(a.passed), verdict_word(b.passed), "", ""
    for phase in catalogue.phases:
        yield catalogue.limited_by(phase), a.limited_by.get(phase) or "-", b.limited_by.get(phase) or "-", "", ""


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

"""A comparison on the terminal and on its page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from dlemu.metrics.catalogue import RUN, Catalogue, Metric
from dlemu.report.screen import Said, Screen
from dlemu.report.table import Section, Table, Words, columns
from dlemu.report.units import short_names, verdict_word, with_interval
from dlemu.results.answer_files import read_answer
from dlemu.results.figures import Difference, JobFigures
from dlemu.results.kinds import Parts, catalogue_of
from dlemu.results.wording import count, scaled
from dlemu.studies.answers import COMPARE, PLANNED_EPOCHS, ComparedSide, Comparison, RunPair
from dlemu.studies.compare.compare_sides import pair_settings
from dlemu.studies.sweep.page import points_table

if TYPE_CHECKING:
    from dlemu.report.figure_base import Figure

_HEAD = columns("metric", "A", "B", "A to B", "+-", right=range(1, 5), whole=range(5))
_NO_LIMIT = (None, "", "nothing")
_OPEN_TABLES = 2
"""With more pairs than this their tables are folded, except that of the main pair."""


def screen(answer: Comparison, folder: str) -> Screen:
    """Return what is said first of a comparison: the main pair's metrics, and the verdict that rests on them."""
    pair, table, first, *others = answer.main_pair, None, *answer.verdict.replace("+-", "±").split("; ")
    lines = [Said("answer", first, tone="strong"), *(Said("", text) for text in others)]
    shown = (pair.a, pair.b) if pair else tuple(map(_at_edge, answer.sides))
    for name, side, figures in zip("AB", answer.sides, shown, strict=True):
        limits = figures.limited_by if figures else {}
        known = [f"{f'{phase}: ' * (phase != RUN)}{what}" for phase, what in limits.items() if what not in _NO_LIMIT]
        rests_on = filter(None, [side.about.get("storage"), *_repetitions_and_origin(figures)])
        lines.append(Said(name, ", limited by ".join([side.name, *known]), "; ".join(rests_on)))
    if pair is not None and not (answer.not_comparable or pair.not_comparable):
        lines += [Said("year", line) for line in _year_lines(pair)]
        table = Table(columns=_HEAD, rows=difference_rows(pair.metrics, _headlines(pair, catalogue_of(answer.kind))))
        if catalogue_of(answer.kind).feeds_accelerators:
            lines.append(Said("next", "`dlemu size` of each finds how many it feeds"))
    elif pair is not None and catalogue_of(answer.kind).feeds_accelerators:
        words = f"dlemu compare workload={pair.a.workload} ranks={pair.a.ranks} drives=FOLDER-A,FOLDER-B --make"
        lines.append(Said("next", words, "runs the same on both, past the page cache"))
    what = " and ".join(dict.fromkeys(figures.title for figures in shown if figures)) or answer.kind
    return Screen(title=f"{what}: A against B", lines=lines, notes=answer.issues, folder=folder, table=table)


def _at_edge(side: ComparedSide) -> JobFigures | None:
    """Return the figures of the least count that failed, which names the limit, or else of the last one."""
    runs = [point.figures for point in side.unpaired if point.figures is not None]
    return next((run for run in runs if run.passed is False), runs[-1] if runs else None)


def _repetitions_and_origin(figures: JobFigures | None) -> Iterator[str]:
    """Yield over how many epochs a run's numbers are, and the share of the bytes read that its storage gave."""
    if figures is not None and figures.epochs:
        yield count(figures.epochs, "epoch")
        read, from_storage = figures.mean("app_mb_per_second"), figures.mean("device_mb_per_second")
        if read and from_storage is not None:
            yield f"{min(100.0, 100 * from_storage / read):.0f} % of the bytes came from it"


def _headlines(pair: RunPair, catalogue: Catalogue) -> Iterator[Metric]:
    """Yield the times and rates to show first: no time of a phase in which memory served one side, or of other work."""
    for metric in catalogue:
        is_equal = pair.compares_storage(metric.phase) and pair.a.epochs == pair.b.epochs
        if metric.is_tile or metric.name == catalogue.decisive or (metric.phase and is_equal):
            yield metric


def _year_lines(pair: RunPair) -> Iterator[str]:
    """Yield the lines of the plan of a year; days saved only where the difference in time may be real."""
    plan, time = pair.plan, pair.time("total_seconds")
    if plan is None or scaled(pair.a.sample_divisor):  # smaller samples are of no model that anybody trains
        return
    (a, b), (models_a, models_b) = plan.hours_per_model, plan.models_per_year
    yield f"{PLANNED_EPOCHS} epochs take A {a:.3g} h and B {b:.3g} h: {models_a:.0f} and {models_b:.0f} models per year"
    if time is None or time.distinct is not False:  # not known with fewer than three epochs
        days = plan.days_saved_per_year
        yield f"what B trains in a year takes A {abs(days):.1f} days {'less' if days >= 0 else 'more'}"


def sections(answer: Comparison, _: str) -> Iterator[Section]:
    """Yield what follows: why not comparable, each pair of runs, the counts of searches, and the conditions."""
    main, catalogue = answer.main_pair, catalogue_of(answer.kind)
    if differ := answer.not_comparable or (main and main.not_comparable):
        yield Words("Not comparable", differ)
    for pair in answer.runs:
        rows = [*difference_rows(pair.metrics, catalogue), *_ends(pair, catalogue)]
        folded = len(answer.runs) > _OPEN_TABLES and pair is not main
        title = f"A and B with {pair_settings(pair, catalogue)}"
        yield Table(title=title, columns=_HEAD, rows=rows, notes=list(_year_lines(pair)), folded=folded)
    for name, side in zip("AB", answer.sides, strict=True):
        if side.unpaired:
            yield replace(points_table(side.unpaired, f"{name} alone"), folded=True)
    a, b = (side.about for side in answer.sides)
    facts = [(key, a.get(key, "not known"), b.get(key, "not known")) for key in dict.fromkeys((*a, *b))]
    head, other = columns("", "A", "B"), [fact for fact in facts if fact[1] != fact[2]]
    yield Table(title="What differs in how they were measured", columns=head, rows=other)
    same = [(key, value) for key, value, b_value in facts if value == b_value]
    yield Table(title="What is the same for both", columns=columns("", "A and B"), rows=same, folded=True)


def difference_rows(differences: Mapping[str, Difference], metrics: Iterable[Metric]) -> list[tuple[str, ...]]:
    """Return a row per metric, in their order: A and B with their intervals, A to B, and its interval."""
    rows = []
    for metric in metrics:
        if (both := differences.get(metric.name)) is None:
            continue
        shown = (with_interval(side, metric.unit) for side in (both.a, both.b))
        percent, width = both.difference_percent, both.half_width_percent
        change = "-" if percent is None else "can't be told" if both.distinct is False else f"{percent:+.1f} %"
        if metric.unit == "%" and change.endswith("%"):  # a share of a share tells nobody anything
            change, width = f"{both.a.mean - both.b.mean:+.1f} points", None
        rows.append((f"{metric.title}, {metric.unit}", *shown, change, "-" if width is None else f"{width:.1f}"))
    return rows


def _ends(pair: RunPair, catalogue: Catalogue) -> Iterator[tuple[str, ...]]:
    """Yield a row of verdicts, if jobs pass or fail, and rows of limits."""
    both = pair.a, pair.b
    if catalogue.judged:
        yield "verdict", *(verdict_word(of.passed) for of in both), "", ""
    for phase in catalogue.phases:
        yield catalogue.limited_by(phase), *(of.limited_by.get(phase) or "-" for of in both), "", ""


def _charts(answer: Comparison, _: str) -> Iterator[tuple[str, Figure]]:
    """Return both sides as lines over what was varied."""
    from dlemu.studies.figures import Point, charts

    a, b = answer.sides
    short = short_names([a.name, b.name])
    name_a, name_b = f"A: {short[a.name]}", f"B: {short[b.name]}"
    runs = [(name, run.settings, run.figures) for name, side in ((name_a, a), (name_b, b)) for run in side.unpaired]
    for pair in answer.runs:
        runs += [(name_a, pair.settings, pair.a), (name_b, pair.settings, pair.b)]
    return charts(Point(name, settings, run) for name, settings, run in runs if run)


PARTS = Parts(
    read=lambda folder: read_answer(folder, COMPARE, Comparison),
    answer_type=Comparison,
    screen=screen,
    sections=sections,
    charts=_charts,
)

"""A comparison on the terminal and on its page, and the data that its figures draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from dlemu.metrics.catalogue import RUN, Catalogue
from dlemu.report.screen import Said, Screen
from dlemu.report.table import Section, Table, Words, columns
from dlemu.report.units import (
    at,
    number,
    plain,
    side_names,
    size,
    value_with_interval,
    verdict_word,
    with_interval,
    with_unit,
)
from dlemu.results.compared import Conditions, Difference
from dlemu.results.kinds import Parts, catalogue_of
from dlemu.studies.answers import ComparedSide, Comparison, RunPair, read_comparison
from dlemu.studies.compare.compare_sides import PLANNED_EPOCHS, pair_settings

if TYPE_CHECKING:
    from dlemu.report.figure_base import Canvas, Figure

_OPEN_TABLES = 2
"""With more pairs than this their tables are folded, except that of the main pair."""
_SHOWN_HOSTS = 4
_FED = (("accelerators fed", "accelerators_fed", ""), ("read rate", "gb_per_second", "GB/s"))


def difference_rows(metrics: Mapping[str, Difference], catalogue: Catalogue) -> list[tuple[str, ...]]:
    """Return a row per metric, in the catalogue's order: A and B with their intervals, A to B, and its interval."""
    rows = []
    for metric in catalogue:
        if (both := metrics.get(metric.name)) is None:
            continue
        sides = ((both.a, both.a_half_width), (both.b, both.b_half_width))
        shown = (with_interval(value, half, metric.unit) for value, half in sides)
        percent, width = both.difference_percent, both.half_width_percent
        change = "-" if percent is None else "can't be told" if both.distinct is False else f"{percent:+.1f} %"
        rows.append((f"{metric.title}, {metric.unit}", *shown, change, "-" if width is None else f"{width:.1f}"))
    return rows


def _pair_table(answer: Comparison, index: int) -> Table:
    """Return the differences of one pair, with the plan of a year."""
    pair, catalogue = answer.runs[index], catalogue_of(answer.kind)
    rows = [*difference_rows(pair.metrics, catalogue), *_ends(pair, catalogue)]
    head = columns("metric", "A", "B", "A to B", "+-", right=range(1, 5))
    folded = len(answer.runs) > _OPEN_TABLES and index != answer.main_pair_number
    title = f"A and B with {pair_settings(pair, catalogue)}"
    return Table(title=title, columns=head, rows=rows, notes=list(_year_lines(pair)), folded=folded)


def _ends(pair: RunPair, catalogue: Catalogue) -> Iterator[tuple[str, ...]]:
    """Yield a row of verdicts, if jobs pass or fail, and rows of limits."""
    if catalogue.judged:
        yield "verdict", *map(verdict_word, pair.passed), "", ""
    for phase, limits in pair.limited_by.items():
        yield catalogue.limited_by(phase), *(limit or "-" for limit in limits), "", ""


def _year_lines(pair: RunPair) -> Iterator[str]:
    """Yield the lines of the plan of a year; days saved only where the difference in time may be real."""
    plan = pair.plan
    if plan is None:
        return
    (a, b), (models_a, models_b) = plan.hours_per_model, plan.models_per_year
    yield f"{plan.epochs} epochs take A {a:.3g} h and B {b:.3g} h: {models_a:.0f} and {models_b:.0f} models per year"
    if _is_shown(pair):
        days = plan.days_saved_per_year
        saved = f"{abs(days):.1f} days {'less' if days >= 0 else 'more'}"
        yield f"what B trains in a year takes A {saved}"


def _is_shown(pair: RunPair) -> bool:
    """Return False where the difference in time may be chance; with fewer than three epochs that is not known: True."""
    time = pair.time("total_seconds")
    return time is None or time.distinct is not False


def screen(answer: Comparison, folder: str) -> Screen:
    """Return what is said first of a comparison: the verdict, and the metrics of the main pair that it rests on."""
    pair, catalogue = answer.main_pair, catalogue_of(answer.kind)
    lines = [Said("A to B", answer.verdict, tone="strong"), Said("A", answer.a), Said("B", answer.b)]
    if pair is not None and not (answer.not_comparable or pair.not_comparable):
        lines += [*_compared(pair, catalogue), *(Said("year", line) for line in _year_lines(pair))]
    return Screen(title=f"{answer.a} against {answer.b}", lines=lines, notes=answer.issues, folder=folder)


def _compared(pair: RunPair, catalogue: Catalogue) -> Iterator[Said]:
    """Yield both sides' times and rates; no time of a phase in which memory served one side, or of other work."""
    decisive = [catalogue[catalogue.decisive]] if catalogue.decisive else []
    for metric in (*catalogue.headlines, *decisive):
        both = pair.metrics.get(metric.name)
        if both is None or (
            metric.phase and not (pair.compares_storage(metric.phase) and pair.epochs[0] == pair.epochs[1])
        ):
            continue
        percent, width = both.difference_percent, both.half_width_percent
        sure = f"too few {catalogue.repetition}s: no interval" if width is None else f"± {width:.1f}"
        change = "" if percent is None else f": {percent:+.1f} % ({sure})"
        yield Said(metric.title, f"{with_unit(both.a, metric.unit)}, {with_unit(both.b, metric.unit)}{change}")


def sections(answer: Comparison, _: str) -> Iterator[Section]:
    main, catalogue = answer.main_pair, catalogue_of(answer.kind)
    if differ := answer.not_comparable or (main and main.not_comparable):
        yield Words("Not comparable", differ)
    if limits := [words for pair in answer.runs for words in _limits(pair, catalogue)]:
        yield Words("What limited them", limits)
    yield from _tables(answer, catalogue)


def _charts(answer: Comparison, _: str, canvas: Canvas) -> Iterator[tuple[str, Figure]]:
    """Yield both sides as lines over what was varied; of two single runs, their differences."""
    from dlemu.studies.figures import Point, charts, differences

    if len(answer.runs) == 1:
        figure = differences(answer.runs[0], catalogue_of(answer.kind), canvas)
        return iter([(differences.__name__, figure)] if figure else [])
    names = side_names(answer.a, answer.b)
    points = (
        Point(name=name, settings=tried.settings, figures=tried.figures)
        for name, side in zip(names, answer.sides, strict=True)
        for tried in side.runs
    )
    return charts(points, canvas)


def _limits(pair: RunPair, catalogue: Catalogue) -> Iterator[str]:
    for phase, limits in pair.limited_by.items():
        if {*limits} - {None, "nothing"}:
            a, b = (limit or "not known" for limit in limits)
            settings = f"With {pair_settings(pair, catalogue)}" + ("" if phase == RUN else f", {phase}")
            yield f"{settings}: A by {a}, B by {b}." if a != b else f"{settings}: both by {a}."


def _tables(answer: Comparison, catalogue: Catalogue) -> Iterator[Table]:
    yield from (_pair_table(answer, index) for index in range(len(answer.runs)))
    plans = [_plan_row(pair, catalogue) for pair in answer.runs if pair.plan]
    if plans:
        names = ("", f"hours for {PLANNED_EPOCHS} epochs: A", "B", "models per year: A", "B", "days saved by A")
        yield Table(title="A year of training", columns=columns(*names, right=range(1, 6)), rows=plans)
    if catalogue.feeds_accelerators:
        yield _fed_table(answer.sides)
    if not answer.runs:
        yield from (_counts_table(name, side, catalogue) for name, side in zip("AB", answer.sides, strict=True))
    a, b = (side.about for side in answer.sides)
    if a and b:
        head = columns("", "A", "B")
        yield Table(title="Where they were measured", columns=head, rows=list(_conditions_rows(a, b)))


def _plan_row(pair: RunPair, catalogue: Catalogue) -> tuple[str, ...]:
    assert pair.plan is not None  # the caller passes only pairs with a plan
    models = (f"{value:,.0f}" for value in pair.plan.models_per_year)
    hours = map(number, pair.plan.hours_per_model)
    return pair_settings(pair, catalogue), *hours, *models, f"{pair.plan.days_saved_per_year:.1f}"


def _fed_table(sides: tuple[ComparedSide, ComparedSide]) -> Table:
    rows = []
    for label, field, unit in _FED:
        values = [at(side, field) for side in sides]
        if any(value is not None for value in values):
            bounds = [_bound(side) if field == "accelerators_fed" else "" for side in sides]
            shown = zip(bounds, values, strict=True)
            cells = ("-" if value is None else f"{bound} {with_unit(value, unit)}".lstrip() for bound, value in shown)
            rows.append((label, *cells))
    small = [side.scaled.removeprefix(" with ") or "samples of full size" for side in sides]
    if any(side.scaled for side in sides):
        rows.append(("samples", *(one.removeprefix("samples ") for one in small)))
    return Table(title="Accelerators fed", columns=columns("", "A", "B", right=(1, 2)), rows=rows)


def _bound(side: ComparedSide) -> str:
    """Return "at least" where the storage may feed more accelerators than were shown."""
    return "at least" if side.may_feed_more and side.accelerators_fed else ""


def _counts_table(name: str, side: ComparedSide, catalogue: Catalogue) -> Table:
    """Return a table of one side's runs, for searches, whose counts of accelerators need not match the other side's."""
    found = [tried.figures for tried in side.runs]
    shown = [metric for metric in catalogue.compared if any(metric.name in figures.metrics for figures in found)]
    rows = [
        (
            str(figures.ranks),
            *(value_with_interval(figures.metrics.get(metric.name), metric.unit) for metric in shown),
            verdict_word(figures.passed, unknown="open"),
            *(figures.limited_by.get(phase) or "-" for phase in catalogue.phases),
        )
        for figures in found
    ]
    limits = (catalogue.limited_by(phase) for phase in catalogue.phases)
    names = (f"{catalogue.rank}s", *(f"{metric.title}, {metric.unit}" for metric in shown), "verdict", *limits)
    return Table(title=f"{name}: counts", columns=columns(*names, right=range(len(shown) + 1)), rows=rows)


def _conditions_rows(a: Conditions, b: Conditions) -> Iterator[tuple[str, str, str]]:
    for (name, fact), (_, other) in zip(_facts(a), _facts(b), strict=True):
        yield name, fact, other
    for shown in ("facts", "work", "how"):
        of_a, of_b = getattr(a, shown), getattr(b, shown)
        for key in dict.fromkeys((*of_a, *of_b)):
            yield key.replace("_", " "), plain(of_a.get(key)), plain(of_b.get(key))


def _facts(side: Conditions) -> Sequence[tuple[str, str]]:
    hosts, storage = side.hosts, side.storage
    first = hosts[0] if hosts else None
    more = f" and {len(hosts) - _SHOWN_HOSTS} more" if len(hosts) > _SHOWN_HOSTS else ""
    packages = first.packages.items() if first else ()
    devices = [
        ", ".join(filter(None, [device.name, device.model, size(device.size_bytes) if device.size_bytes else ""]))
        for device in side.devices
    ]
    return [
        ("measured", side.started_at or "not known"),
        ("hosts", ", ".join(host.host for host in hosts[:_SHOWN_HOSTS]) + more),
        ("processor", plain(first and first.processor)),
        ("cores usable", plain(first and first.cpu_usable)),
        ("memory", size(first.memory_bytes) if first else "not known"),
        ("kernel", plain(first and first.kernel)),
        ("dlemu", plain(first and first.dlemu)),
        ("packages", ", ".join(f"{name} {version}" for name, version in packages)),
        ("file system", plain(storage.file_system if storage else None)),
        ("devices", "; ".join(devices) or "not known"),
    ]


PARTS = Parts(read=read_comparison, answer_type=Comparison, screen=screen, sections=sections, charts=_charts)

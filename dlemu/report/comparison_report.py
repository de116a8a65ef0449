"""Two storages beside each other: as figures see them, and what terminal and page say of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.console import Console

from datagen.errors import UserError
from dlemu.emulator.environment import HostFacts
from dlemu.metrics.percent_interval import plus_minus
from dlemu.report.page import Page, TileRow, Words, tiles
from dlemu.report.series import Point, RunSeries
from dlemu.report.table import Line, Table, columns, print_lines, print_table
from dlemu.report.units import at, count, flat, number, plain, side_names, size, verdict_word, with_unit
from dlemu.results.answer_files import read_answer
from dlemu.sizing.answers import (
    COMPARE,
    ComparedCount,
    ComparedSide,
    Comparison,
    Conditions,
    Difference,
    Economy,
    RunPair,
    Value,
)
from dlemu.sizing.compare_sides import PLANNED_EPOCHS, pair_settings

METRICS = {
    "total_seconds": ("total time", "s"),
    "au_percent": ("AU", "%"),
    "au_sustained_percent": ("AU, sustained", "%"),
    "prefetch_credit_percent": ("prefetch credit", "%"),
    "au_rules_percent": ("AU, whole epochs", "%"),
    "samples_per_second": ("samples", "/s"),
    "app_mb_per_second": ("read by the application", "MB/s"),
    "device_mb_per_second": ("read from the device", "MB/s"),
    "max_device_mb_per_second": ("most from the device", "MB/s"),
    "mean_device_read_latency_ms": ("device read latency", "ms"),
    "time_to_first_batch_seconds": ("time to first batch", "s"),
}
"""Compared metrics: in words, and their units."""
_OPEN_TABLES = 2
"""More pairs than these are folded, all but the one that says most."""
_SHOWN_HOSTS = 4
_ECONOMY = (
    ("accelerators fed", "accelerators_fed", "", "the largest count shown to pass"),
    ("read by them", "gb_per_second", "GB/s", "at that count"),
    ("price for each one fed", "cost_per_accelerator", "", "--price, in its currency"),
    ("GB/s per watt", "gb_per_second_per_watt", "", "--watts"),
    ("power for each one fed", "watts_per_accelerator", "W", "--watts"),
    ("energy over the years for each one fed", "energy_kwh_per_accelerator", "kWh", "--watts and --years"),
    ("price and energy for each one fed", "cost_over_years_per_accelerator", "", "over --years, with --energy-price"),
)


@dataclass(frozen=True)
class OpenedComparison:
    """A comparison with the folder it lies in."""

    folder: str
    answer: Comparison

    @cached_property
    def names(self) -> tuple[str, str]:
        """What figures call the sides."""
        return side_names(self.answer.a, self.answer.b)

    @cached_property
    def series(self) -> RunSeries:
        """Both sides as lines over accelerators, or over what else was varied."""
        sides = zip(self.names, self.answer.sides, strict=True)
        return RunSeries(self.folder, tuple(_point(name, tried) for name, side in sides for tried in side.counts))


def open_comparison(folder: str) -> OpenedComparison:
    """Read the folder that `dlemu compare` left; raises UserError for a damaged one."""
    answer = read_answer(folder, COMPARE, Comparison)
    path = os.path.join(folder, COMPARE)
    if answer is None:
        raise UserError(f"{path} is not there; name the folder of a comparison")
    if not any(side.counts for side in answer.sides):
        raise UserError(f"{path} is damaged (neither side has a run), or of another version of dlemu")
    return OpenedComparison(folder, answer)


def _point(name: str, tried: ComparedCount) -> Point:
    au = tried.metrics.get("au_percent")
    return Point(
        line=name,
        settings=tried.settings,
        accelerators=tried.accelerators,
        passed=tried.passed,
        au_percent=tried.mean("au_percent"),
        half_width_percent=au.half_width if au else None,
        threshold_percent=tried.threshold_percent,
        ceiling_au_percent=tried.ceiling_au_percent,
        total_seconds=tried.mean("total_seconds"),
        samples_per_second=tried.mean("samples_per_second"),
        app_mb_per_second=tried.mean("app_mb_per_second"),
        device_mb_per_second=tried.mean("device_mb_per_second"),
        max_device_mb_per_second=tried.mean("max_device_mb_per_second"),
        mean_device_read_latency_ms=tried.mean("mean_device_read_latency_ms"),
        limited_by=tried.limited_by or "",
    )


# The terminal


def print_comparison(answer: Comparison, console: Console) -> None:
    """Print a table for each pair of runs, the year, and what the money buys."""
    print_lines([f"A: {answer.a}", f"B: {answer.b}"], console)
    for pair in answer.runs:
        print_table(_short_table(pair), console)
    print_lines([*map(_economy_line, "AB", answer.economy)], console)
    print_lines([Line(f"- {issue}", "caution") for issue in answer.issues], console)
    print_lines([Line(answer.verdict, "strong")], console)


def _short_table(pair: RunPair) -> Table:
    """Return the differences of one pair with its year below."""
    title = " ".join(f"{key}={value}" for key, value in pair.settings.items()) or pair_settings(pair)
    rows = [*short_rows(pair.metrics, METRICS), ("verdict", *map(verdict_word, pair.passed), "", "")]
    head = columns("metric", "A", "B", "A to B", "+-", right=range(1, 5), whole=range(5))
    return Table(title=title, columns=head, rows=rows, notes=list(_year_lines(pair)))


def short_rows(metrics: Mapping[str, Difference], words: Mapping[str, tuple[str, str]]) -> list[tuple[str, ...]]:
    """Return a row a metric for the terminal; `words` has their names and units."""
    return [
        (f"{words[key][0]} ({words[key][1]})", _digits(each.a), _digits(each.b), *_apart(each))
        for key, each in metrics.items()
    ]


def full_rows(metrics: Mapping[str, Difference], words: Mapping[str, tuple[str, str]]) -> list[tuple[str, ...]]:
    """Return the same for the page, with the intervals of both sides."""
    return [
        (
            ", ".join(words[key]),
            with_width(each.a, each.a_half_width, words[key][1]),
            with_width(each.b, each.b_half_width, words[key][1]),
            *_apart(each),
        )
        for key, each in metrics.items()
    ]


def _apart(metric: Difference) -> tuple[str, str]:
    percent, width = metric.difference_percent, metric.half_width_percent
    return "-" if percent is None else f"{percent:+.1f} %", "-" if width is None else f"{width:.1f}"


def _digits(value: float) -> str:
    """Return a number with as many digits as a table has room for."""
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 100 else 1
    return f"{value:,.{digits}f}"


def _year_lines(pair: RunPair) -> Iterator[str]:
    """Yield the year's lines; what is saved in it only where a difference is shown."""
    plan = pair.plan
    if plan is None:
        return
    (a, b), (models_a, models_b) = plan.hours_per_model, plan.models_per_year
    yield f"{plan.epochs} epochs take A {a:.3g} h and B {b:.3g} h: {models_a:.0f} and {models_b:.0f} models a year"
    if _is_shown(pair):
        days = plan.days_saved_per_year
        saved = f"saves {days:.1f} days of it" if days >= 0 else f"takes {-days:.1f} days more"
        yield f"what B trains in a year, A {saved}"


def _is_shown(pair: RunPair) -> bool:
    """Say whether the difference in time is not known to be chance: of fewer than three epochs that is not known."""
    return pair.time is None or pair.time.distinct is not False


def _economy_line(name: str, economy: Economy) -> str:
    fed = economy.accelerators_fed
    parts = [f"{count(fed, 'accelerator')} fed" if fed else "no count passed"]
    if economy.gb_per_second is not None:
        parts.append(f"{economy.gb_per_second:.3g} GB/s")
    if economy.cost_per_accelerator is not None:
        parts.append(f"{economy.cost_per_accelerator:,.2f} for each accelerator fed")
    if economy.gb_per_second_per_watt is not None:
        parts.append(f"{economy.gb_per_second_per_watt:.3g} GB/s per watt")
    if economy.watts_per_accelerator is not None:
        parts.append(f"{economy.watts_per_accelerator:.3g} W for each")
    if economy.energy_kwh_per_accelerator is not None:
        parts.append(f"{economy.energy_kwh_per_accelerator:,.0f} kWh for each in {economy.years:g} years")
    if economy.cost_over_years_per_accelerator is not None:
        parts.append(f"{economy.cost_over_years_per_accelerator:,.2f} for each with that energy")
    return f"{name}: {', '.join(parts)}"


# The page


def comparison_page(comparison: OpenedComparison) -> Page:
    """Return what stands on the page of a comparison."""
    answer = comparison.answer
    return Page(
        title=" against ".join(comparison.names),
        lead=f"A is {answer.a}. B is {answer.b}.",
        state="open",
        verdict=("A to B", f": {answer.verdict}"),
        tiles=tiles(answer, _tiles(answer)),
        words=list(_words(answer)),
        tables=list(_tables(answer)),
        source=os.path.basename(os.path.abspath(comparison.folder)),
    )


def _tiles(answer: Comparison) -> Iterator[TileRow]:
    pair, key = answer.main_pair, f"runs.{answer.main_pair_number}"
    if pair is not None and pair.total_seconds is not None and not pair.not_comparable:
        settings, width = f"with {pair_settings(pair)}", pair.total_seconds.half_width_percent
        sure = "too few epochs: no interval" if width is None else f"+- {width:.1f}"
        if pair.epochs[0] == pair.epochs[1]:
            yield "total time, A to B", f"{key}.metrics.total_seconds.difference_percent", "%", f"{sure}, {settings}"
        if _is_shown(pair):
            less = "what B trains in a year, A trains in less"
            yield "saved in a year", f"{key}.plan.days_saved_per_year", "days", less
        for side, name in enumerate("AB"):
            hours = f"{key}.plan.hours_per_model.{side}"
            yield f"{PLANNED_EPOCHS} epochs, {name}", hours, "h", "at the measured pace"
    for label, field, unit, what in _ECONOMY:
        for side, name in enumerate("AB"):
            yield f"{label}, {name}", f"economy.{side}.{field}", unit, what


def _words(answer: Comparison) -> Iterator[Words]:
    limits = [_limits(pair) for pair in answer.runs if {*pair.limited_by} - {None, "nothing"}]
    if limits:
        yield Words("What limited them", limits)
    if answer.issues:
        yield Words("What to know about these numbers", answer.issues)


def _limits(pair: RunPair) -> str:
    a, b = (limit or "not known" for limit in pair.limited_by)
    settings = pair_settings(pair)
    return f"With {settings}: A by {a}, B by {b}." if a != b else f"With {settings}: both by {a}."


def _tables(answer: Comparison) -> Iterator[Table]:
    for place, pair in enumerate(answer.runs):
        folded = len(answer.runs) > _OPEN_TABLES and place != answer.main_pair_number
        yield _full_table(pair, folded=folded)
    plans = [_plan_row(pair) for pair in answer.runs if pair.plan]
    if plans:
        names = ("", f"hours for {PLANNED_EPOCHS} epochs: A", "B", "models a year: A", "B", "days saved by A")
        yield Table(title="A year of training", columns=columns(*names, right=range(1, 6)), rows=plans)
    head = columns("", "A", "B", right=(1, 2))
    yield Table(title="What each feeds", columns=head, rows=list(_economy_rows(answer.economy)))
    if not answer.runs:
        yield from (_counts_table(name, side) for name, side in zip("AB", answer.sides, strict=True))
    a, b = (side.about for side in answer.sides)
    if a and b:
        head = columns("", "A", "B")
        yield Table(title="Where they were measured", columns=head, rows=list(_conditions_rows(a, b)))


def _full_table(pair: RunPair, *, folded: bool) -> Table:
    rows = full_rows(pair.metrics, METRICS)
    rows.append(("verdict", *(verdict_word(passed) for passed in pair.passed), "", ""))
    rows.append(("limited by", *(limit or "-" for limit in pair.limited_by), "", ""))
    head = columns("metric", "A", "B", "A to B", "+-", right=range(1, 5))
    return Table(title=f"A and B with {pair_settings(pair)}", columns=head, rows=rows, folded=folded)


def with_width(value: float, half_width: float | None, unit: str) -> str:
    """Return a number with its half width where that is known; of a percentage no interval that no percentage has."""
    if half_width is None:
        return number(value)
    width = plus_minus(value, half_width, 2) if unit == "%" else f"+- {number(half_width)}"
    return f"{number(value)} {width}"


def _plan_row(pair: RunPair) -> tuple[str, ...]:
    assert pair.plan is not None  # the caller left the others out
    models = (f"{value:,.0f}" for value in pair.plan.models_per_year)
    hours = map(number, pair.plan.hours_per_model)
    return pair_settings(pair), *hours, *models, f"{pair.plan.days_saved_per_year:.1f}"


def _economy_rows(economy: tuple[Economy, Economy]) -> Iterator[tuple[str, ...]]:
    for label, field, unit, _ in _ECONOMY:
        values = [at(side, field) for side in economy]
        if any(value is not None for value in values):
            yield label, *("-" if value is None else with_unit(value, unit) for value in values)


def _counts_table(name: str, side: ComparedSide) -> Table:
    """Return what was measured of a side whose counts need not be the other's: of a search."""
    shown = list(side.counts[0].metrics) if side.counts else []
    rows = [
        (
            str(tried.accelerators),
            *(_value(tried.metrics.get(metric), METRICS[metric][1]) for metric in shown),
            verdict_word(tried.passed, unknown="open"),
            tried.limited_by or "-",
        )
        for tried in side.counts
    ]
    names = ("accelerators", *(", ".join(METRICS[metric]) for metric in shown), "verdict", "limited by")
    return Table(title=f"{name}: counts", columns=columns(*names, right=range(len(shown) + 1)), rows=rows)


def _value(value: Value | None, unit: str) -> str:
    return "-" if value is None else with_width(value.mean, value.half_width, unit)


def _conditions_rows(a: Conditions, b: Conditions) -> Iterator[tuple[str, str, str]]:
    for (name, fact), (_, other) in zip(_facts(a), _facts(b), strict=True):
        yield name, fact, other
    for (name, setting), (_, other_setting) in sorted(zip(flat(a.how), flat(b.how), strict=True)):
        yield name.replace("_", " "), plain(setting), plain(other_setting)


def host_facts(hosts: Sequence[HostFacts]) -> list[tuple[str, str]]:
    """Return which hosts these were, and what the first of them is."""
    first = hosts[0] if hosts else None
    more = f" and {len(hosts) - _SHOWN_HOSTS} more" if len(hosts) > _SHOWN_HOSTS else ""
    return [
        ("hosts", ", ".join(host.host for host in hosts[:_SHOWN_HOSTS]) + more),
        ("processor", plain(first and first.processor)),
        ("cores usable", plain(first and first.cpu_usable)),
        ("memory", size(first.memory_bytes) if first else "not known"),
        ("kernel", plain(first and first.kernel)),
        ("dlemu", plain(first and first.dlemu)),
    ]


def _facts(side: Conditions) -> Sequence[tuple[str, str]]:
    hosts, storage, data = side.hosts, side.storage, side.dataset
    first = hosts[0] if hosts else None
    packages = first.packages.items() if first else ()
    devices = [
        ", ".join(filter(None, [device.name, device.model, size(device.size_bytes) if device.size_bytes else ""]))
        for device in side.devices
    ]
    return [
        ("measured", side.started_at or "not known"),
        *host_facts(hosts),
        ("packages", ", ".join(f"{name} {version}" for name, version in packages)),
        ("dataset", f"{data.num_files_train:,} {data.format} files, {size(data.total_bytes)}"),
        ("folder", data.data_folder),
        ("file system", plain(storage.file_system if storage else None)),
        ("devices", "; ".join(devices) or "not known"),
    ]

"""Any result in words: its first screen, its sections, and every key of its typed result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from rich.console import Console

from dlemu.metrics.findings import LimitedBy
from dlemu.metrics.rates import Mean
from dlemu.report.screen import Said, Screen, print_screen
from dlemu.report.table import Cell, Table, columns, listing, print_table
from dlemu.report.units import explained, number, plain
from dlemu.results.kinds import JobParts, Kind

_LONG_TABLE = 24  # a table with more rows shows ten at each end
_IN_WORDS = ("failure", "findings", "issues", "limited_by", "verdict", "warning")
"""Keys that the first screen and the sections say in words: a terminal need not repeat them."""


def show(kind: Kind, answer: Any, folder: str, console: Console, *, details: bool = False) -> None:
    """Print a result that was saved in a folder: its first screen, and with `details` its sections and a job's keys."""
    print_screen(screen_of(kind, answer, folder), console, details=details)
    if not details:
        return
    parts, tables = kind.load(), list(sections_of(kind, answer, folder))
    if isinstance(parts, JobParts) and parts.sections is None:
        tables += keys_of(kind.answer, answer, {*_IN_WORDS, *(metric.name for metric in parts.catalogue)})
    elif (question := getattr(answer, "question", None)) is not None:
        tables += keys_of("The question", question, ["settings_digest"])
    for table in tables:
        print_table(table, console)


def screen_of(kind: Kind, answer: Any, folder: str) -> Screen:
    if (show_first := kind.load().screen) is not None:
        screen: Screen = show_first(answer, folder)
        return screen
    line = Said("result", answer.verdict, tone="strong" if answer.complete else "open")
    return Screen(title=f"{answer.workload}: {kind.noun} with {answer.ranks} ranks", lines=[line], folder=folder)


def sections_of(kind: Kind, answer: Any, folder: str) -> Iterable[Table]:
    parts = kind.load()
    if parts.sections is not None:
        return parts.sections(answer, folder)
    return _job_sections(parts, answer) if isinstance(parts, JobParts) else []


def _job_sections(parts: JobParts, summary: Any) -> Iterator[Table]:
    """Yield sections for a run of any kind: what limited it, its metrics, and those of each repetition."""
    limit = getattr(summary, "limited_by", None)
    if isinstance(limit, LimitedBy):
        yield from further_reasons(limit)
    values = getattr(summary, "metrics", summary)
    rows, repetitions = [], {}
    for metric in parts.catalogue:
        value = getattr(values, metric.name, None)
        if isinstance(value, Mean):
            if metric.head and any(value.per_epoch):
                repetitions[metric.head] = value.per_epoch
            value = value.mean
        if value is not None:
            shown = value if isinstance(value, int) else number(value)
            rows.append((metric.title, f"{shown} {metric.unit}", metric.meaning))
    yield Table(title="Metrics", columns=columns("metric", "value", "meaning", right=(1,)), rows=rows, folded=True)
    each = enumerate(zip(*repetitions.values(), strict=False), start=1)
    repeated = [(str(index), *map(number, numbers)) for index, numbers in each]
    if len(repeated) > 1:
        head = columns(parts.catalogue.repetition, *repetitions, right=range(len(repetitions) + 1))
        yield Table(title=f"Each {parts.catalogue.repetition}", columns=head, rows=repeated, folded=True)


def further_reasons(limit: LimitedBy[Any]) -> Iterator[Table]:
    """Yield why something is the limit, and what to do, but for the first sentences, which the first screen has."""
    if limit.evidence[1:]:
        yield listing(f"Why: {limit.name}", limit.evidence[1:])
    if limit.advice[1:]:
        yield listing("What else to do", limit.advice[1:])


def keys_of(title: str, value: Any, without: Collection[str] = ()) -> Iterator[Table]:
    """Yield a table of the keys that have a value, with value and meaning, and a table for each list of parts."""
    rows, lists = [], {}
    for key, item, meaning in explained(value):
        if item is None or item == () or not set(without).isdisjoint(key.split(".")):
            continue
        if isinstance(item, tuple) and is_dataclass(item[0]):
            lists[f"{title}: {key}"] = item
        else:
            rows.append((key, plain(item, key), meaning))
    if rows:
        yield Table(title=title, columns=columns("key", "value", "meaning", whole=(0,)), rows=rows, folded=True)
    for name, items in lists.items():
        yield from item_table(name, items)


def item_table(title: str, items: Sequence[Any]) -> Iterator[Table]:
    """Yield a table with a row for each of a result's parts, if there are any."""
    names = [field.name for item in items[:1] for field in fields(item)]
    rows: list[Sequence[Cell]] = [[plain(getattr(item, name), name) for name in names] for item in items]
    if len(rows) > _LONG_TABLE:
        rows[10:-10] = [(f"... {len(rows) - 20} more ...",)]
    if rows:
        heads = columns(*(name.replace("_", " ") for name in names))
        yield Table(title=title, columns=heads, rows=rows, folded=True)

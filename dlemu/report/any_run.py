"""Presents a result of any kind: its first screen, its sections, and tables of all its keys."""

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

_LONG_TABLE = 24  # rows; of a longer table, the first ten and the last ten are shown
_IN_WORDS = ("failure", "findings", "issues", "limited_by", "verdict")
"""Keys whose values are sentences of the first screen and the sections; tables on a terminal omit them."""


def show(kind: Kind, answer: Any, folder: str, console: Console, *, details: bool = False) -> None:
    """Print the result in a folder: its first screen, and with `details` its sections and further keys."""
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
    make_screen = kind.load().screen
    if make_screen is not None:
        screen: Screen = make_screen(answer, folder)
        return screen
    line = Said("result", answer.verdict, tone="strong" if answer.complete else "open")
    return Screen(title=f"{answer.workload}: {kind.noun} with {answer.ranks} ranks", lines=[line], folder=folder)


def sections_of(kind: Kind, answer: Any, folder: str) -> Iterable[Table]:
    parts = kind.load()
    if parts.sections is not None:
        return parts.sections(answer, folder)
    return _job_sections(parts, answer) if isinstance(parts, JobParts) else []


def _job_sections(parts: JobParts, summary: Any) -> Iterator[Table]:
    """Yield the sections of a run: what limited it, its metrics, and the metrics of each repetition (epoch, ...)."""
    limit = getattr(summary, "limited_by", None)
    if isinstance(limit, LimitedBy):
        yield from further_reasons(limit)
    values = getattr(summary, "metrics", summary)
    rows, values_by_head = [], {}
    for metric in parts.catalogue:
        value = getattr(values, metric.name, None)
        if isinstance(value, Mean):
            if metric.head and any(value.per_epoch):
                values_by_head[metric.head] = value.per_epoch
            value = value.mean
        if value is not None:
            text = value if isinstance(value, int) else number(value)
            rows.append((metric.title, f"{text} {metric.unit}", metric.meaning))
    yield Table(title="Metrics", columns=columns("metric", "value", "meaning", right=(1,)), rows=rows, folded=True)
    repetitions = enumerate(zip(*values_by_head.values(), strict=False), start=1)
    repetition_rows = [(str(index), *map(number, numbers)) for index, numbers in repetitions]
    if len(repetition_rows) > 1:
        heads = columns(parts.catalogue.repetition, *values_by_head, right=range(len(values_by_head) + 1))
        yield Table(title=f"Each {parts.catalogue.repetition}", columns=heads, rows=repetition_rows, folded=True)


def further_reasons(limit: LimitedBy[Any]) -> Iterator[Table]:
    """Yield a limit's evidence and advice, without the first sentence of each, which is on the first screen."""
    if limit.evidence[1:]:
        yield listing(f"Why: {limit.name}", limit.evidence[1:])
    if limit.advice[1:]:
        yield listing("What else to do", limit.advice[1:])


def keys_of(title: str, value: Any, omitted: Collection[str] = ()) -> Iterator[Table]:
    """Yield a table of the keys that have a value, with value and meaning, and a table for each list of dataclasses."""
    rows, lists = [], {}
    for key, item, meaning in explained(value):
        if item is None or item == () or not set(omitted).isdisjoint(key.split(".")):
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
    """Yield a table with a row for each of `items`, which are dataclasses; nothing for no items."""
    names = [field.name for item in items[:1] for field in fields(item)]
    rows: list[Sequence[Cell]] = [[plain(getattr(item, name), name) for name in names] for item in items]
    if len(rows) > _LONG_TABLE:
        rows[10:-10] = [(f"... {len(rows) - 20} more ...",)]
    if rows:
        heads = columns(*(name.replace("_", " ") for name in names))
        yield Table(title=title, columns=heads, rows=rows, folded=True)

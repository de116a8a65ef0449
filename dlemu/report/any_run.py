"""Any result on the terminal and as a page: its first screen, and its sections below."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from dlemu.report.environment import environment_of
from dlemu.report.page import Page
from dlemu.report.screen import Said, Screen, print_screen
from dlemu.report.table import Section, Table, columns, print_section
from dlemu.report.units import flat, plain, unit_of, with_unit
from dlemu.results.kinds import JobParts, Kind
from dlemu.results.parts import Environment
from dlemu.results.tables import read_config

if TYPE_CHECKING:  # terminals use this module without drawing
    from dlemu.report.figure_base import Canvas, Figure


@dataclass(frozen=True)
class Opened:
    """A page without its figures, and what draws these for a canvas."""

    page: Page
    draw: Callable[[Canvas], Iterable[tuple[str, Figure]]] = lambda canvas: ()


def show(kind: Kind, answer: Any, folder: str, console: Console, *, details: bool = False) -> None:
    """Print a result that was saved in a folder: its first screen, and with `details` its sections."""
    print_screen(_screen(kind, answer, folder), console, details=details)
    for section in _sections(kind, answer, folder) if details else ():
        print_section(section, console)


def open_result(kind: Kind, folder: str) -> Opened:
    """Return the page of the result in a folder; raises UserError."""
    parts = kind.load()
    result = parts.read(folder)
    answer = result.summary if isinstance(parts, JobParts) else result
    page = Page(
        screen=_screen(kind, answer, folder),
        sections=list(_sections(kind, answer, folder)),
        facts=list(_facts(kind, answer)),
        config=read_config(folder),
        lead=getattr(answer, "started_at", ""),
        source=os.path.basename(os.path.abspath(folder)),
    )
    charts = parts.charts
    return Opened(page) if charts is None else Opened(page, lambda canvas: charts(result, folder, canvas))


def _screen(kind: Kind, answer: Any, folder: str) -> Screen:
    screen = kind.load().screen
    if screen is not None:
        said: Screen = screen(answer, folder)
        return said
    line = Said("result", answer.verdict, tone="strong" if answer.complete else "open")
    return Screen(title=f"{answer.workload}: {kind.noun} with {answer.ranks} ranks", lines=[line], folder=folder)


def _sections(kind: Kind, answer: Any, folder: str) -> Iterable[Section]:
    parts = kind.load()
    if parts.sections is not None:
        made: Iterable[Section] = parts.sections(answer, folder)
        return made
    return [_metrics(parts, answer)] if isinstance(parts, JobParts) else []


def _metrics(parts: JobParts, summary: Any) -> Table:
    shown = [(metric, getattr(summary, metric.name)) for metric in parts.catalogue]
    rows = [
        (metric.title, with_unit(value, metric.unit), metric.meaning) for metric, value in shown if value is not None
    ]
    return Table(columns=columns("metric", "value", "meaning", right=(1,)), rows=rows)


def _facts(kind: Kind, answer: Any) -> Iterator[Table]:
    environment = getattr(answer, "environment", None)
    if isinstance(environment, Environment):
        yield from environment_of(environment)
    if kind.is_job:
        rows = [(key, plain(value), unit_of(key)) for key, value in flat(answer)]
        head = columns("key", "value", "unit")
        yield Table(title=f"Every key of {kind.answer}", columns=head, rows=rows, folded=True)

"""A reproduced vendor document, on the terminal and on its page: the tables that it declares, of the steps' results."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dlemu.contrib.reproduce.document import DeclaredTable
from dlemu.contrib.reproduce.rows import OpenedDocument, Panel, open_document, panels_of
from dlemu.contrib.reproduce.run import Reproduced, read_reproduced
from dlemu.report.screen import Said, Screen
from dlemu.report.table import Section, Table, Words, columns
from dlemu.report.units import duration, number
from dlemu.results.kinds import Parts
from dlemu.results.wording import count

if TYPE_CHECKING:
    from dlemu.report.figure_base import Figure

_REDUCED = (
    "scale=laptop: datasets and times are reduced so that this takes minutes. The figures have the shape of the "
    "document's, not their numbers; scale=full uses the document's sizes."
)

_QUANTITIES = 6
"""Quantities on the first screen."""


def tables_of(opened: OpenedDocument) -> Iterator[Table]:
    """Yield the tables of a document that have values."""
    for declared in opened.document.tables:
        if declared.shape == "time saved":
            if len(opened.drives) == 2 and opened.results_of(declared):
                yield _time_saved(opened, declared)
        elif panels := [panel for panel in panels_of(opened, declared) if panel.values]:
            yield _panel_table(declared.title, panels)


def _panel_table(title: str, panels: Sequence[Panel]) -> Table:
    """Return a table of quantities that vary the same: a row for each place, a column for each quantity and drive."""
    places = sorted({place for panel in panels for _, place in panel.values})
    names, rows = [panels[0].across], [[place if isinstance(place, str) else f"{place:g}"] for place in places]
    for panel in panels:
        drives = dict.fromkeys(drive for drive, _ in panel.values)
        for drive in drives:
            names.append(f"{panel.title},\n{drive}" if len(drives) > 1 else panel.title)
            for row, place in zip(rows, places, strict=True):
                row.append(number(panel.values.get((drive, place))))
    return _table(title, names, rows)


def _table(title: str, names: Sequence[str], rows: Sequence[Sequence[str]], notes: tuple[str, ...] = ()) -> Table:
    head = columns(*names, right=range(1, len(names)), whole=range(len(names)))
    return Table(title=title, columns=head, rows=rows, notes=notes, dense=len(names) > 6)


def _time_saved(opened: OpenedDocument, declared: DeclaredTable) -> Table:
    """Return what the faster of two drives saves in a year, by accelerators."""
    from dlemu.api import compare

    rows, left_out = [], []
    folder = next(step.folder for step in opened.answer.steps if step.name.startswith(declared.of))
    for pair in compare(os.path.join(opened.folder, folder)).runs:
        plan = pair.plan
        if plan is None:
            left_out.append(str(pair.a.ranks))
            continue
        hours, models = plan.hours_per_model, (f"{one:,.0f}" for one in plan.models_per_year)
        faster = 100 * (1 - hours[0] / hours[1])
        rows.append([str(pair.a.ranks), f"{faster:+.1f}", f"{plan.days_saved_per_year:+.1f}", *models])
    first, second = opened.drives
    names = ["accelerators", f"{first} faster, %", "days saved per year"]
    names += [f"models per year, {drive}" for drive in (first, second)]
    why = f"Left out, without a verdict, whole epochs or equal work on both drives: {', '.join(left_out)}."
    return _table(declared.title, names, rows, notes=(why,) if left_out else ())


def lines_of(opened: OpenedDocument) -> Iterator[Said]:
    """Yield whether all of it ran, and quantities of the first table at the largest of what it varies."""
    answer = opened.answer
    is_whole = answer.complete and not opened.gaps
    ran = f"{count(len(answer.steps), 'step')} in {duration(sum(step.seconds for step in answer.steps))}"
    state = "reproduced" if is_whole else "INCOMPLETE"
    yield Said("answer", f"{state}, {ran}, scale={answer.question.scale}", tone="strong" if is_whole else "open")
    for panel in [panel for panel in panels_of(opened, opened.document.tables[0]) if panel.values][:_QUANTITIES]:
        last = max(place for _, place in panel.values)
        values = {drive: value for (drive, place), value in panel.values.items() if place == last}
        text = ", ".join(f"{number(value)}{f' on {drive}' * (len(values) > 1)}" for drive, value in values.items())
        yield Said(panel.title, text, f"{panel.across}: {last}")


def _screen(answer: Reproduced, folder: str) -> Screen:
    opened = open_document(folder)
    notes = [
        *(f"{gap} holds no result any more" for gap in opened.gaps),
        *([_REDUCED] if answer.question.scale == "laptop" else []),
    ]
    return Screen(title=answer.title, lines=list(lines_of(opened)), notes=notes, folder=folder)


def _sections(_: Reproduced, folder: str) -> Iterator[Section]:
    opened = open_document(folder)
    yield from tables_of(opened)
    yield Words("How", [shlex.join(["dlemu", step.command, *step.words]) for step in opened.answer.steps])


def _charts(_: Reproduced, folder: str) -> Iterator[tuple[str, Figure]]:
    from dlemu.contrib.reproduce.figures import figures

    return figures(open_document(folder))


PARTS = Parts(read=read_reproduced, answer_type=Reproduced, screen=_screen, sections=_sections, charts=_charts)

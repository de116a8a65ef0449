"""A reproduced vendor document on the terminal and on its page: the declared tables, filled from the steps' results."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dlemu.contrib.reproduce.document import document_named
from dlemu.contrib.reproduce.rows import Panel, panels_of, rows_of
from dlemu.contrib.reproduce.run import Reproduced
from dlemu.report.screen import Said, Screen
from dlemu.report.table import Table, columns, listing
from dlemu.report.units import number
from dlemu.results.kinds import Parts
from dlemu.results.wording import count

if TYPE_CHECKING:
    from dlemu.report.figure_base import Figure

_REDUCED = "at scale=laptop the figures have the shape of the document's, not their numbers; scale=full has its sizes"
_MAX_QUANTITIES = 6  # on the first screen


def screen(answer: Reproduced, folder: str) -> Screen:
    """Return the first screen: whether all steps ran, and the first table's quantities at its last x value."""
    state = "reproduced" if answer.complete else "INCOMPLETE"
    summary = f"{state}, {count(len(answer.steps), 'step')}, scale={answer.question.scale}"
    lines = [Said("answer", summary, tone="strong" if answer.complete else "open")]
    document = document_named(answer.question.document)
    for panel in panels_of(rows_of(answer, folder), document.tables[0])[:_MAX_QUANTITIES]:
        last = max(x_value for _, x_value in panel.values)
        values = {drive: value for (drive, x_value), value in panel.values.items() if x_value == last}
        texts = [number(value) if len(values) == 1 else f"{number(value)} on {name}" for name, value in values.items()]
        lines.append(Said(panel.title, ", ".join(texts), f"{panel.across}: {last}"))
    notes = [_REDUCED] if answer.question.scale == "laptop" else []
    return Screen(title=document.title, lines=lines, notes=notes, folder=folder)


def sections(answer: Reproduced, folder: str) -> Iterator[Table]:
    """Yield the tables of a document that have values, and a list of the commands that were run."""
    rows = list(rows_of(answer, folder))
    for declared in document_named(answer.question.document).tables:
        if panels := panels_of(rows, declared):
            yield _table(declared.title, panels, [] if declared.figure else [declared.caption])
    yield listing("How", [shlex.join(["dlemu", step.command, *step.words]) for step in answer.steps])


def _table(title: str, panels: Sequence[Panel], notes: Sequence[str]) -> Table:
    """Return a table with a row for each x value of the panels, and a column for each quantity and drive."""
    x_values = sorted({x_value for panel in panels for _, x_value in panel.values})
    heads = [panels[0].across]
    rows = [[x_value if isinstance(x_value, str) else f"{x_value:g}"] for x_value in x_values]
    for panel in panels:
        drives = dict.fromkeys(drive for drive, _ in panel.values)
        for drive in drives:
            heads.append(f"{panel.title},\n{drive}" if len(drives) > 1 else panel.title)
            for row, x_value in zip(rows, x_values, strict=True):
                row.append(number(panel.values.get((drive, x_value))))
    table_columns = columns(*heads, right=range(1, len(heads)), whole=range(len(heads)))
    return Table(title=title, columns=table_columns, rows=rows, notes=notes, dense=len(heads) > 6)


def _charts(answer: Reproduced, folder: str) -> Iterator[tuple[str, Figure]]:
    from dlemu.contrib.reproduce.figures import figures

    return figures(answer, folder)


PARTS = Parts(answer_type=Reproduced, screen=screen, sections=sections, charts=_charts)

"""One table and one line of text, each rendered twice: by rich for the terminal, as HTML for the page."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

import rich.table
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

Tone = Literal["plain", "strong", "good", "bad", "open", "caution"]
"""What a text means to its reader: good and bad are verdicts, open is one that could not be given."""

_STYLES: dict[Tone, str] = {
    "plain": "",
    "strong": "bold",
    "good": "bold green",
    "bad": "bold red",
    "open": "bold yellow",
    "caution": "yellow",
}


@dataclass(frozen=True)
class Line:
    """A text with its tone: a cell of a table, or a line of its own."""

    text: str
    tone: Tone = "plain"


Cell = str | Line


@dataclass(frozen=True)
class Column:
    """A column of a table. One whose `name` is empty has no head."""

    name: str = ""
    align: Literal["left", "right"] = "left"
    """Numbers stand on the right."""
    wrap: bool = True
    """Whether a long cell may be broken into lines."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as plain data, to be rendered anywhere."""

    title: str = ""
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    """Cells from left to right. A row of one cell in a table of several columns is a heading across all of them."""
    notes: Sequence[Cell] = ()
    """Lines below the table."""
    dense: bool = False
    """Little room between columns, for many of them."""
    folded: bool = False
    """On a page only the title is seen until it is opened."""

    @property
    def has_head(self) -> bool:
        """Whether any column has a name."""
        return any(column.name for column in self.columns)


def columns(*names: str, right: Collection[int] = (), whole: Collection[int] = ()) -> tuple[Column, ...]:
    """Return columns by name: those at the places of `right` hold numbers, cells of those of `whole` are not broken."""
    return tuple(
        Column(name, "right" if place in right else "left", wrap=place not in whole) for place, name in enumerate(names)
    )


def print_table(table: Table, console: Console) -> None:
    """Print a table with its notes.

    When no column may be broken, the table is as wide as it is: a narrow terminal wraps its lines, but loses nothing.
    """
    shown = rich.table.Table(
        title=Text(table.title) if table.title else None,
        title_justify="left",
        box=SIMPLE_HEAD if table.has_head else None,
        show_header=table.has_head,
        padding=0 if table.dense else (0, 1),
    )
    for column in table.columns:
        shown.add_column(Text(column.name), justify=column.align, no_wrap=not column.wrap)
    for row in table.rows:
        shown.add_row(*(rich_text(cell) for cell in row))
    width = console.width
    if not any(column.wrap for column in table.columns):
        wanted = Measurement.get(console, console.options.update(max_width=1000), shown).maximum
        console.width = max(width, wanted)
    console.print(shown)
    console.width = width
    print_lines(table.notes, console)


def print_lines(lines: Iterable[Cell], console: Console, *, wrap: bool = False) -> None:
    """Print lines of their own, unbroken, so that a path or a command in one can be copied; or wrapped at words."""
    for line in lines:
        console.print(rich_text(line), soft_wrap=not wrap)


def rich_text(cell: Cell) -> Text:
    """Return a cell or a line for rich, its brackets no markup."""
    line = _line(cell)
    return Text(line.text, style=_STYLES[line.tone])


def html_table(table: Table) -> str:
    """Return a table with its title and notes as an HTML section; every text in it is escaped."""
    title = escape(table.title)
    head = "".join(f'<th scope="col"{_classes(column)}>{escape(column.name)}</th>' for column in table.columns)
    parts = [
        f"<details><summary>{title}</summary>" if table.folded else f"<h2>{title}</h2>" if title else "",
        '<div class="wide"><table class="dense">' if table.dense else '<div class="wide"><table>',
        f"<thead><tr>{head}</tr></thead>" if table.has_head else "",
        "<tbody>",
        *(f"<tr>{_html_row(row, table.columns)}</tr>" for row in table.rows),
        "</tbody></table></div>",
        *(f'<p class="note">{_html_cell(note)}</p>' for note in table.notes),
        "</details>" if table.folded else "",
    ]
    return "<section>" + "\n".join(filter(None, parts)) + "</section>"


def _html_row(row: Sequence[Cell], across: Sequence[Column]) -> str:
    if len(row) == 1 and len(across) > 1:
        return f'<th scope="rowgroup" colspan="{len(across)}">{_html_cell(row[0])}</th>'
    return "".join(f"<td{_classes(column)}>{_html_cell(cell)}</td>" for column, cell in zip(across, row, strict=True))


def _html_cell(cell: Cell) -> str:
    line = _line(cell)
    text = escape(line.text)
    return text if line.tone == "plain" else f'<span class="{line.tone}">{text}</span>'


def _classes(column: Column) -> str:
    names = ["number"] * (column.align == "right") + ["whole"] * (not column.wrap)
    return f' class="{" ".join(names)}"' if names else ""


def _line(cell: Cell) -> Line:
    return cell if isinstance(cell, Line) else Line(cell)

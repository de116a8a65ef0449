"""Tables and lines of text, rendered by rich for the terminal and as HTML for the page."""

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

from dlemu.results.wording import VISIBLE

Tone = Literal["plain", "strong", "good", "bad", "open", "caution"]
"""Meaning of a text, which selects its colour: good and bad are verdicts, open stands for a missing verdict."""

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
    """A text with its tone: a cell of a table, or a separate line."""

    text: str
    tone: Tone = "plain"


Cell = str | Line


@dataclass(frozen=True)
class Column:
    """A column of a table; without a `name` it has no header."""

    name: str = ""
    align: Literal["left", "right"] = "left"  # numbers are aligned right
    wrap: bool = True  # whether a long cell may be broken into lines


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as plain data."""

    title: str = ""
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]  # from left to right; a row with a single cell is a heading across all columns
    notes: Sequence[Cell] = ()  # lines below the table
    dense: bool = False  # no padding between columns, for tables with many columns
    folded: bool = False  # collapsed on the HTML page: only the title is visible until it is opened


def columns(*names: str, right: Collection[int] = (), whole: Collection[int] = ()) -> tuple[Column, ...]:
    """Return columns by name. Those at the indices `right` are aligned right; those at `whole` have unwrapped cells."""
    return tuple(
        Column(name, "right" if index in right else "left", wrap=index not in whole) for index, name in enumerate(names)
    )


def listing(title: str, texts: Iterable[Cell]) -> Table:
    return Table(title=title, columns=columns(""), rows=[(text,) for text in texts])


def print_table(table: Table, console: Console) -> None:
    """Print a table with its notes.

    If no column may wrap, the table is printed at its full width: a narrow terminal wraps it, but cuts nothing off.
    """
    has_head = any(column.name for column in table.columns)
    rendered = rich.table.Table(
        title=Text(table.title.translate(VISIBLE)) if table.title else None,
        title_justify="left",
        box=SIMPLE_HEAD if has_head else None,
        show_header=has_head,
        padding=0 if table.dense else (0, 1),
    )
    for column in table.columns:
        rendered.add_column(
            rich_text(column.name, console),
            justify=column.align,
            no_wrap=not column.wrap,
            overflow="fold" if column.wrap else "ellipsis",
        )
    for row in table.rows:
        rendered.add_row(*(rich_text(cell, console) for cell in row))
    width = console.width
    if not any(column.wrap for column in table.columns):
        full_width = Measurement.get(console, console.options.update(max_width=1000), rendered).maximum
        console.width = max(width, full_width)
    console.print(rendered)
    console.width = width
    print_lines(table.notes, console)


def print_lines(lines: Iterable[Cell], console: Console) -> None:
    """Print each line without breaking it, so that paths and commands can be copied."""
    for line in lines:
        console.print(rich_text(line, console), soft_wrap=True)


def rich_text(cell: Cell, console: Console) -> Text:
    """Return a cell or a line as text for a console; brackets are not interpreted as markup."""
    line = cell if isinstance(cell, Line) else Line(cell)
    text = line.text if console.encoding.startswith("utf") else line.text.replace("±", "+-")
    return Text(text.translate(VISIBLE), style=_STYLES[line.tone])


def html_table(table: Table, title: str | None = None) -> str:
    """Return a table as HTML, under `title` (default: the table's own); all text is escaped."""
    title = table.title if title is None else title
    heads = "".join(f'<th scope="col"{_classes(column)}>{escape(column.name)}</th>' for column in table.columns)
    parts = [
        f"<h2>{escape(title)}</h2>" if title else "",
        f'<div class="wide"><table class="{"dense" if table.dense else "plain"}">',
        f"<thead><tr>{heads}</tr></thead>" if any(column.name for column in table.columns) else "",
        "<tbody>",
        *(f"<tr>{_html_row(row, table.columns)}</tr>" for row in table.rows),
        "</tbody></table></div>",
        *(f'<p class="note">{_html_cell(note)}</p>' for note in table.notes),
    ]
    return "\n".join(parts)


def _html_row(row: Sequence[Cell], heads: Sequence[Column]) -> str:
    if len(row) == 1 and len(heads) > 1:
        return f'<th scope="rowgroup" colspan="{len(heads)}">{_html_cell(row[0])}</th>'
    return "".join(f"<td{_classes(column)}>{_html_cell(cell)}</td>" for column, cell in zip(heads, row, strict=True))


def _html_cell(cell: Cell) -> str:
    line = cell if isinstance(cell, Line) else Line(cell)
    text = escape(line.text).replace("+- ", "± ")
    return text if line.tone == "plain" else f'<span class="{line.tone}">{text}</span>'


def _classes(column: Column) -> str:
    names = ["number"] if column.align == "right" else []
    if not column.wrap:
        names.append("whole")
    return f' class="{" ".join(names)}"' if names else ""

"""One self-contained HTML page: no script, nothing loaded from elsewhere, every text of others escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from dlemu import __version__
from dlemu.report.table import Table, Tone, html_table
from dlemu.report.units import at, with_unit

if TYPE_CHECKING:  # a terminal takes words and tables from here, and nothing is drawn there
    from dlemu.report.drawing import Picture

State = Literal["passed", "failed", "open", "neutral"]
STATES: dict[Tone, State] = {"good": "passed", "bad": "failed", "open": "open", "strong": "neutral"}
"""Tone of a verdict on the terminal -> state of the page: both have one colour."""


@dataclass(frozen=True)
class Tile:
    """A number that stands out. `key` is its place in the saved result, `value` the number itself, `text` as shown."""

    name: str
    key: str
    value: str
    text: str
    what: str


@dataclass(frozen=True)
class Words:
    """A section of text: sentences, each a point of a list."""

    title: str
    points: Sequence[str]


@dataclass(frozen=True)
class Text:
    """A file shown as it is, folded."""

    title: str
    content: str


@dataclass(frozen=True, kw_only=True)
class Page:
    """Everything on a page but its figures, as plain text."""

    title: str
    lead: str
    state: State
    verdict: tuple[str, str]
    """The word that stands out, and the rest of the line."""
    tiles: Sequence[Tile] = ()
    words: Sequence[Words] = ()
    tables: Sequence[Table] = ()
    texts: Sequence[Text] = ()
    source: str
    warning: str = ""
    """What nobody may overlook who reads the verdict."""


TileRow = tuple[str, str, str, str]
"""Name, dotted key, unit and explanation of a number."""


def tiles(result: Any, shown: Iterable[TileRow]) -> list[Tile]:
    """Return a tile for each row whose number is known. The keys are those of the saved result: of its typed fields."""
    known = [(name, key, at(result, key), unit, what) for name, key, unit, what in shown]
    return [
        Tile(name, key, repr(value), with_unit(value, unit), what)
        for name, key, value, unit, what in known
        if value is not None
    ]


def render(page: Page, pictures: Sequence[Picture]) -> str:
    """Return the page as HTML; only tables, and the SVGs that Vega made, go in as they are: both are escaped."""
    import jinja2

    here = files("dlemu.report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(here.joinpath("page.html.j2").read_text(encoding="utf-8"))
    css = here.joinpath("page.css").read_text(encoding="utf-8")
    tables = [html_table(table) for table in page.tables]
    return template.render(page=page, tables=tables, pictures=pictures, css=css, version=__version__) + "\n"


@dataclass(frozen=True)
class Opened:
    """A result with all of its page but the figures."""

    result: object
    page: Page
    figures: str
    """The package of its figures."""


@dataclass(frozen=True)
class About:
    """Where and on what a run was measured, for a page of several."""

    started_at: str
    hosts: Sequence[str]
    where: str
    """What was read or written, and where it lay."""
    tables: Sequence[Table]

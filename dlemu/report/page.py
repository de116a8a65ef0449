"""One self-contained HTML page: no script, nothing loaded from elsewhere, every text of others escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from dlemu import __version__
from dlemu.report.drawing import Picture
from dlemu.report.units import at, with_unit


@dataclass(frozen=True)
class Tile:
    """A number that stands out. `key` is its place in the summary, `value` the number itself, `text` as shown."""

    name: str
    key: str
    value: str
    text: str
    what: str


@dataclass(frozen=True)
class Words:
    """A section of text."""

    title: str
    paragraphs: Sequence[str] = ()
    points: Sequence[str] = ()


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """A row of one cell in a table of several columns is a heading across all of them."""
    numbers: Sequence[int] = ()
    """Columns that hold numbers, set to the right."""
    folded: bool = False
    dense: bool = False
    """Small, and no cell is broken into lines: for hundreds of rows and many columns."""


@dataclass(frozen=True)
class Text:
    """A file shown as it is, folded."""

    title: str
    content: str


@dataclass(frozen=True)
class Page:
    """Everything on a page but its figures, as plain text."""

    title: str
    lead: str
    state: str
    """passed, failed or open."""
    verdict: tuple[str, str]
    """The word that stands out, and the rest of the line."""
    tiles: Sequence[Tile]
    words: Sequence[Words]
    tables: Sequence[Table]
    texts: Sequence[Text]
    source: str
    warning: str = ""
    """What nobody may overlook who reads the verdict."""

    @property
    def short(self) -> str:
        """The verdict's word, for a window's title."""
        return self.verdict[0]


TileRow = tuple[str, str, str, str]
"""Name, dotted key, unit and explanation of a number."""


def tiles(values: dict[str, Any], shown: Iterable[TileRow], before: str = "") -> list[Tile]:
    """Return a tile for each row whose number is known; `before` is where `values` stand in the saved result."""
    found = []
    for name, key, unit, what in shown:
        value = at(values, key)
        if value is not None:
            found.append(Tile(name, before + key, repr(value), with_unit(value, unit), what))
    return found


def render(page: Page, pictures: Sequence[Picture]) -> str:
    """Return the page as HTML; only the SVGs of `pictures`, which Vega made and escaped, go in as they are."""
    import jinja2

    here = files("dlemu.report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(here.joinpath("page.html.j2").read_text(encoding="utf-8"))
    css = here.joinpath("page.css").read_text(encoding="utf-8")
    return template.render(page=page, pictures=pictures, css=css, version=__version__) + "\n"


def split_verdict(text: str) -> tuple[str, str]:
    """Return the verdict's word and the rest: `PASS: AU ...` -> `PASS`, `: AU ...`."""
    word, colon, rest = text.partition(":")
    return word, colon + rest

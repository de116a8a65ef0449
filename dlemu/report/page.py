"""A self-contained HTML page: it loads nothing, escapes all text, and runs no script unless figures are interactive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Literal

from dlemu import __version__
from dlemu.report.screen import Said
from dlemu.report.table import Table, Tone, html_table

if TYPE_CHECKING:  # terminals use this module without drawing
    from dlemu.report.drawing import Picture

State = Literal["passed", "failed", "open", "neutral"]
STATES: dict[Tone, State] = {"good": "passed", "bad": "failed", "open": "open", "strong": "neutral"}
"""Tone of a verdict on the terminal -> state of the page, which has the same colour."""


@dataclass(frozen=True)
class Words:
    """A section of text: a bullet list of sentences."""

    title: str
    points: Sequence[str]


@dataclass(frozen=True)
class Text:
    """The content of a file, collapsed until it is opened."""

    title: str
    content: str


@dataclass(frozen=True, kw_only=True)
class Page:
    """Everything on a page except its figures, as plain data."""

    title: str
    lead: str
    state: State
    verdict: tuple[str, str]
    """The highlighted word, and the rest of the line."""
    said: Sequence[Said] = ()
    """The lines of the first screen, in place of the verdict's line."""
    words: Sequence[Words] = ()
    tables: Sequence[Table] = ()
    texts: Sequence[Text] = ()
    source: str
    warning: str = ""
    """Shown directly below the verdict."""


def render(page: Page, pictures: Sequence[Picture], script: str = "") -> str:
    """Return the page as HTML. Only tables and Vega's SVGs are inserted unescaped, because both are escaped already.

    With Vega's `script`, the page draws the pictures' specs in place of the SVGs for wide screens.
    """
    import jinja2

    here = files("dlemu.report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(here.joinpath("page.html.j2").read_text(encoding="utf-8"))
    css = here.joinpath("page.css").read_text(encoding="utf-8")
    tables = [html_table(table) for table in page.tables]
    return (
        template.render(page=page, tables=tables, pictures=pictures, css=css, script=script, version=__version__) + "\n"
    )


@dataclass(frozen=True)
class Opened:
    """A result, its page without figures, and where to find its figures."""

    result: object
    page: Page
    figures: str = ""
    """Name of the package with its figures; empty: it has none."""

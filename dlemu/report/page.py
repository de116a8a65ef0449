"""A self-contained HTML page: it loads nothing, escapes all text, and runs no script."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from dlemu import __version__
from dlemu.report.screen import Screen
from dlemu.report.table import Section, Tone, Words, html_section

if TYPE_CHECKING:  # terminals use this module without drawing
    from dlemu.report.figure_base import Figure

_STATES: dict[Tone, str] = {"good": "passed", "bad": "failed", "open": "open", "caution": "open"}
"""Tone of the first line -> state of the page, which has the same colour; others are neutral."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Everything on a page, and what draws its figures."""

    screen: Screen
    """What the page begins with, as the terminal does."""
    sections: Sequence[Section] = ()
    facts: Sequence[Section] = ()
    """What is looked up, below all figures: the environment, every key of the result."""
    config: str = ""
    """The configuration as YAML, folded."""
    lead: str = ""
    """Below the title, such as when it was measured."""
    source: str
    """The name of what it was made from."""
    draw: Callable[[], Iterable[tuple[str, Figure]]] = tuple
    """Returns its figures by name."""

    @property
    def state(self) -> str:
        """`passed`, `failed`, `open` or `neutral`."""
        return _STATES.get(self.screen.lines[0].tone, "neutral")


def render(page: Page, pictures: Sequence[tuple[str, Figure, str]] = ()) -> str:
    """Return the page as HTML, with pictures: name, figure, and SVG.

    Only sections and Vega's SVGs are inserted unescaped: both are escaped already.
    """
    import jinja2

    here = files("dlemu.report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(here.joinpath("page.html.j2").read_text(encoding="utf-8"))
    css = here.joinpath("page.css").read_text(encoding="utf-8")
    notes = [Words("Notes on these numbers", page.screen.notes)] if page.screen.notes else []
    text = template.render(
        page=page,
        sections=[html_section(section) for section in (*notes, *page.sections)],
        facts=[html_section(section) for section in page.facts],
        pictures=pictures,
        css=css,
        version=__version__,
    )
    return f"{text}\n"

"""A self-contained HTML page: it loads nothing, escapes all text, and runs no script. Vega-Lite draws its figures."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from datagen.errors import UserError
from dlemu import __version__
from dlemu.report.any_run import all_keys, screen_of, sections_of
from dlemu.report.screen import Said, Screen
from dlemu.report.table import Table, Tone, html_table
from dlemu.results.kinds import Kind
from dlemu.results.tables import read_config

if TYPE_CHECKING:  # terminals use this module without drawing
    from dlemu.report.figure_base import Figure


_STATES: dict[Tone, str] = {"good": "passed", "bad": "failed", "open": "open", "caution": "open"}
"""Tone of the first line -> state of the page, which has the same colour; others are neutral."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Everything on a page, and what draws its figures."""

    screen: Screen
    """What the page begins with, as the terminal does."""
    sections: Sequence[Table] = ()
    facts: Sequence[Table] = ()
    """What is looked up, folded into one, and not printed: every key of the result."""
    config: str = ""
    """The configuration as YAML, folded."""
    measured_at: str = ""
    """ISO 8601."""
    source: str
    """The name of what it was made from."""
    draw: Callable[[], Iterable[tuple[str, Figure]]] = tuple
    """Returns its figures by name."""

    @property
    def state(self) -> str:
        """`passed`, `failed`, `open` or `neutral`."""
        return _STATES.get(self.screen.lines[0].tone, "neutral")


def open_result(kind: Kind, folder: str) -> Page:
    """Return the page of the result in a folder; raises UserError."""
    parts = kind.load()
    result = parts.read(folder)
    answer = result.summary if kind.is_job else result
    return Page(
        screen=screen_of(kind, answer, folder),
        sections=list(sections_of(kind, answer, folder)),
        facts=list(all_keys(kind, answer)),
        config=read_config(folder),
        measured_at=getattr(answer, "started_at", ""),
        source=os.path.basename(os.path.abspath(folder)),
        draw=lambda: parts.charts(result, folder) if parts.charts else (),
    )


def render(page: Page, pictures: Sequence[tuple[str, Figure, str]] = ()) -> str:
    """Return the page as HTML, with pictures: name, figure, and SVG.

    Only sections and Vega's SVGs are inserted unescaped: both are escaped already.
    """
    import jinja2

    here = files("dlemu.report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string(here.joinpath("page.html.j2").read_text(encoding="utf-8"))
    css = here.joinpath("page.css").read_text(encoding="utf-8")
    answer, *lines = page.screen.lines
    measured_at = f"{datetime.fromisoformat(page.measured_at):%-d %B %Y, %H:%M %Z}" if page.measured_at else ""
    text = template.render(
        page=page,
        lead=measured_at,
        answer=answer,
        lines=[*lines, *(Said("note", note, tone="caution") for note in page.screen.notes)],
        pictures=pictures,
        html=html_table,
        css=css,
        version=__version__,
    )
    return re.sub(r"(?<=\d) (?=%)", "\u00a0", f"{text}\n")


_PNG_SCALE = 2.0  # image pixels per pixel of the figure: sharp on high-density screens and in print


def missing_packages() -> list[str]:
    """Return the names of the packages that are missing for drawing."""
    packages = {"altair": "altair", "vl_convert": "vl-convert-python", "jinja2": "Jinja2"}
    return [package for module, package in packages.items() if importlib.util.find_spec(module) is None]


def check_packages() -> None:
    """Raise UserError if packages for making a page are missing."""
    missing = missing_packages()
    if missing:
        raise UserError(f"a report needs {', '.join(missing)}, not installed here: pip install 'dlemu[report]'")


def pictures(page: Page) -> list[tuple[str, Figure, str]]:
    """Return name, figure and SVG of the figures of a page, in order."""
    return [(name, figure, _for_page(_svg(figure, "transparent"), name)) for name, figure in figures(page)]


def picture_file(figure: Figure, kind: str) -> bytes:
    """Return a figure as an image file with white background; `kind` is svg or png."""
    import vl_convert

    if kind == "svg":
        return _svg(figure, "white").encode()
    titled = _spec(figure, "white") | {"title": figure.title}
    png: bytes = vl_convert.vegalite_to_png(titled, scale=_PNG_SCALE)
    return png


def figures(page: Page) -> list[tuple[str, Figure]]:
    """Return the figures of a page by name, in order."""
    from altair.utils.schemapi import debug_mode

    with debug_mode(False):  # altair's checks would double the time; tests draw with them
        return list(page.draw())


def _svg(figure: Figure, background: str) -> str:
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(_spec(figure, background))
    return re.sub(r' (?:role|aria-[a-z]+)="[^"]*"', "", svg)


def _spec(figure: Figure, background: str) -> dict[str, Any]:
    from dlemu.report.figure_base import GRID, INK, LEFT, MUTED

    text = {"labelColor": MUTED, "titleColor": MUTED, "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": 400}
    left = {"minExtent": LEFT, "maxExtent": LEFT, "titleAngle": 0, "titleAlign": "left", "titleAnchor": "end"}
    spec: dict[str, Any] = figure.chart.to_dict(validate=False)
    spec["background"] = background
    spec["config"] = {
        "font": "Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif",
        "view": {"stroke": None},
        "axis": text | {"domainColor": GRID, "tickColor": GRID, "gridColor": GRID, "labelLimit": 160},
        "axisY": left | {"titleX": -LEFT, "titleY": -9, "titleBaseline": "bottom", "domain": False, "ticks": False},
        "axisX": {"labelOverlap": True},
        "axisQuantitative": {"format": ",~f"},
        "legend": text | {"labelColor": INK, "symbolStrokeWidth": 3, "orient": "top"},
        "header": {"labelColor": MUTED, "titleColor": INK},
        "title": {"color": INK, "anchor": "start", "fontSize": 14, "fontWeight": 600},
        "text": {"color": INK},
    }
    return spec


def _for_page(svg: str, name: str) -> str:
    """Return a figure for the page: in the colours of its style sheet, as wide as all are, and with ids of its own."""
    from dlemu.report.figure_base import FULL_WIDTH, VARIABLES

    def colour_variable(match: re.Match[str]) -> str:
        return f'{match[1]}="var(--{VARIABLES[match[2]]})"' if match[2] in VARIABLES else match[0]

    svg = re.sub(r'\b(fill|stroke)="(#[0-9a-f]{6})"', colour_variable, svg)
    size = re.search(r'width="([0-9.]+)" height="([0-9.]+)" viewBox="[^"]*"', svg)
    if size is not None:
        svg = svg.replace(size[0], f'viewBox="0 0 {max(float(size[1]), FULL_WIDTH):g} {size[2]}"', 1)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    return re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)

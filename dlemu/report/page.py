"""Writes the page of a result: self-contained HTML without scripts, all text escaped, figures drawn by Vega-Lite."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from datagen import owned
from datagen.atomic import write_file, write_text
from datagen.errors import UserError
from dlemu import __version__
from dlemu.report.any_run import keys_of, screen_of, sections_of
from dlemu.report.screen import Said, Screen
from dlemu.report.table import Table, Tone, html_table
from dlemu.results.kinds import kind_or_training
from dlemu.results.tables import read_config

if TYPE_CHECKING:  # this module is imported, too, where nothing is drawn
    from dlemu.report.figure_base import Figure

_STATES: dict[Tone, str] = {"good": "passed", "bad": "failed", "open": "open", "caution": "open"}
"""Tone of the first line -> state of the page, which selects the header's colour; other tones are neutral."""
_PNG_SCALE = 2.0  # image pixels per pixel of the figure: sharp on high-density screens and in print


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of a page."""

    screen: Screen  # as on the terminal
    sections: Sequence[Table] = ()
    facts: Sequence[Table] = ()  # every key of the result, folded into one entry
    config: str = ""  # the configuration as YAML, folded
    measured_at: str = ""  # ISO 8601
    source: str  # name of the result's folder
    draw: Callable[[], Iterable[tuple[str, Figure]]] = tuple  # returns (name, figure) pairs; `tuple()` has none


def open_page(folder: str) -> Page:
    """Return the page of the result in a folder; raises UserError."""
    kind = kind_or_training(folder)
    charts, result = kind.load().charts, kind.read(folder)
    answer = result.summary if kind.is_job else result
    return Page(
        screen=screen_of(kind, answer, folder),
        sections=list(sections_of(kind, answer, folder)),
        facts=list(keys_of(kind.answer, answer)),
        config=read_config(folder),
        measured_at=getattr(answer, "started_at", ""),
        source=os.path.basename(os.path.abspath(folder)),
        draw=lambda: charts(result, folder) if charts else (),
    )


def missing_packages() -> list[str]:
    packages = {"altair": "altair", "vl_convert": "vl-convert-python", "jinja2": "Jinja2"}
    return [package for module, package in packages.items() if importlib.util.find_spec(module) is None]


def figures(page: Page) -> list[tuple[str, Figure]]:
    """Return the figures of a page by name, in order; raises UserError if packages for drawing are missing."""
    if missing := missing_packages():
        raise UserError(f"a report needs {', '.join(missing)}, not installed here: pip install 'dlemu[report]'")
    from altair.utils.schemapi import debug_mode

    with debug_mode(False):  # altair's validation would double the time; the tests validate
        return list(page.draw())


def write_page(folder: str, output: str | None = None) -> str:
    """Write the page of the result in a folder, to `output` or its report.html; return the path. Raises UserError."""
    path = output or os.path.join(folder, "report.html")
    page = open_page(folder)
    pictures = [(name, figure, _for_page(_svg(figure, "transparent"), name)) for name, figure in figures(page)]
    write_text(os.path.dirname(path), os.path.basename(path), render(page, pictures), advice=_advice(folder))
    return path


def write_pictures(folder: str, file_format: str, output: str) -> list[str]:
    """Write each figure as a png or svg file into the folder `output`; return their paths. Raises UserError."""
    images = {f"{name}.{file_format}": figure for name, figure in figures(open_page(folder))}
    _claim_names(output, images)
    for name, figure in images.items():
        write_file(output, name, methodcaller("write", picture_file(figure, file_format)), advice=_advice(folder))
    return [os.path.join(output, name) for name in images]


def _advice(folder: str) -> str:
    return f"`{shlex.join(['dlemu', 'report', folder])} --output FILE` writes elsewhere"


def _claim_names(folder: str, names: Iterable[str]) -> None:
    """Mark names in a folder, possibly a user's, as files of dlemu; raises UserError if other files have the names.

    A link to a folder is refused, since in a result from elsewhere its target was chosen by the sender.
    """
    elsewhere = "write the report elsewhere with --output"
    if os.path.islink(folder):
        raise UserError(f"{folder} is a link: remove it, or {elsewhere}")
    claimed = owned.claimed(folder)
    for name in names:
        path = os.path.join(folder, name)
        if name not in claimed and os.path.lexists(path):
            raise UserError(f"{path} exists, and dlemu did not write it: move it, or {elsewhere}")
    try:
        os.makedirs(folder, exist_ok=True)
        owned.claim(folder, *names)
    except OSError as error:
        raise UserError(f"{folder} could not be written: {error.strerror}; {elsewhere}") from error


def render(page: Page, pictures: Sequence[tuple[str, Figure, str]] = ()) -> str:
    """Return the page as HTML; `pictures` are names, figures, and the figures as SVG.

    Jinja escapes all text but the tables of the sections and Vega's SVGs, in which text is escaped already.
    """
    import jinja2

    loader = jinja2.PackageLoader("dlemu.report", "")
    environment = jinja2.Environment(autoescape=True, loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True)
    answer, *lines = page.screen.lines
    text = environment.get_template("page.html.j2").render(
        page=page,
        state=_STATES.get(answer.tone, "neutral"),
        lead=f"{datetime.fromisoformat(page.measured_at):%-d %B %Y, %H:%M %Z}" if page.measured_at else "",
        answer=answer,
        lines=[*lines, *(Said("note", note, tone="caution") for note in page.screen.notes)],
        pictures=pictures,
        html=html_table,
        version=__version__,
    )
    return re.sub(r"(?<=\d) (?=%)", "\u00a0", f"{text}\n")


def picture_file(figure: Figure, kind: str) -> bytes:
    """Return the content of an image file of a figure on white; `kind` is svg or png."""
    import vl_convert

    if kind == "svg":
        return _svg(figure, "white").encode()
    titled = _spec(figure, "white") | {"title": figure.title}
    png: bytes = vl_convert.vegalite_to_png(titled, scale=_PNG_SCALE)
    return png


def _svg(figure: Figure, background: str) -> str:
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(_spec(figure, background))
    return re.sub(r' (?:role|aria-[a-z]+)="[^"]*"', "", svg)


def _spec(figure: Figure, background: str) -> dict[str, Any]:
    """Return the Vega-Lite specification of a figure, in the style of all figures."""
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
    """Return a figure's SVG for the page: with the colours of the style sheet, the common width, and unique ids."""
    from dlemu.report.figure_base import FULL_WIDTH, VARIABLES

    for colour, variable in VARIABLES.items():
        svg = svg.replace(f'="{colour}"', f'="var(--{variable})"')
    size = re.search(r'width="([0-9.]+)" height="([0-9.]+)" viewBox="[^"]*"', svg)
    if size is not None:
        svg = svg.replace(size[0], f'viewBox="0 0 {max(float(size[1]), FULL_WIDTH):g} {size[2]}"', 1)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    return re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)

"""Draws the figures of a page: renders them by Vega-Lite, and adapts the SVGs."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from datagen.errors import UserError

if TYPE_CHECKING:
    from dlemu.report.figure_base import Figure

_PNG_SCALE = 2.0  # image pixels per pixel of the figure: sharp on high-density screens and in print


@dataclass(frozen=True)
class Picture:
    """One figure, as it is on a page."""

    name: str
    title: str
    caption: str
    svg: str


def missing_packages() -> list[str]:
    """Return the names of the packages that are missing for drawing."""
    packages = {"altair": "altair", "vl_convert": "vl-convert-python", "jinja2": "Jinja2"}
    return [package for module, package in packages.items() if importlib.util.find_spec(module) is None]


def check_packages() -> None:
    """Raise UserError if packages for making a page are missing."""
    missing = missing_packages()
    if missing:
        raise UserError(f"a report needs {', '.join(missing)}, not installed here: pip install 'dlemu[report]'")


Draw = Callable[[], Iterable[tuple[str, "Figure"]]]
"""Returns the figures of a result by name."""


def pictures(draw: Draw) -> list[Picture]:
    """Draw the figures of a result, in the order of the page."""
    return [
        Picture(name, figure.title, figure.caption, _with_unique_ids(_svg(figure, "transparent"), name))
        for name, figure in figures(draw)
    ]


def picture_file(figure: Figure, kind: str) -> bytes:
    """Return a figure as an image file with white background; `kind` is svg or png."""
    import vl_convert

    if kind == "svg":
        return _svg(figure, "white").encode()
    titled = _spec(figure, "white") | {"title": figure.title}
    png: bytes = vl_convert.vegalite_to_png(titled, scale=_PNG_SCALE)
    return png


def figures(draw: Draw) -> list[tuple[str, Figure]]:
    """Return name and figure of all that a result has, in the order of the page."""
    from altair.utils.schemapi import debug_mode

    with debug_mode(False):  # altair's checks would double the time; tests draw with them
        return list(draw())


def _svg(figure: Figure, background: str) -> str:
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(_spec(figure, background))
    return _with_titles(svg)


def _with_titles(svg: str) -> str:
    """Turn the descriptions that figures give to marks into tooltips that need no script; remove Vega's own."""
    from dlemu.report.figure_base import HOVER

    svg = re.sub(rf'aria-label="{HOVER}([^"]*)"([^>]*)/>', r"\2><title>\1</title></path>", svg)
    return re.sub(r' (?:role|aria-[a-z]+)="[^"]*"', "", svg)


def _spec(figure: Figure, background: str) -> dict[str, Any]:
    from dlemu.report.figure_base import GRID, INK, MUTED

    text = {"labelColor": MUTED, "titleColor": INK, "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": 500}
    spec: dict[str, Any] = figure.chart.to_dict(validate=False)
    spec["background"] = background
    spec["config"] = {
        "font": "Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif",
        "view": {"stroke": None},
        "axis": text
        | {"domainColor": GRID, "tickColor": GRID, "gridColor": GRID, "titlePadding": 6, "labelLimit": 160},
        "legend": text | {"symbolStrokeWidth": 3, "orient": "top"},
        "header": {"labelColor": MUTED, "titleColor": INK},
        "title": {"color": INK, "anchor": "start", "fontSize": 14, "fontWeight": 600},
        "text": {"color": INK},
    }
    return spec


def _with_unique_ids(svg: str, name: str) -> str:
    """Prefix the ids of clip paths and gradients with the figure's name: ids must be unique on a page."""
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    return re.sub(r'href="#', f'href="#{name}-', svg)

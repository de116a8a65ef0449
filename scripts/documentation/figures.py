"""The figures of pages, from the modules that draw them: a list a page, each figure in its own words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from dlemu.config.meanings import summary

FIGURES_BEGIN = "<!-- made by scripts/docs from the folders of figures -->"
PAGES = {
    "jobs/training/figures": "a training run",
    "studies/figures": "a search or sweep (`by_count`), or a comparison",
    "jobs/checkpoint/figures": "a run of checkpoints",
    "contrib/kvcache/figures": "KV-cache offload",
    "jobs/probe/figures": "a probe",
    "jobs/training/prediction/figures": "a prediction",
    "contrib/record/figures": "a recorded job",
}
"""Module below dlemu/ -> whose page it is."""


def figure_lists() -> str:
    """Return a list for each page; a place of figures that no page is known of is an error."""
    package = Path(__file__).parents[2] / "dlemu"
    places = package.rglob("figures.py")
    named = {place.relative_to(package).with_suffix("").as_posix(): dict(_drawn(place)) for place in places}
    drawn = {name: figures for name, figures in named.items() if figures}
    assert drawn.keys() == PAGES.keys(), drawn.keys() ^ PAGES.keys()
    return "\n".join(_list(page, drawn[place]) for place, page in PAGES.items())


def _drawn(place: Path) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of the functions that return a figure."""
    functions = (node for node in ast.parse(place.read_text()).body if isinstance(node, ast.FunctionDef))
    for function in functions:
        returned = ast.unparse(function.returns) if function.returns else ""
        if returned == "Figure | None" and not function.name.startswith("_"):
            yield function.name, ast.get_docstring(function) or ""


def _list(page: str, figures: dict[str, str]) -> str:
    lines = [f"- `{name}`: {summary(text)}" for name, text in sorted(figures.items())]
    return "\n".join([f"On the page of {page}:", "", *lines]) + "\n"

"""The figures of pages, from the folders in which they are files: a list a folder, each figure in its own words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from dlemu.config.meanings import summary

FIGURES_BEGIN = "<!-- made by scripts/docs from the folders of figures -->"
PAGES = {
    "jobs/training": "a training run",
    "studies/series": "a search, a sweep, or several folders with `--output`",
    "studies/compare": "a comparison",
    "jobs/checkpoint": "a run of checkpoints",
    "contrib/kvcache": "KV-cache offload",
    "contrib/pack": "a packing",
    "jobs/probe": "a probe",
    "jobs/training/prediction": "a prediction",
    "jobs/checkpoint/prediction": "a prediction of checkpoints",
    "contrib/record": "a recorded job",
    "contrib/mlperf/audit": "an audit",
}
"""Folder below dlemu/ -> whose page it is. Its figures are files in `figures/`, or functions of `figures.py`."""


def figure_lists() -> str:
    """Return a list for each folder; one that no page is known of is an error."""
    package = Path(__file__).parents[2] / "dlemu"
    found = [*package.rglob("figures/[a-z]*.py"), *package.rglob("figures.py")]
    with_figures = {(path if path.name == "figures.py" else path.parent).parent for path in found} - {
        package / "results"
    }
    folders = {path.relative_to(package).as_posix(): path for path in with_figures}
    assert folders.keys() == PAGES.keys(), folders.keys() ^ PAGES.keys()
    return "\n".join(_list(page, folders[folder]) for folder, page in PAGES.items())


def _list(page: str, folder: Path) -> str:
    lines = [f"On the page of {page}:", ""]
    lines += [f"- `{name}`: {summary(text).removeprefix('Figure: ')}" for name, text in sorted(_figures(folder))]
    return "\n".join(lines) + "\n"


def _figures(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of each figure: of a file, or of a function that draws one."""
    for path in folder.glob("figures/[a-z]*.py"):
        yield path.stem, ast.get_docstring(ast.parse(path.read_text())) or ""
    for path in folder.glob("figures.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns) == "Figure | None":
                yield node.name, ast.get_docstring(node) or ""

"""The figures of pages, from the folders in which they are files: a list a folder, each figure in its own words."""

from __future__ import annotations

import ast
from pathlib import Path

from dlemu.config.meanings import summary

FIGURES_BEGIN = "<!-- made by scripts/docs from the folders of figures -->"
PAGES = {
    "jobs/training/figures": "a training run",
    "studies/series/figures": "a search, a sweep, or several folders with `--output`",
    "studies/compare/figures": "a comparison",
    "jobs/checkpoint/figures": "a run of checkpoints",
    "contrib/kvcache/figures": "KV-cache offload",
    "contrib/pack/figures": "a packing",
    "jobs/probe/figures": "a probe",
    "jobs/training/prediction/figures": "a prediction",
    "jobs/checkpoint/prediction/figures": "a prediction of checkpoints",
    "contrib/record/figures": "a recorded job",
}
"""Folder below dlemu/ -> whose page it is."""


def figure_lists() -> str:
    """Return a list for each folder; one that no page is known of is an error."""
    package = Path(__file__).parents[2] / "dlemu"
    folders = {path.relative_to(package).as_posix(): path for path in package.rglob("figures") if _files(path)}
    assert folders.keys() == PAGES.keys(), folders.keys() ^ PAGES.keys()
    return "\n".join(_list(page, folders[folder]) for folder, page in PAGES.items())


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("[a-z]*.py"))


def _list(page: str, folder: Path) -> str:
    lines = [f"On the page of {page}:", ""]
    for path in _files(folder):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        lines.append(f"- `{path.stem}`: {summary(text).removeprefix('Figure: ')}")
    return "\n".join(lines) + "\n"

"""Writes what is made of the code and of the evidence: whole pages, and parts of pages between markers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from documentation import evidence
from documentation.commands import page as commands_page
from documentation.figures import FIGURES_BEGIN, figure_tables
from documentation.metrics import METRICS_BEGIN, metric_tables
from documentation.mlperf_rules import page as rules_page
from documentation.result_types import BEGIN, CHECKPOINT_BEGIN, END, answers_page, checkpoint_tables, tables
from documentation.settings import page as settings_page

DOCS = Path(__file__).parents[2] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "answers.md": answers_page,
    "cli.md": commands_page,
    "mlperf-rules.md": rules_page,
    **{f"evidence/{name}.md": partial(evidence.page, DOCS / "evidence" / name) for name in evidence.HELP},
}
"""Pages that are made whole."""
PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "results.md": (BEGIN, tables),
    "checkpoints.md": (CHECKPOINT_BEGIN, checkpoint_tables),
    "metrics.md": (METRICS_BEGIN, metric_tables),
    "report.md": (FIGURES_BEGIN, figure_tables),
}
"""Pages with a part that is made, behind a marker."""


def made(name: str) -> str:
    """Return a page of docs/ as it must be; what is written by hand stays."""
    if name in PAGES:
        return PAGES[name]()
    begin, part = PARTS[name]
    before, _, rest = (DOCS / name).read_text().partition(begin)
    return f"{before}{begin}\n\n{part()}\n{END}{rest.partition(END)[2]}"


def by_hand(name: str) -> str:
    """Return what is written by hand on a page: nothing of those made whole, and no fenced code."""
    if name in PAGES:
        return ""
    text = (DOCS / name).read_text()
    if name in PARTS:
        before, _, rest = text.partition(PARTS[name][0])
        text = before + rest.partition(END)[2]
    return "".join(text.split("```")[::2])


if __name__ == "__main__":
    for name in (*PAGES, *PARTS):
        (DOCS / name).write_text(made(name))

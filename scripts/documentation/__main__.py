"""Writes what is made of the code: parts of docs/results.md and docs/checkpoints.md, and docs/mlperf-rules.md."""

from __future__ import annotations

from pathlib import Path

from documentation.mlperf_rules import page as rules_page
from documentation.result_types import BEGIN, CHECKPOINT_BEGIN, END, checkpoint_tables, tables

DOCS = Path(__file__).parents[2] / "docs"
PAGE, CHECKPOINTS, RULES = DOCS / "results.md", DOCS / "checkpoints.md", DOCS / "mlperf-rules.md"


def written(page: str) -> str:
    """Return docs/results.md with its made part anew."""
    return _put(page, BEGIN, tables())


def written_checkpoints(page: str) -> str:
    """Return docs/checkpoints.md with its made part anew."""
    return _put(page, CHECKPOINT_BEGIN, checkpoint_tables())


def _put(page: str, begin: str, made: str) -> str:
    before, rest = page.split(begin, 1)
    _, after = rest.split(END, 1)
    return f"{before}{begin}\n\n{made}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
    CHECKPOINTS.write_text(written_checkpoints(CHECKPOINTS.read_text()))
    RULES.write_text(rules_page())

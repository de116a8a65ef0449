"""Writes what is made of the code: a part of docs/results.md, and docs/mlperf-rules.md. scripts/docs calls it."""

from __future__ import annotations

from pathlib import Path

from documentation.mlperf_rules import page as rules_page
from documentation.result_types import BEGIN, END, tables

DOCS = Path(__file__).parents[2] / "docs"
PAGE, RULES = DOCS / "results.md", DOCS / "mlperf-rules.md"


def written(page: str) -> str:
    """Return the page with its made part anew."""
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
    RULES.write_text(rules_page())

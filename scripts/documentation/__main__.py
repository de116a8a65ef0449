"""Writes the part of docs/results.md that is made from the types of a result: scripts/docs."""

from __future__ import annotations

from pathlib import Path

from documentation.result_types import BEGIN, END, tables

PAGE = Path(__file__).parents[2] / "docs" / "results.md"


def written(page: str) -> str:
    """Return the page with its made part anew."""
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))

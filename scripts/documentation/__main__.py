"""Writes the generated documentation: whole pages, and parts of pages between markers, from the code and evidence."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from documentation import evidence
from documentation.audit import COLUMNS_BEGIN, columns
from documentation.commands import page as commands_page
from documentation.mlperf_rules import page as rules_page
from documentation.result_types import page as answers_page
from documentation.settings import page as settings_page
from documentation.settings import part_page

DOCS = Path(__file__).parents[2] / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "answers.md": answers_page,
    "cli.md": commands_page,
    "../dlemu/contrib/kvcache/docs/kv-settings.md": partial(part_page, "kv", "kvcache.md"),
    "../dlemu/contrib/pack/docs/pack-settings.md": partial(part_page, "pack", "packing.md"),
    "../dlemu/contrib/mlperf/docs/mlperf-rules.md": rules_page,
    **{f"evidence/{name}.md": partial(evidence.page, DOCS / "evidence" / name) for name in evidence.HELP},
}
"""Generated pages, by their paths from docs/."""
END = "<!-- end of what is made -->"
PARTS: dict[str, tuple[str, Callable[[], str]]] = {"../dlemu/contrib/mlperf/docs/audit.md": (COLUMNS_BEGIN, columns)}
"""Pages with a generated part: the marker before the part, and the function that generates it."""
TRADEMARK = (
    "\n*MLPerf is a registered trademark of MLCommons. dlemu is none of its products, and no result of\n"
    "dlemu is one that MLCommons has verified.*\n"
)
"""The end of each page that names MLPerf."""


def pages() -> list[str]:
    """Return the names of all pages, including generated pages that do not exist yet."""
    existing = [*DOCS.rglob("*.md"), *DOCS.parent.glob("dlemu/contrib/*/docs/*.md")]
    return sorted({*PAGES, *(os.path.relpath(path, DOCS) for path in existing)})


def made(name: str) -> str:
    """Return the text that a page of docs/ should have; handwritten text stays as it is."""
    text = (PAGES[name]() if name in PAGES else _with_part(name)).replace(TRADEMARK, "")
    return text + TRADEMARK if "MLPerf" in text else text


def _with_part(name: str) -> str:
    text = (DOCS / name).read_text()
    if name not in PARTS:
        return text
    begin, part = PARTS[name]
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n\n{part()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    for name in pages():
        (DOCS / name).write_text(made(name))

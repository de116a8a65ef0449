"""docs/evidence/NAME.md: what was measured, from the data files of docs/evidence/NAME."""

from __future__ import annotations

import json
from pathlib import Path

HELP = {
    "validation": ("Validation, measured", "../validation.md", "scripts/validate --save"),
    "benchmarks": ("Benchmarks, measured", "../benchmarks.md", "scripts/bench --save"),
    "faults": ("Faults and their tests", "../reliability.md", ""),
    "mutation": ("Mutants, measured", "../reliability.md", "scripts/mutate"),
}
"""Folder -> title of its page, the page that says how to read it, and what measures it."""


def page(folder: Path) -> str:
    """Return the page of a folder of data files: a section a file, by name."""
    title, how, command = HELP[folder.name]
    source = f", which `{command}` measures" if command else ""
    head = (
        f"# {title}\n\nMade by `scripts/docs` from the files of `docs/evidence/{folder.name}`{source}. "
        f"[How to read it]({how})\n"
    )
    return "\n".join([head, *(_section(path) for path in sorted(folder.glob("*.json")))])


def _section(path: Path) -> str:
    found = json.loads(path.read_text())
    tables = []
    for table in found["tables"]:
        rows = [table["columns"], ["---"] * len(table["columns"]), *table["rows"]]
        tables.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join([f"## {path.stem}", found["summary"], *tables]) + "\n"

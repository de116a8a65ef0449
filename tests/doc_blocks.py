"""Finds the commands in the code blocks of the documentation, line by line, as a reader would type them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MADE = {"answers.md", "cli.md", "settings.md", "kv-settings.md", "pack-settings.md", "mlperf-rules.md"}
PARTS = ROOT.glob("dlemu/contrib/*/docs/*.md")
PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *PARTS))
WITH_COMMANDS = [page for page in PAGES if page != "CHANGELOG.md" and Path(page).name not in MADE]
SHELLS = ("", "bash", "console", "sh")
"""Languages of the fenced blocks that hold commands."""


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the content of each fenced block."""
    language: str | None = None
    content: list[str] = []
    for line in text.splitlines():
        fence = re.match(r"^```(\S*)", line)
        if fence is None:
            content.append(line)
        elif language is None:
            language, content = fence[1], []
        else:
            yield language, "\n".join(content)
            language = None
    assert language is None, "a fence that is not closed"


def lines(page: str) -> Iterator[str]:
    """Yield each command of a page's shell blocks, without its prompt; continued lines are joined."""
    for language, block in blocks((ROOT / page).read_text()):
        if language in SHELLS:
            for line in block.replace("\\\n", " ").splitlines():
                command = line.strip().removeprefix("$ ")
                if command and not command.startswith("#"):
                    yield command

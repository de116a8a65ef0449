"""How Sphinx builds these pages; scripts/docs calls it, with warnings as errors and without a network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

project = "dlemu"
author = "the dlemu authors"
(release,) = re.findall(r'__version__ = "(.+)"', (Path(__file__).parents[1] / "dlemu/__init__.py").read_text())
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"dlemu {release}"
source_suffix = {".md": "markdown"}
root_doc = "docs/index"
include_patterns = ["docs/**.md", "dlemu/contrib/*/docs/*.md"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # output and formulas are no language


def on_source_read(app: Any, name: str, source: list[str]) -> None:
    """Put files that pages link to into the site, and make the tree of pages of the index's own tables."""
    text = re.sub(r"\]\(((?:\.\./)+(?:CONTRIBUTING|CHANGELOG)\.md)[^)]*\)", r"](path:\1)", source[0])
    text = re.sub(r"\[([^\]]+)\]\((?:\.\./)*(?:scripts|tests|examples|container)/[^)]*\)", r"`\1`", text)  # no pages
    if name == root_doc:
        for section in text.split("\n## ")[1:]:
            title, _, tables = section.partition("\n")
            pages = "\n".join(dict.fromkeys(re.findall(r"\]\(([\w./-]+)\.md\)", tables)))
            text += f"\n```{{toctree}}\n:hidden:\n:caption: {title.partition(':')[0]}\n\n{pages}\n```\n"
    source[0] = text


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", on_source_read)

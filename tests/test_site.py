"""The site builds of these pages without a warning, and needs no network to be read or searched."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doc_blocks import DOCS, PAGES, ROOT

pytestmark = pytest.mark.slow


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("sphinx", "myst_parser", "furo")),
    reason="Sphinx comes with the extra `docs`; scripts/docs --site builds the site",
)
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    options = ["--fail-on-warning", "--keep-going", "-q", "-c", str(DOCS), str(ROOT), str(tmp_path)]
    command = [sys.executable, "-m", "sphinx", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr
    pages = list(tmp_path.rglob("*.html"))
    made = {path.relative_to(tmp_path).with_suffix("").as_posix() for path in pages}
    assert {page.removesuffix(".md") for page in PAGES if "/docs/" in f"/{page}"} <= made
    for path in pages:
        loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//[^"]*', path.read_text())
        assert not loaded, f"{path}: {loaded}"
    assert '"odirect"' in (tmp_path / "searchindex.js").read_text(), "searched in the browser"
    index = (tmp_path / "docs" / "index.html").read_text()
    for kind in ("Tutorials", "How-to guides", "Reference", "Explanation", "Evidence"):
        assert f'<span class="caption-text">{kind}</span>' in index, f"{kind} in the navigation"

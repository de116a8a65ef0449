"""No number or code of a result changes, nor one of the few texts here, unless the change of a golden says so.

After a change that is meant: `python -m tests.goldens.write`, and the diff belongs to the commit.
"""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path

import pytest

from tests.goldens.render import EXPECTED, RESULTS, goldens, surroundings


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the results, whose folder is neutral in every text."""
    return Path(shutil.copytree(RESULTS, tmp_path_factory.mktemp("goldens") / "results"))


@pytest.mark.parametrize("name", sorted(goldens()))
def test_nothing_changed(name: str, results: Path) -> None:
    expected = (EXPECTED / name).read_text()
    with surroundings(results):
        made = goldens()[name]()
    changed = difflib.unified_diff(expected.splitlines(), made.splitlines(), "expected", "made now", lineterm="")
    assert made == expected, "\n".join(list(changed)[:60])


def test_every_golden_is_made() -> None:
    assert {path.name for path in EXPECTED.iterdir()} == goldens().keys()

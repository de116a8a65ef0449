"""No number changes, and no sentence that a user sees, unless the change of a golden says so.

After a change that is meant: `python -m tests.goldens.write`, and the diff belongs to the commit.
"""

from __future__ import annotations

import difflib
import re
import shutil
from pathlib import Path

import pytest

from dlemu.contrib.mlperf.tests import broken_rules
from tests.goldens.render import EXPECTED, RESULTS, TOGETHER, goldens, surroundings

_MOST_LINES = 60


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the results, whose folder is neutral in every text."""
    return Path(shutil.copytree(RESULTS, tmp_path_factory.mktemp("goldens") / "results"))


@pytest.mark.parametrize("name", sorted(goldens()))
def test_nothing_changed(name: str, results: Path) -> None:
    expected = (EXPECTED / name).read_text()
    with surroundings(results):
        made = goldens()[name]()
    if made != expected:
        diff = list(difflib.unified_diff(expected.splitlines(), made.splitlines(), "expected", "made now", lineterm=""))
        more = f"\n... {len(diff) - _MOST_LINES} more lines" if len(diff) > _MOST_LINES else ""
        pytest.fail("\n".join(diff[:_MOST_LINES]) + more, pytrace=False)


def test_one_of_a_kind_has_its_noun_in_the_singular() -> None:
    """`1 ranks`: a number that is always in front of a plural. What follows a 1 here is no noun, or an abbreviation."""
    others = {"1 ms", "1 s", "1 passes", "1 us", "1 has", "1 ends"}
    texts = {path.name: path.read_text() for path in (*EXPECTED.iterdir(), broken_rules.EXPECTED)}
    found = {(name, words) for name, text in texts.items() for words in re.findall(r"(?<![\w.,=-])1 [a-z]+s\b", text)}
    assert {(name, words) for name, words in found if words not in others} == set()
    assert found, "nothing was searched"


def test_every_golden_is_made() -> None:
    assert {path.name for path in EXPECTED.iterdir()} == goldens().keys()
    assert set(TOGETHER) <= {path.name for path in RESULTS.iterdir()}

"""A share of `scripts/forge`: no kind of forgery passes, and honest trees are let pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlemu.mlperf.check.judge import check_folder
from tests.forging.forge import forge, make_base
from tests.forging.kinds import KINDS


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An honest submission of training and checkpoints."""
    return make_base("both", tmp_path_factory.mktemp("forging") / "tree")


def test_an_honest_tree_of_both_benchmarks_has_no_error(tree: Path) -> None:
    checked = check_folder(str(tree))
    assert not [one for one in checked.findings if one.finding.severity == "error"]
    assert len(checked.results) == len(checked.checkpoints) == len(checked.submissions) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [forgery.name for forgery in KINDS])
def test_no_kind_of_forgery_passes(tree: Path, name: str) -> None:
    outcomes = [one for one in forge("both", tree, name) if one.name == name]
    if not outcomes:
        pytest.skip("the tree has nothing of the kind")
    assert not [one for one in outcomes if one.missed]


def test_the_judge_of_forgeries_can_say_missed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgery that changes nothing is missed: the count can fail."""
    from tests.forging import forge as module
    from tests.forging.kinds import Forgery

    nothing = Forgery("nothing", frozenset({"time.year"}), lambda root: None)
    monkeypatch.setattr(module, "forgeries", lambda base, tree: iter([nothing]))
    (outcome,) = module.forge("both", tree)
    assert outcome.missed

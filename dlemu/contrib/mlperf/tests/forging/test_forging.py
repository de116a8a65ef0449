"""A share of `scripts/forge`: no kind of forgery passes, and honest trees are let pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlemu.contrib.mlperf.check.judge import check_folder
from dlemu.contrib.mlperf.rules.known import known_rules
from dlemu.contrib.mlperf.tests.forging.forge import OTHER_BASES, Workshop, forge, make_base
from dlemu.contrib.mlperf.tests.forging.kinds import KINDS, Forgery


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base("both", tmp_path_factory.mktemp("forging") / "tree")


@pytest.fixture(scope="module")
def workshops(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Workshop]:
    """That submission, one in the shape of a published one that has all four benchmarks, and one of v2.0."""
    made = tmp_path_factory.mktemp("forging")
    trees = {"both": tree} | {name: make_base(name, made / name) for name in OTHER_BASES}
    return {name: Workshop(each, str(tmp_path_factory.mktemp("forged"))) for name, each in trees.items()}


def test_a_tree_is_honest_again_after_each_forgery(workshops: dict[str, Workshop]) -> None:
    for workshop in (workshops["both"], workshops["published"]):
        assert all(workshop.forged(forgery) for forgery in KINDS[:4])
        assert workshop.forged(NOTHING) == frozenset()


def test_an_honest_tree_of_both_benchmarks_has_no_error(tree: Path) -> None:
    checked = check_folder(str(tree))
    assert not [one for one in checked.findings if one.severity == "error"]
    assert [result.benchmark for result in checked.results] == ["training", "checkpointing"]
    assert len(checked.submissions) == 1


@pytest.mark.parametrize("forgery", KINDS, ids=lambda kind: kind.name)
def test_no_kind_of_forgery_passes(workshops: dict[str, Workshop], forgery: Forgery) -> None:
    """Each is told of by a rule that it names, in the first tree that has anything of its kind."""
    for base, workshop in workshops.items():
        found = workshop.forged(forgery) if forgery.fits(base) else None
        if found is not None:
            assert forgery.told_by(found), found
            return
    assert forgery.name in ONLY_REHEARSED
    pytest.skip("only the tree of a rehearsal has anything of the kind: scripts/forge --tree")


ONLY_REHEARSED = {"sums of a rehearsal are forged"}


NOTHING = Forgery("nothing", frozenset({"time.year"}), lambda root: None)


def test_the_judge_of_forgeries_can_say_missed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgery that changes nothing is missed: the count can fail."""
    from dlemu.contrib.mlperf.tests.forging import forge as module

    monkeypatch.setattr(module, "forgeries", lambda base, tree: iter([NOTHING]))
    (outcome,) = forge("both", tree)
    assert outcome.missed


def test_each_rule_is_broken_here_or_in_a_test_of_its_own() -> None:
    here = {rule.rpartition(":")[2] for forgery in KINDS for rule in forgery.rules}
    tests = [path.read_text() for path in Path(__file__).parents[1].glob("test_*.py")]
    elsewhere = {rule for rule in known_rules() if any(f'"{rule}"' in text for text in tests)}
    assert known_rules().keys() - here - elsewhere == set()

"""The proof holds its own arithmetic, and dlemu holds in a short case of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.parts import needs_all_parts


@pytest.mark.parametrize(
    ("measured", "how", "holds"),
    [
        (78.1, {"within": 2}, True),
        (77.9, {"within": 2}, False),
        (78.5, {"within": 2, "percent": True}, True),
        (60.0, {"within": 1, "at_most": True}, True),
        (81.1, {"within": 1, "at_most": True}, False),
        (None, {"within": 2}, False),
    ],
)
def test_a_check_holds_within_its_bound(
    module: Callable[[str], Any], measured: float | None, how: dict[str, Any], holds: bool
) -> None:
    check = module("check").Check(case="c", what="au", theory=80.0, measured=measured, unit="%", **how)
    assert check.holds == holds
    assert check.cells[-1] == ("ok" if holds else "MISSED")


@needs_all_parts
def test_every_group_was_measured(module: Callable[[str], Any]) -> None:
    kept = Path(__file__).parents[2] / "docs" / "evidence" / "validation"
    assert [name for name in module("__main__").GROUPS if not (kept / f"{name}.json").exists()] == []


# Predictions of published results: the committed numbers, one pair as an example, and what is held against them.


def test_each_result_is_predicted_from_its_storage_s_other_one(module: Callable[[str], Any]) -> None:
    published = module("published")
    found = published.pairs()
    assert len(found) == published.PAIRS.read_text().count("\n") - 1 == 34
    for source, target in found:
        accelerators = {of.run.workload.accelerator for of in (source, target)}
        assert accelerators == {"a100", "h100"}
        assert len(target.run.epoch_seconds) == len(target.run.first_seconds) == 5
        rate = target.run.workload.dataset.num_files_train / target.run.epoch_seconds[0]
        assert target.samples_per_second == pytest.approx(rate, rel=0.05)
        assert 0.7 * target.demand < target.samples_per_second < target.demand


@pytest.mark.slow
def test_errors_of_predictions_are_held_against_what_is_wanted(module: Callable[[str], Any]) -> None:
    published = module("published")
    small = min(published.pairs(), key=lambda pair: sum(result.run.workload.dataset.num_files_train for result in pair))
    pair = published.predict_one(*small)
    assert pair.check.holds
    assert abs(pair.off_percent) < 3
    assert abs(pair.au_off) < 3
    held = {check.what.partition(" (")[0]: check.holds for check in published.checks([pair])}
    assert held["samples/s, mean error"]
    worse = replace(pair, target=replace(pair.target, samples_per_second=2 * pair.target.samples_per_second))
    held = {check.what.partition(" (")[0]: check.holds for check in published.checks([worse])}
    assert not held["samples/s, mean error"]
    assert not held["intervals of samples/s that miss the truth"]

"""Stragglers: who made the others wait, how much, and when."""

from __future__ import annotations

import pytest
from hypothesis import given

from dlemu.jobs.training.steplog import StepRows
from dlemu.metrics.au import au_percent
from dlemu.metrics.stragglers import find_stragglers
from tests.metrics.test_loss import any_rows, make_steps


def test_one_slow_rank_is_named_with_its_steps_and_its_loss() -> None:
    rows = make_steps([[0.0, 0.0, 30.0, 0.0]] * 3 + [[0.0] * 4] + [[0.0, 10.0, 30.0, 0.0]])
    (found,) = find_stragglers(rows, (0,) * 4, ("here",))
    assert found.numbers == {
        "rank": 2,
        "host": "here",
        "steps": 4,
        "mainly": "reading",
        "mean_delay_ms": pytest.approx((3 * 30 + 20) / 4),
        "loss_percent": pytest.approx(100 * (3 * 30 + 20) / (4 * 40 + 10)),
    }


def test_ranks_that_are_slow_in_turns_are_not_named() -> None:
    rows = make_steps([[30.0 if rank == step % 4 else 0.0 for rank in range(4)] for step in range(12)])
    assert find_stragglers(rows, (0,) * 4, ("here",)) == []


def test_all_slow_together_are_not_named() -> None:
    assert find_stragglers(make_steps([[30.0] * 4] * 5), (0,) * 4, ("here",)) == []
    assert find_stragglers(make_steps([[30.0]] * 5), (0,), ("here",)) == []


def test_a_slow_host_is_named_though_none_of_its_ranks_is_slower_than_its_neighbour() -> None:
    rows = make_steps([[0.0, 0.0, 30.0, 30.0]] * 4)
    (found,) = find_stragglers(rows, (0, 0, 1, 1), ("fast", "slow"))
    assert ("rank" in found.numbers, found.numbers["host"], found.numbers["steps"]) == (False, "slow", 4)
    assert found.numbers["loss_percent"] == pytest.approx(75)


def test_longer_computations_are_no_delay() -> None:
    rows = make_steps([[0.0, 0.0]] * 4, [[10, 90]] * 4)
    assert find_stragglers(rows, (0, 0), ("here",)) == []


@given(rows=any_rows())
def test_nobody_causes_more_than_was_lost(rows: StepRows) -> None:
    ranks = int(rows["rank"].max()) + 1
    found = [one.numbers for one in find_stragglers(rows, [rank % 2 for rank in range(ranks)], ("a", "b"))]
    for of_ranks in (True, False):
        caused = sum(float(one["loss_percent"] or 0) for one in found if ("rank" in one) == of_ranks)
        assert caused <= 100 - au_percent(rows) + 1e-9

"""Stragglers: who made the others wait, how much, and when; and one slow folder among many is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.metrics.au import au_percent
from dlemu.metrics.stragglers import find_slow_folders, find_stragglers
from dlemu.plan.samples import RankPlan, hash_samples
from tests.metrics.test_loss import any_rows, make_steps
from tests.plan.plans import make_plan


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
    assert not list(find_stragglers(rows, (0,) * 4, ("here",)))


def test_all_slow_together_are_not_named() -> None:
    assert not list(find_stragglers(make_steps([[30.0] * 4] * 5), (0,) * 4, ("here",)))
    assert not list(find_stragglers(make_steps([[30.0]] * 5), (0,), ("here",)))


def test_longer_computations_are_no_delay() -> None:
    rows = make_steps([[0.0, 0.0]] * 4, [[10, 90]] * 4)
    assert not list(find_stragglers(rows, (0, 0), ("here",)))


@given(rows=any_rows())
def test_nobody_causes_more_than_was_lost(rows: StepRows) -> None:
    ranks = int(rows["rank"].max()) + 1
    found = [one.numbers for one in find_stragglers(rows, [rank % 2 for rank in range(ranks)], ("a", "b"))]
    for of_ranks in (True, False):
        caused = sum(float(one["loss_percent"] or 0) for one in found if ("rank" in one) == of_ranks)
        assert caused <= 100 - au_percent(rows) + 1e-9


FOLDERS = [str(number) for number in range(8)]
PLAN = make_plan(num_files=800, num_samples_per_file=1, batch_size=4, ranks=2, file_shuffle=True, seed=1)


def read_from(ms_by_folder: list[float], noise: str = "uniform") -> StepRows:
    """Two epochs of two ranks, each sample's time that of its folder times a draw of mean one."""
    random = np.random.default_rng(1)
    rows = np.zeros(2 * PLAN.ranks * PLAN.steps_per_epoch, STEP_DTYPE)
    places = np.indices((2, PLAN.ranks, PLAN.steps_per_epoch)).reshape(3, -1)
    for row, epoch, rank, step in zip(rows, *places, strict=True):
        samples = RankPlan(PLAN, int(rank)).sample_ids(int(epoch) + 1, int(step) + 1)
        draws = random.uniform(0, 2, 4) if noise == "uniform" else np.minimum(random.pareto(1.5, 4) / 2, 25)
        took_ms = (np.array(ms_by_folder)[samples % len(ms_by_folder)] * draws).sum()
        row["epoch"], row["rank"], row["step"], row["block"] = epoch + 1, rank, step + 1, 1
        row["read_ns"], row["samples"], row["sample_hash"] = took_ms * 1e6, 4, hash_samples(samples)
    return rows


@pytest.mark.parametrize("noise", ["uniform", "pareto"])
def test_the_slow_one_is_named_with_what_a_sample_takes(noise: str) -> None:
    (slow,) = find_slow_folders(read_from([5.0] * 5 + [30.0] + [5.0] * 2, noise), PLAN, FOLDERS)
    assert slow.numbers == {
        "folder": "5",
        "ms_per_sample": pytest.approx(30, rel=0.25),
        "others_ms_per_sample": pytest.approx(5, rel=0.35),
    }


@pytest.mark.parametrize("noise", ["uniform", "pareto"])
@pytest.mark.parametrize("ms_by_folder", [[5.0] * 8, [5.0] * 7 + [7.0], [5.0, 20.0] * 4, [5.0] * 5 + [30.0] * 3])
def test_folders_that_are_alike_or_slow_by_halves_are_not_named(ms_by_folder: list[float], noise: str) -> None:
    assert not list(find_slow_folders(read_from(ms_by_folder, noise), PLAN, FOLDERS))


def test_batches_of_another_order_or_too_few_tell_nothing() -> None:
    rows = read_from([5.0] * 7 + [50.0])
    assert list(find_slow_folders(rows, PLAN, FOLDERS))
    assert not list(find_slow_folders(rows, replace(PLAN, seed=2), FOLDERS))
    assert not list(find_slow_folders(rows[:60], PLAN, FOLDERS))
    assert not list(find_slow_folders(rows, PLAN, []))
    assert not list(find_slow_folders(rows[:0], PLAN, FOLDERS))

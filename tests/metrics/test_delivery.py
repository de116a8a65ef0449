"""Each sample once an epoch: what the workers delivered, by hashes, against what was planned."""

from __future__ import annotations

import numpy as np
import pytest

from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.metrics.cache import each_sample_once
from dlemu.plan.samples import Plan, hash_samples

PLAN = Plan(
    num_files=7,
    num_samples_per_file=5,
    batch_size=3,
    ranks=2,
    file_shuffle=True,
    sample_shuffle=False,
    seed=9,
    seed_change_epoch=True,
)
"""35 samples: 5 steps of 2 x 3, and 5 samples that no rank reads."""


def delivered(epoch: int, steps: int) -> StepRows:
    """What workers send that do as they are told."""
    rows = np.zeros(steps * PLAN.ranks, STEP_DTYPE)
    for at, (rank, step) in enumerate((rank, step) for rank in range(PLAN.ranks) for step in range(1, steps + 1)):
        samples = PLAN.sample_ids(rank, epoch, step)
        rows[at]["rank"], rows[at]["epoch"], rows[at]["step"] = rank, epoch, step
        rows[at]["samples"], rows[at]["sample_hash"] = len(samples), hash_samples(samples)
    return rows


@pytest.mark.parametrize(("steps", "samples"), [(5, 30), (4, 24), (1, 6)])
@pytest.mark.parametrize("epoch", [1, 2])
def test_what_was_planned_was_delivered_in_whatever_order(steps: int, samples: int, epoch: int) -> None:
    rows = delivered(epoch, steps)
    assert each_sample_once(PLAN, epoch, steps, rows) is True
    assert each_sample_once(PLAN, epoch, steps, rows[::-1]) is True


def test_another_epochs_samples_or_one_of_them_twice_is_not_each_once() -> None:
    assert each_sample_once(PLAN, 1, 4, delivered(2, 4)) is False
    twice = delivered(1, 5)
    twice[3]["sample_hash"] = twice[2]["sample_hash"]
    assert each_sample_once(PLAN, 1, 5, twice) is False


def test_samples_that_are_not_counted_were_not_read() -> None:
    fewer = delivered(1, 5)
    fewer[0]["samples"] = 2
    assert each_sample_once(PLAN, 1, 5, fewer) is False


def test_of_an_epoch_that_was_cut_short_nothing_is_said() -> None:
    rows = delivered(1, 5)
    assert each_sample_once(PLAN, 1, 5, rows[:-1]) is None
    assert each_sample_once(PLAN, 1, 5, rows[:0]) is None

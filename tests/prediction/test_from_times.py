"""What the times of epochs tell of a storage where no reads were kept, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from datagen.errors import UserError
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.calibration import Calibration, given_speed
from dlemu.jobs.training.prediction.from_times import ForeignRun, calibrate_from_times
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.model_run import Model
from tests.prediction.test_calibration import workload

DEMAND = 2 * 4 / 0.05
"""MB/s of the two accelerators of `workload`."""


def synchronous() -> Workload:
    asked = workload(steps=200)
    return replace(asked, train=replace(asked.train, synchronous=True))


def timed(known: Calibration, *, first: bool = True) -> ForeignRun:
    """The times of a run whose storage and host are known."""
    asked = synchronous()
    outcome = Model(asked, known).run(2).outcome
    waits = (outcome.time_to_first_batch_seconds,) * 3 if first else ()
    return ForeignRun(
        folder="x",
        workload=asked,
        ranks=2,
        hosts=1,
        epoch_seconds=tuple(outcome.training_seconds * np.array([0.99, 1.0, 1.01])),
        first_seconds=waits,
    )


def test_a_storage_that_limits_is_found_by_the_time_of_epochs() -> None:
    for first in (True, False):
        found = calibrate_from_times(timed(given_speed(0.7 * DEMAND, cores=4), first=first))
        assert found.saturated
        assert found.curve[0].mb_per_second == pytest.approx(0.7 * DEMAND, rel=0.02)
        assert 0.5 < found.half_width_percent < 5


def test_a_storage_that_does_not_limit_is_found_by_the_first_step_and_the_rest_is_the_hosts() -> None:
    given = given_speed(2 * DEMAND, cores=4)
    found = calibrate_from_times(timed(replace(given, costs=replace(given.costs, step_seconds=0.01))))
    assert found.curve[0].mb_per_second == pytest.approx(2 * DEMAND, rel=0.05)
    assert found.costs.step_seconds == pytest.approx(0.01, rel=0.1)
    assert not found.saturated, "after the first wait, the host is all that takes longer than the computation"
    assert found.source == "the times of 3 epochs of x (2 accelerators)"


@pytest.mark.parametrize(
    ("times", "step_seconds", "first", "saturated"),
    [
        (50, 0, False, False),
        (50, 0.002, True, False),
        (3, 0, True, False),
        (1.5, 0.004, True, False),
        (0.8, 0, True, True),
        (0.9, 0.002, True, True),
        (0.6, 0, False, True),
    ],
)
def test_a_run_whose_storage_nobody_waited_for_gives_a_lower_bound(
    times: float, step_seconds: float, first: bool, saturated: bool
) -> None:
    given = given_speed(times * DEMAND, cores=4)
    run = timed(replace(given, costs=replace(given.costs, step_seconds=step_seconds)), first=first)
    found = calibrate_from_times(run)
    assert found.saturated == saturated
    answer = predict(run.workload, found, ranks=32, assumes_files=True)
    assert (answer.outcome != "fail" and "(AU at least " in answer.verdict) != saturated
    assert ("it gives at least this" in " ".join(answer.issues)) != saturated


def test_times_that_no_storage_could_give_are_refused() -> None:
    run = timed(given_speed(2 * DEMAND, cores=4))
    with pytest.raises(UserError, match="not those it ran with"):
        calibrate_from_times(replace(run, epoch_seconds=(1.0,)))

"""What the times of epochs tell of a storage where no reads were kept, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from datagen.errors import UserError
from dlemu.config.duration import Duration
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
    run = Model(asked, known).run(2)
    waits = (run.first_batch_seconds,) * 3 if first else ()
    return ForeignRun(
        folder="x",
        workload=asked,
        ranks=2,
        hosts=1,
        epoch_seconds=tuple(run.training_seconds * np.array([0.99, 1.0, 1.01])),
        first_seconds=waits,
    )


def test_a_storage_that_limits_is_found_by_the_time_of_epochs() -> None:
    for first in (True, False):
        found = calibrate_from_times(timed(given_speed(0.7 * DEMAND, cores=4), first=first))
        assert found.saturated
        assert found.curve[0].mb_per_second == pytest.approx(0.7 * DEMAND, rel=0.02)
        assert 0.5 < found.half_width_percent < 5


def slowed(times: float, step_seconds: float = 0.0005) -> Calibration:
    """A storage of that many times the demand, on a host that takes so long after each step of 50 ms."""
    given = given_speed(times * DEMAND, cores=4)
    return replace(given, costs=replace(given.costs, step_seconds=step_seconds))


def test_a_storage_that_does_not_limit_is_found_by_the_first_step_and_the_rest_is_a_share_of_the_step() -> None:
    found = calibrate_from_times(timed(slowed(2, 0.01)))
    assert found.source == "the times of 3 epochs of x (2 accelerators)"
    first = found.first_step
    assert first is not None
    assert first.mb_per_second == pytest.approx(2 * DEMAND, rel=0.05)
    assert first.step_share == pytest.approx(0.01 / 0.05, rel=0.1)


def test_accelerators_that_ask_for_as_much_a_second_lose_as_much() -> None:
    run = timed(slowed(2, 0.01))
    twice = replace(run.workload, train=replace(run.workload.train, computation_time=Duration(mean=0.025)))
    known = calibrate_from_times(run)
    same, half = (predict(asked, known, ranks=ranks) for asked, ranks in ((run.workload, 2), (twice, 1)))
    assert half.shown.au_dlio_v1_percent == pytest.approx(same.shown.au_dlio_v1_percent, abs=1)
    low, high = half.shown.samples_per_second_interval
    assert low < half.shown.samples_per_second < high < 1.2 * low


def test_more_readers_than_the_first_step_had_may_get_more_in_proportion() -> None:
    run = timed(slowed(1.3, 0.004))
    known = calibrate_from_times(run)
    within, beyond = (predict(run.workload, known, ranks=ranks, assumes_files=True) for ranks in (2, 8))
    assert "at least" not in within.verdict
    assert "(AU at least " in beyond.verdict
    assert "it gives at least this" in " ".join(beyond.issues)
    low, high = beyond.shown.samples_per_second_interval
    assert low < 1.4 * DEMAND < beyond.shown.samples_per_second <= high, (
        "from what it gave to what so many readers want"
    )
    search = predict(run.workload, known, assumes_files=True, most=16)
    assert search.max_accelerators is not None
    assert search.max_accelerators <= 3, "the largest count is that of the rate which lasted"
    assert "at least" in search.verdict
    for tried in search.counts:
        alone = predict(run.workload, known, ranks=tried.accelerators, assumes_files=True)
        assert tried.passed is not False or alone.outcome == "fail", "one answer whichever way it is asked for"


def test_one_slow_start_does_not_count() -> None:
    run = timed(slowed(2, 0.01))
    slow = replace(run, first_seconds=(10 * run.first_seconds[0], *run.first_seconds[1:]))
    assert calibrate_from_times(slow) == calibrate_from_times(run)


@pytest.mark.parametrize(("times", "saturated"), [(50, False), (0.6, True)])
def test_epochs_that_waited_for_nothing_give_a_lower_bound(times: float, saturated: bool) -> None:
    run = timed(slowed(times), first=False)
    found = calibrate_from_times(run)
    assert found.saturated == saturated
    answer = predict(run.workload, found, ranks=32, assumes_files=True)
    assert (answer.outcome != "fail" and "(AU at least " in answer.verdict) != saturated
    assert ("it gives at least this" in " ".join(answer.issues)) != saturated


def test_times_that_no_storage_could_give_are_refused() -> None:
    run = timed(given_speed(2 * DEMAND, cores=4))
    with pytest.raises(UserError, match="not those it ran with"):
        calibrate_from_times(replace(run, epoch_seconds=(1.0,)))

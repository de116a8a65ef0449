"""The answer: the most that pass, its interval, what limits it, and the line of arithmetic beside it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from datagen.errors import UserError
from dlemu.config.duration import NO_TIME, Duration
from dlemu.prediction.calibration import Calibration, given_speed
from dlemu.prediction.curve import CurvePoint
from dlemu.prediction.make_prediction import predict
from tests.prediction.test_calibration import workload

DEMAND = 4 / 0.05
"""MB/s of one accelerator of these tests: 4 samples of 1 MB in 50 ms."""


def test_the_most_that_pass_is_what_bandwidth_feeds() -> None:
    asked = workload(ranks=20, steps=100)
    answer = predict(asked, given_speed(10.5 * 0.9 * DEMAND, cores=4))
    assert answer.max_accelerators == 10
    assert answer.max_accelerators_interval is not None
    low, high = answer.max_accelerators_interval
    assert low <= 10 <= high
    assert answer.null_model.max_accelerators == 10
    assert answer.accelerators == 10
    assert [count.accelerators for count in answer.counts][-1] == max(high, 11)
    assert answer.limited_by.what == "storage"
    assert "10" in answer.verdict
    assert answer.outcome == "pass"


def test_latency_is_what_the_null_model_does_not_know() -> None:
    """50 ms a read and one reader: the storage has plenty for more readers, the accelerator has half."""
    asked = workload(ranks=1, steps=150, read_threads=1)
    far = Calibration(
        source="made",
        curve=(CurvePoint(readers=1, mb_per_second=40.0), CurvePoint(readers=64, mb_per_second=2560.0)),
        saturated=True,
        half_width_percent=0.0,
    )
    answer = predict(asked, far, ranks=1)
    assert answer.au_percent == pytest.approx(50, abs=2)
    assert answer.null_model.au_percent == 100.0
    assert answer.limited_by.what == "loader"
    assert (answer.passed, answer.outcome) == (False, "fail")


def test_decoding_is_the_hosts() -> None:
    asked = workload(ranks=2, steps=100)
    busy = replace(given_speed(10_000.0, cores=1), decode_seconds_per_sample=0.02)
    answer = predict(asked, busy, ranks=2)
    assert answer.limited_by.what == "host CPU"
    assert predict(asked, busy, ranks=2, hosts=4).au_percent > answer.au_percent + 20


def test_a_verdict_at_the_threshold_stays_open() -> None:
    asked = workload(ranks=4, steps=200)
    answer = predict(asked, given_speed(4 * 0.9 * DEMAND, cores=4), ranks=4)
    low, high = answer.au_sustained_interval_percent
    assert low < 90 <= high
    assert (answer.passed, answer.outcome) == (None, "undecided")


def test_thousands_of_accelerators_are_predicted_by_a_part_of_them() -> None:
    asked = workload(ranks=2000, steps=12)
    answer = predict(asked, given_speed(2000 * 0.8 * DEMAND, cores=64), ranks=2000)
    assert answer.au_sustained_percent == pytest.approx(80, abs=3)
    low, high = answer.samples_per_second_interval
    assert low < answer.samples_per_second < high


def test_no_count_has_fewer_steps_than_an_au_needs() -> None:
    """The first step of an epoch is in no AU: of one step there is none, however fast the storage is."""
    answer = predict(workload(ranks=2, steps=10), given_speed(1e6, cores=64))
    assert answer.max_accelerators == 10
    assert all(math.isfinite(count.au_percent) for count in answer.counts)


def test_what_cannot_be_predicted_is_said() -> None:
    asked = workload(ranks=2, steps=10)
    with pytest.raises(UserError, match="nothing computes"):
        predict(replace(asked, train=replace(asked.train, computation_time=NO_TIME)), given_speed(1.0, cores=1))
    with pytest.raises(UserError, match="predict at most 10"):
        predict(asked, given_speed(1.0, cores=1), ranks=11)
    drawn = replace(asked, train=replace(asked.train, computation_time=Duration(type="exponential", scale=0.05)))
    assert 0 < predict(drawn, given_speed(1e5, cores=1), ranks=2).au_percent < 90, "draws differ: ranks wait"


def test_a_host_that_others_kept_busy_is_told() -> None:
    asked, known = workload(ranks=2, steps=60), given_speed(100.0, cores=4)
    assert not [issue for issue in predict(asked, known, ranks=2).issues if "cores were busy" in issue]
    busy = predict(asked, replace(known, busy_cores=1.7), ranks=2)
    assert [issue for issue in busy.issues if "1.7 of 4 cores were busy" in issue]

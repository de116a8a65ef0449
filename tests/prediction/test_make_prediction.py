"""The answer: the most that pass, its interval, what limits it, and the line of arithmetic beside it."""

from __future__ import annotations

from dataclasses import replace
from functools import partialmethod

import pytest

from datagen.errors import UserError
from dlemu.config.duration import NO_TIME, Duration
from dlemu.jobs.training.prediction import make_prediction
from dlemu.jobs.training.prediction.calibration import Calibration, CurvePoint, given_speed
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.model_run import MIN_STEPS, MOST_ROWS, Model
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
    assert answer.null_max_accelerators == 10
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
    assert answer.shown.au_percent == pytest.approx(50, abs=2)
    assert answer.shown.null_au_percent == 100.0
    assert answer.limited_by.what == "loader"
    assert (answer.shown.passed, answer.outcome) == (False, "fail")


def test_others_take_of_a_bandwidth_what_they_take() -> None:
    asked, storage = workload(ranks=20, steps=60), given_speed(10.5 * 0.9 * DEMAND, cores=4)
    left = predict(asked, replace(storage, others_mb_per_second=5 * 0.9 * DEMAND))
    alone = predict(asked, given_speed(5.5 * 0.9 * DEMAND, cores=4))
    assert left.max_accelerators == left.null_max_accelerators == alone.max_accelerators == 5
    assert left.shown.au_percent == pytest.approx(alone.shown.au_percent)
    assert left.shown.au_interval_percent[0] < alone.shown.au_interval_percent[0], (
        "2 % of more: what is left is less certain"
    )
    assert left.curve == storage.curve, "as it was found: the next question may have other jobs"


def test_decoding_is_the_hosts() -> None:
    asked = workload(ranks=2, steps=100)
    busy = replace(given_speed(10_000.0, cores=1), decode_seconds_per_sample=0.02)
    answer = predict(asked, busy, ranks=2)
    assert answer.limited_by.what == "host CPU"
    assert predict(asked, busy, ranks=2, hosts=4).shown.au_percent > answer.shown.au_percent + 20


def test_a_verdict_at_the_threshold_stays_open() -> None:
    asked = workload(ranks=4, steps=200)
    answer = predict(asked, given_speed(4 * 0.9 * DEMAND, cores=4), ranks=4)
    low, high = answer.shown.au_sustained_interval_percent
    assert low < 90 <= high
    assert (answer.shown.passed, answer.outcome) == (None, "undecided")


def test_thousands_of_accelerators_are_predicted_by_a_part_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of what users wait for is simulated."""
    monkeypatch.setattr(make_prediction, "INTERVAL_ROWS", make_prediction.INTERVAL_ROWS // 5)
    monkeypatch.setattr(Model, "run", partialmethod(Model.run, most_rows=MOST_ROWS // 5))
    asked = workload(ranks=2000, steps=12)
    answer = predict(asked, given_speed(2000 * 0.8 * DEMAND, cores=64), ranks=2000)
    assert answer.shown.au_sustained_percent == pytest.approx(80, abs=3)
    low, high = answer.shown.samples_per_second_interval
    assert low < answer.shown.samples_per_second < high


@pytest.mark.parametrize(
    ("feeds", "begins", "cut"),
    [
        (60, "predicted: at least 20 pass (AU 100.0 % +- 0.5): the dataset has files for no more", True),
        (21, "predicted: at least 20 pass (AU 94", True),
        (20, "predicted: 19 pass (AU 94", True),
        (5.5, "predicted: 5 pass (AU 98", False),
    ],
)
def test_where_files_end_is_no_limit_of_the_storage(feeds: float, begins: str, cut: bool) -> None:
    """They are enough for two steps of 20."""
    answer = predict(workload(ranks=20, steps=2), given_speed(feeds * 0.9 * DEMAND, cores=64))
    assert answer.verdict.startswith(begins)
    assert ("the dataset has files for no more" in answer.verdict) == cut
    assert answer.ended_by == ("files" if cut else None)


def test_files_are_assumed_for_a_storage_without_a_dataset() -> None:
    """80 files feed 10 accelerators for two steps; 15 need 4 x (30 + 2) x 15 for an epoch with a middle."""
    asked, storage = workload(ranks=2, steps=10), given_speed(15.5 * 0.9 * DEMAND, cores=64)
    answer = predict(asked, storage, assumes_files=True)
    assert answer.max_accelerators == answer.null_max_accelerators == 15
    assert answer.ended_by is None
    files = answer.accelerators * 4 * (MIN_STEPS + 2)
    given = replace(asked, dataset=replace(asked.dataset, num_files_train=20 * files))
    told = predict(given, storage, ranks=answer.accelerators, assumes_files=True)
    assert answer.shown.au_sustained_percent == pytest.approx(told.shown.au_sustained_percent, abs=1)
    assert predict(asked, storage, ranks=11, assumes_files=True).shown.passed
    parts = Model(asked, storage, assumes_files=True).run(40, most_rows=640, shrinks=True)
    assert (parts.ranks, parts.planned_steps) == (20, MIN_STEPS + 2)


def test_what_cannot_be_predicted_is_said() -> None:
    asked = workload(ranks=2, steps=10)
    with pytest.raises(UserError, match="any number of accelerators passes"):
        predict(replace(asked, train=replace(asked.train, computation_time=NO_TIME)), given_speed(1.0, cores=1))
    with pytest.raises(UserError, match=r"steps? x [0-9]+ accelerators .*predict at most 10"):
        predict(asked, given_speed(1.0, cores=1), ranks=11)
    own = replace(asked, dataset=replace(asked.dataset, source="folder", num_files_train=1, num_samples_per_file=1))
    with pytest.raises(
        UserError, match=r"the dataset has 1 sample, too few .* that an AU needs: name a folder with more files$"
    ):
        predict(own, given_speed(1.0, cores=1))
    short = replace(asked, train=replace(asked.train, total_training_steps=1))
    with pytest.raises(UserError, match=r"^train\.total_training_steps=1 leaves no step to count.* to 2 or more$"):
        predict(short, given_speed(1000.0, cores=1), ranks=2)
    often = replace(
        asked,
        workflow=replace(asked.workflow, checkpoint=True),
        checkpoint=replace(asked.checkpoint, steps_between_checkpoints=1),
    )
    with pytest.raises(UserError, match=r"^checkpoint\.steps_between_checkpoints=1 leaves no step to count"):
        predict(often, given_speed(1000.0, cores=1))
    drawn = replace(asked, train=replace(asked.train, computation_time=Duration(type="exponential", scale=0.05)))
    assert 0 < predict(drawn, given_speed(1e5, cores=1), ranks=2).shown.au_percent < 90, "draws differ: ranks wait"


def test_what_would_gain_most_is_the_limit() -> None:
    """Half of what is asked for: twice the storage brings the other half, nothing else brings any."""
    answer = predict(workload(ranks=2, steps=200), given_speed(DEMAND, cores=4), ranks=2, hosts=3)
    assert (answer.limited_by.what, answer.limited_by.confidence) == ("storage", "high")
    asked = answer.question
    assert (asked.hosts, asked.verdict, asked.threshold_percent) == (3, "sustained", 90.0)
    assert (asked.workload, asked.accelerator) == ("handmade", "")


def test_numbers_of_the_null_model_are_one_line_of_arithmetic() -> None:
    """X = 3.3 accelerators' worth: 3 would pass at 100 %, 3 at 90 % (3.3 / 0.9 = 3.67)."""
    answer = predict(workload(ranks=6, steps=60), given_speed(3.3 * DEMAND * 1.000498, cores=4), ranks=6)
    assert answer.shown.needed_mb_per_second == pytest.approx(6 * 0.9 * DEMAND, rel=1e-3)
    assert answer.null_max_accelerators == 3
    assert answer.shown.null_au_percent == pytest.approx(100 * 3.3 / 6, rel=1e-4)


def test_a_search_stops_at_the_most_that_may_be_tried() -> None:
    answer = predict(workload(ranks=20, steps=60), given_speed(1e5, cores=4), most=7)
    assert (answer.max_accelerators, answer.max_accelerators_interval) == (7, (7, 7))
    assert [count.accelerators for count in answer.counts] == [7]
    assert answer.ended_by == "most"
    assert answer.verdict.endswith(": --most 7 was the limit")
    open_end = predict(workload(ranks=20, steps=60), replace(given_speed(5 * DEMAND, cores=4), saturated=False), most=9)
    assert open_end.max_accelerators_interval is not None
    assert open_end.max_accelerators_interval[1] == 9
    assert open_end.max_accelerators == 5

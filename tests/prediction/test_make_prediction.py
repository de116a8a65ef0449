"""The answer: the most that pass, its interval and its limit, never above what the supply sustains."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partialmethod

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from datagen.errors import UserError
from dlemu.config.duration import NO_TIME, Duration
from dlemu.config.schema import Metric
from dlemu.jobs.training.prediction import make_prediction
from dlemu.jobs.training.prediction.batches import batch_bytes
from dlemu.jobs.training.prediction.calibration import Calibration, CurvePoint, given_speed
from dlemu.jobs.training.prediction.from_reads import calibrate_from_run
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.model_run import MAX_ROWS, MIN_STEPS, Model
from dlemu.jobs.training.prediction.prediction import PARTS, PredictedCount
from dlemu.metrics.verdict import VerdictBy
from tests.plan.plans import make_plan
from tests.prediction.test_calibration import simulated_run, workload
from tests.runs import present

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
    assert (answer.limited_by.what, answer.limited_by.confidence) == ("storage", "high")
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
    assert (answer.limited_by.what, answer.limited_by.confidence) == ("loader", "high")
    assert answer.limited_by.evidence[0].startswith("the AU with 1 accelerator is ")
    assert (answer.shown.passed, answer.outcome) == (False, "fail")


def test_others_take_of_a_bandwidth_what_they_take() -> None:
    asked, storage = workload(ranks=20, steps=60), given_speed(10.5 * 0.9 * DEMAND, cores=4)
    left = predict(asked, replace(storage, others_mb_per_second=5 * 0.9 * DEMAND))
    alone = predict(asked, given_speed(5.5 * 0.9 * DEMAND, cores=4))
    assert left.max_accelerators == left.null_max_accelerators == alone.max_accelerators == 5
    assert left.shown.au_percent == pytest.approx(alone.shown.au_percent)
    assert left.shown.au_interval_percent[0] < alone.shown.au_interval_percent[0], "what is left is less certain"
    assert left.curve == storage.curve, "as it was found: the next question may have other jobs"


def test_decoding_is_the_hosts() -> None:
    asked = workload(ranks=2, steps=100)
    busy = replace(given_speed(10_000.0, cores=1), decode_seconds_per_sample=0.02)
    answer = predict(asked, busy, ranks=2)
    assert (answer.limited_by.what, answer.limited_by.confidence) == ("host CPU", "high")
    more = predict(asked, busy, ranks=2, hosts=4)
    assert more.shown.au_percent > answer.shown.au_percent + 20
    assert (more.question.hosts, more.question.verdict, more.question.threshold_percent) == (4, "sustained", 90.0)


def test_a_verdict_at_the_threshold_stays_open() -> None:
    asked = workload(ranks=4, steps=200)
    answer = predict(asked, given_speed(4 * 0.9 * DEMAND, cores=4), ranks=4)
    low, high = answer.shown.au_sustained_interval_percent
    assert low < 90 <= high
    assert (answer.shown.passed, answer.outcome) == (None, "undecided")


def test_thousands_of_accelerators_are_predicted_by_a_part_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of what users wait for is simulated."""
    monkeypatch.setattr(make_prediction, "INTERVAL_ROWS", make_prediction.INTERVAL_ROWS // 5)
    monkeypatch.setattr(Model, "run", partialmethod(Model.run, max_rows=MAX_ROWS // 5))
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
    parts = Model(asked, storage, assumes_files=True).run(40, max_rows=640, shrinks=True)
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


@pytest.mark.parametrize(("by", "au"), [("sustained", 82.1), ("rules", 87.2), ("au", 84.6)])
def test_the_au_that_is_shown_is_the_one_that_is_judged(by: VerdictBy, au: float) -> None:
    """By all steps 5 accelerators fail at 87 %; the 98 % that they sustain were shown, and limited by nothing."""
    asked = replace(workload(ranks=8, steps=10), metric=Metric(verdict=by))
    answer = predict(asked, given_speed(5.5 * 0.9 * DEMAND, cores=4))
    assert (answer.limited_by.what, answer.limited_by.evidence[0][-6:]) == ("storage", f"{au} %")
    assert f"AU {au:.0f} % ±" in present(PARTS.screen)(answer, "").lines[1].value


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
    assert present(open_end.max_accelerators_interval)[1] == 9
    assert open_end.max_accelerators == 5


def check_intervals(count: PredictedCount) -> None:
    for middle, (low, high) in (
        (count.au_percent, count.au_interval_percent),
        (count.au_sustained_percent, count.au_sustained_interval_percent),
    ):
        assert 0 <= low <= middle <= high <= 100
    low, high = count.samples_per_second_interval
    assert 0 <= low <= count.samples_per_second <= high


@settings(max_examples=30, deadline=None)
@example(ranks=1, steps=3, read_threads=2, prefetch_size=1, share=2.0, stdev=0.5, by="sustained")
@given(
    ranks=st.integers(1, 8),
    steps=st.integers(2, 30),
    read_threads=st.integers(0, 5),
    prefetch_size=st.integers(1, 6),
    share=st.floats(0.05, 2.0),
    stdev=st.sampled_from([0.0, 0.5]),
    by=st.sampled_from(["sustained", "rules"]),
)
def test_no_count_is_predicted_above_what_the_storage_sustains(
    ranks: int, steps: int, read_threads: int, prefetch_size: int, share: float, stdev: float, by: VerdictBy
) -> None:
    """However short the epochs are and however much is read ahead of them."""
    asked = workload(ranks=ranks, steps=steps, read_threads=read_threads, prefetch_size=prefetch_size)
    sized = replace(asked.dataset, record_length_bytes_stdev=stdev * asked.dataset.record_length_bytes)
    asked = replace(asked, dataset=sized, metric=replace(asked.metric, verdict=by))
    answer = predict(asked, given_speed(ranks * share * DEMAND, cores=4), ranks=ranks)
    assert answer.shown.au_sustained_percent <= answer.shown.null_au_percent + 1e-9
    assert not (answer.shown.passed and answer.shown.null_au_percent < answer.question.threshold_percent)
    check_intervals(answer.shown)


def test_an_epoch_that_is_read_ahead_as_a_whole_says_nothing_of_the_next() -> None:
    """Two steps an epoch on a tenth of what is asked for: the counted one is always there, an endless epoch starves."""
    asked = workload(ranks=20, steps=2, read_threads=4)
    answer = predict(asked, given_speed(20 * 0.1 * DEMAND, cores=4), ranks=20)
    assert answer.shown.au_percent == pytest.approx(100)
    assert answer.shown.au_sustained_percent == pytest.approx(10, abs=0.5)
    assert (answer.shown.passed, answer.limited_by.what) == (False, "storage")
    by_au = replace(asked, metric=replace(asked.metric, verdict="au"))
    assert predict(by_au, given_speed(20 * 0.1 * DEMAND, cores=4), ranks=20).shown.passed is None


@settings(max_examples=12, deadline=None)
@given(feeds=st.floats(0.3, 7.5), steps=st.integers(20, 60), width=st.sampled_from([0.0, 8.0, 50.0]))
@example(feeds=1.0, steps=40, width=8.0)  # one, perhaps
def test_rows_sentence_and_verdict_say_the_same(feeds: float, steps: int, width: float) -> None:
    known = replace(given_speed(feeds * 0.9 * DEMAND, cores=4), half_width_percent=width)
    answer = predict(workload(ranks=8, steps=steps), known)
    assert answer.max_accelerators is not None
    assert answer.max_accelerators_interval is not None
    low, high = answer.max_accelerators_interval
    rows = {count.accelerators: count.passed for count in answer.counts}
    assert low <= answer.max_accelerators <= high
    assert all(passed is True for number, passed in rows.items() if number == low)
    assert all(passed is None for number, passed in rows.items() if low < number <= high)
    assert rows.get(high + 1, False) is False
    assert answer.accelerators == (low or max(1, answer.max_accelerators))
    assert bool(answer.shown.passed) == (low > 0), "the exit status is 0 where a count passes"
    assert answer.outcome == ("pass" if low else "undecided" if high else "fail")
    numbers = [int(number) for number in re.findall(r"\d+(?= pass| is too| are too|\) is)|(?<=to )\d+", answer.verdict)]
    if low:
        assert answer.verdict.startswith(f"predicted: {low} pass")
        assert ("too close to call" in answer.verdict) == (high > low)
    elif high:
        assert answer.verdict.startswith("predicted: none is certain to pass")
    else:
        assert answer.verdict.startswith("predicted: not even 1 passes")
    if high > low:
        assert numbers[-1] == high
    for count in answer.counts:
        check_intervals(count)


@settings(max_examples=12, deadline=None)
@given(ranks=st.integers(1, 4), read_threads=st.integers(1, 5), times=st.floats(1.2, 60.0), steps=st.integers(40, 90))
def test_a_run_that_hardly_waited_predicts_itself(ranks: int, read_threads: int, times: float, steps: int) -> None:
    """What its readers did not read for want of room in their queues is no time that the host took."""
    asked = workload(ranks=ranks, steps=steps, read_threads=read_threads)
    fast = given_speed(ranks * times * DEMAND, cores=4)
    found = calibrate_from_run(simulated_run(asked, fast, ranks))
    measured = Model(asked, fast).run(ranks).figures
    assert measured.au_sustained_percent > 99
    assert found.costs.between_seconds < 0.001
    assert not found.saturated
    answer = predict(asked, found, ranks=ranks)
    assert answer.shown.au_sustained_percent == pytest.approx(measured.au_sustained_percent, abs=1)
    assert answer.shown.au_percent == pytest.approx(measured.au_percent, abs=1)
    assert answer.shown.passed is True
    for low, high in (answer.shown.au_sustained_interval_percent, answer.shown.au_interval_percent):
        assert low <= 100 == high
    assert answer.shown.samples_per_second_interval[1] >= ranks * 4 / 0.05


def test_a_worker_reads_a_row_group_whole_in_the_first_batch_that_has_rows_of_it() -> None:
    """Of groups of 20 rows, which batches of 10 meet in turn or, by streams, in the order 0, 3, 1, 4, 2, 5."""
    for workers, streams, shares in ((1, 1, [2, 0, 2, 0, 2, 0]), (2, 1, [1] * 6), (2, 2, [1.5, 1.5, 0, 1.5, 1.5, 0])):
        plan = make_plan(num_files=1, num_samples_per_file=60, batch_size=10, ranks=1, worker_streams=streams)
        found = batch_bytes(plan, np.array([100.0]), 1, 6, group_rows=20, workers=workers)
        assert found[0] / 1000 == pytest.approx(shares)

"""Nothing that is predicted is above what the supply sustains, and no answer says two things at once."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.calibration import given_speed
from dlemu.jobs.training.prediction.from_reads import calibrate_from_run
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.model_run import Model
from dlemu.jobs.training.prediction.prediction import PredictedCount
from dlemu.metrics.verdict import VerdictBy
from tests.prediction.test_calibration import simulated_run, workload
from tests.prediction.test_make_prediction import DEMAND


def check_intervals(count: PredictedCount) -> None:
    for middle, (low, high) in (
        (count.au_percent, count.au_interval_percent),
        (count.au_sustained_percent, count.au_sustained_interval_percent),
    ):
        assert 0 <= low <= middle <= high <= 100
    low, high = count.samples_per_second_interval
    assert 0 <= low <= count.samples_per_second <= high


def sized(asked: Workload, stdev: float) -> Workload:
    data = asked.dataset
    return replace(asked, dataset=replace(data, record_length_bytes_stdev=stdev * data.record_length_bytes))


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
    asked = sized(workload(ranks=ranks, steps=steps, read_threads=read_threads, prefetch_size=prefetch_size), stdev)
    asked = replace(asked, metric=replace(asked.metric, verdict=by))
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
@given(feeds=st.floats(0.3, 7.5), steps=st.integers(20, 60), width=st.sampled_from([0.0, 8.0]))
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
    measured = Model(asked, fast).run(ranks).outcome
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

"""What the steps of a run, or the times of its epochs, say of its storage; and what published times say of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from datagen.errors import UserError
from dlemu.config import load
from dlemu.config.duration import Duration
from dlemu.config.schema import Metric, Reader, Train, Workload
from dlemu.jobs.training.prediction.calibration import Calibration, flat, given_speed, max_mb_per_second
from dlemu.jobs.training.prediction.event_model import HostCosts
from dlemu.jobs.training.prediction.from_reads import Reads, calibrate_from_run
from dlemu.jobs.training.prediction.from_times import ForeignRun, calibrate_from_times
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.model_run import Model
from dlemu.jobs.training.prediction.run_prediction import Known, read_known
from dlemu.jobs.training.result import Run
from tests.runs import make_job, make_log, make_run, present


def simulated_run(workload: Workload, calibration: Calibration, ranks: int) -> Run:
    """A run whose steps the model made: its storage is known."""
    rows = Model(workload, calibration).run(ranks).rows
    job = make_job(ranks=ranks, epochs=1, steps=workload.dataset.num_files_train // ranks // 4)
    log = make_log(job)
    return Run("run", make_run(replace(job, workload=workload), log).facts, rows)


def workload(*, ranks: int = 2, steps: int = 150, step_seconds: float = 0.05, **reader: Any) -> Workload:
    job = make_job(ranks=ranks, epochs=1, steps=steps)
    return replace(
        job.workload,
        reader=Reader(batch_size=4, file_shuffle="seed", **({"read_threads": 2} | reader)),
        train=Train(epochs=1, computation_time=Duration(mean=step_seconds)),
        metric=Metric(verdict="sustained"),
    )


def test_a_run_that_waits_tells_the_bandwidth_and_predicts_itself() -> None:
    asked, truth = workload(), given_speed(100.0, cores=4)
    found = calibrate_from_run(simulated_run(asked, truth, 2))
    assert found.saturated
    assert max_mb_per_second(found.curve) == pytest.approx(100, rel=0.01)
    again = predict(asked, found, ranks=2)
    measured = Model(asked, truth).run(2).figures
    assert again.shown.au_percent == pytest.approx(measured.au_percent, abs=0.5)
    assert again.shown.samples_per_second == pytest.approx(measured.samples_per_second, rel=0.01)
    assert again.limited_by.what == "storage"


def test_a_run_that_never_waits_says_no_upper_end() -> None:
    asked = workload(steps=60)
    found = calibrate_from_run(simulated_run(asked, given_speed(5000.0, cores=4), 2))
    assert not found.saturated
    answer = predict(asked, found, ranks=3)
    assert answer.shown.au_sustained_interval_percent[1] == 100.0
    assert [finding.numbers["pattern"] for finding in answer.findings] == ["saturation"]
    assert "run that waits for data (--from RUN)" in answer.issues[0]
    more = predict(asked, replace(found, curve=flat(100.0)), ranks=3)
    assert (more.outcome, more.limited_by.what, more.limited_by.confidence) == ("undecided", "nothing", "low")
    assert "limited by" not in more.verdict


def test_a_knee_is_found_where_the_number_of_readers_varies() -> None:
    """Readers come and go: each gets 10 MB/s up to 4 of them, 40 MB/s together beyond."""
    random, now, begin, end = np.random.default_rng(1), 0.0, [], []
    for _ in range(300):
        count = int(random.integers(1, 9))
        took = 0.1 * max(1.0, count / 4)
        begin += [now] * count
        end += [now + took] * count
        now += took
    curve = Reads(np.array(begin), np.array(end), np.full(len(begin), 1_000_000), np.zeros(len(begin), int)).curve()
    first = curve[0]
    assert first.readers == 1
    assert first.mb_per_second == pytest.approx(10, rel=0.1)
    assert max_mb_per_second(curve) == pytest.approx(40, rel=0.05)


def test_a_run_tells_the_host_it_ran_on() -> None:
    asked = workload(steps=80, read_threads=3)
    asked = replace(asked, train=replace(asked.train, epochs=2))
    costs = HostCosts(hand_over_seconds=0.003, epoch_start_seconds=0.02, step_seconds=0.004)
    truth = replace(given_speed(100.0, cores=4), costs=costs, decode_seconds_per_sample=0.01)
    run = simulated_run(asked, truth, 2)
    found = calibrate_from_run(run)
    assert found.costs.hand_over_seconds == pytest.approx(0.003, rel=0.01)
    assert found.costs.epoch_start_seconds == pytest.approx(0.02, rel=0.01)
    assert found.costs.step_seconds == pytest.approx(0.004, rel=0.01)
    assert found.costs.between_seconds == pytest.approx(0, abs=1e-9)
    assert found.decode_seconds_per_sample == pytest.approx(0.01, rel=0.2)
    assert (found.cores, found.samples_per_read) == (4.0, 4), "of the host that the run was on"
    assert found.sample_bytes == pytest.approx(1e6, rel=0.01)
    assert found.bytes_factor == pytest.approx(1, rel=1e-6)
    assert found.source == "320 steps of run (2 x 3 readers)"
    assert found.half_width_percent < 5
    rows = np.array(run.rows)
    rows["app_bytes"] *= 2
    rows["cpu_ns"] = rows["decode_ns"] // 2
    changed = calibrate_from_run(Run("run", run.facts, rows))
    assert changed.bytes_factor == pytest.approx(2, rel=1e-6)
    assert changed.decode_seconds_per_sample == pytest.approx(found.decode_seconds_per_sample / 2, rel=1e-6)


def test_a_run_of_a_few_steps_is_refused() -> None:
    asked = workload(steps=3)
    with pytest.raises(UserError, match="wanted at least"):
        calibrate_from_run(simulated_run(asked, given_speed(100.0, cores=4), 2))


# Published by KIOXIA of two drives (unet3d on emulated V100, 24000 files, 5 epochs): seconds with 18 accelerators, and
# by how many percent one of the drives is faster with others, and by how many points the prediction may miss that.
PUBLISHED_SECONDS = {6107.0: 2906, 6963.0: 2552}  # by the MB/s that explain them
PUBLISHED_FASTER = {17: (11.9, 0.5), 16: (8.9, 2.5), 8: (1.3, 1.5)}


def test_published_times_of_one_count_predict_another() -> None:
    """At 17 within half a point; at 16 and 8 it misses by up to 2.5 points (docs/prediction.md)."""
    settings = ["workload=unet3d", "accelerator=v100", "dataset.num_files_train=24000", "train.epochs=1"]
    asked = load([*settings, "workflow.checkpoint=false"])

    def seconds(mb_per_second: float, ranks: int) -> float:
        return Model(asked, given_speed(mb_per_second, cores=64)).run(ranks, max_rows=20_000).training_seconds

    assert {speed: 5 * seconds(speed, 18) for speed in PUBLISHED_SECONDS} == pytest.approx(PUBLISHED_SECONDS, abs=1)
    for ranks, (percent, error) in PUBLISHED_FASTER.items():
        slower, faster = (seconds(speed, ranks) for speed in PUBLISHED_SECONDS)
        assert 100 * (1 - faster / slower) == pytest.approx(percent, abs=error)


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
    first = present(found.first_step)
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
    assert low < 1.4 * DEMAND < beyond.shown.samples_per_second <= high, "from what it gave to what is wanted"
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
    assert read_known("none", lambda _: slow) == Known(calibration=calibrate_from_times(run), workload=run.workload)


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

"""Formulas on numbers so few and so uneven that each can be checked by hand, and no other formula gives the same."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.config import load
from dlemu.jobs.checkpoint.analyse import STARVED_PERCENT, THREAD_PERCENT, WAIT_PERCENT, judge
from dlemu.jobs.checkpoint.summary import Caveat
from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.metrics.au import BlockTimes, Rated, over_blocks, over_ranks, rate_fork, rate_v1, rate_v2, rate_v3
from dlemu.metrics.cache import NOT_READ_PERCENT
from dlemu.metrics.checkpoint_rates import (
    GIB,
    asynchronous_au_percent,
    cost_percent,
    daly_seconds,
    shortest_interval_seconds,
    times_of,
    wasted_percent,
    young_seconds,
)
from dlemu.metrics.demand import demand, row_group_reads
from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.limit import BUSY_PERCENT
from dlemu.metrics.loss import find_causes, work_of, worker_time
from tests.results.handmade import checkpoint_run
from tests.runs import present

BLOCK = BlockTimes(
    load=np.array([9.0, 1.0, 2.0, 3.0, 4.0]),
    proc=np.array([16.0, 9.0, 12.0, 15.0, 20.0]),
    configured=np.array([6.0, 7.0, 8.0, 9.0, 10.0]),
    measured=np.array([7.0, 8.0, 10.0, 12.0, 16.0]),
    total=80.0,
)
"""Five steps, of which no two are alike, and 8 seconds that no step has."""


def test_dlio_v1_leaves_the_first_step_out_of_au_alone() -> None:
    rated = rate_v1(BLOCK, 3)
    assert rated.au == pytest.approx((7 + 8 + 9 + 10) / (80 - 16))
    assert rated.samples_per_second == pytest.approx(5 / 80 * 3)
    assert math.isnan(rate_v1(replace(BLOCK, total=16.0)).au)
    assert math.isnan(rate_v1(replace(BLOCK, total=0.0)).samples_per_second)


@pytest.mark.parametrize(
    ("start", "end", "measured", "left_out"),
    [
        (0, 0, 7 + 8 + 10 + 12 + 16, 0),
        (1, 0, 8 + 10 + 12 + 16, 16),
        (1, 1, 8 + 10 + 12, 16 + 20),
        (2, 2, 10, 16 + 9 + 15 + 20),
        (3, 0, 12 + 16, 16 + 9 + 12),
    ],
)
def test_dlio_2_takes_its_slice_from_both_ends(start: int, end: int, measured: float, left_out: float) -> None:
    rated = rate_v2(BLOCK, start, end, 4)
    assert rated.au == pytest.approx(measured / (80 - left_out))
    assert rated.au_percent == pytest.approx(100 * measured / (80 - left_out))
    assert rated.samples_per_second == pytest.approx((5 - 2) / (80 - left_out) * 4)
    forked = rate_fork(BLOCK, start, end, 4)
    assert forked.au == rated.au
    assert forked.samples_per_second == pytest.approx((5 - start - end) / (80 - left_out) * 4)


def test_dlio_of_v3_drops_at_least_the_last_step() -> None:
    assert rate_v3(BLOCK, 1, 0, 4) == rate_v2(BLOCK, 1, 1, 4)
    assert rate_v3(BLOCK, 1, 2, 4) == rate_v2(BLOCK, 1, 2, 4)


def test_where_every_step_is_left_out_there_is_no_au() -> None:
    assert rate_v2(BLOCK, 5, 0).au == 0.0, "the 8 seconds of no step are left"
    assert math.isnan(rate_v2(replace(BLOCK, total=72.0), 5, 0).au)
    assert rate_v2(BLOCK, 3, 4).au == pytest.approx(0.0)
    no_time = replace(BLOCK, total=float(BLOCK.proc[:1].sum() + BLOCK.proc[4:].sum()))
    assert rate_fork(BLOCK, 5, 0) == rate_fork(BLOCK, 3, 2) == rate_fork(no_time, 1, 1) == Rated(0.0, 0.0)
    one = replace(BLOCK, proc=BLOCK.proc[:1], measured=BLOCK.measured[:1])
    assert rate_v2(one, 0, 0, 4).samples_per_second == 0


def test_blocks_weigh_by_steps_and_ranks_add_up() -> None:
    blocks = [Rated(0.5, 10.0), Rated(0.9, 40.0)]
    weighed, summed = over_blocks(blocks, [3, 1]), over_ranks(blocks)
    assert (weighed.au, weighed.samples_per_second) == pytest.approx((0.6, 17.5))
    assert (summed.au, summed.samples_per_second) == pytest.approx((0.7, 50.0))


# what workers did


def worked(**changes: int) -> StepRows:
    rows = np.zeros(1, STEP_DTYPE)
    values = {"started_ns": 50, "finished_ns": 150, "read_ns": 60, "cpu_ns": 70, "cpu_wait_ns": 20} | changes
    for name, value in values.items():
        rows[name] = value
    return rows


@pytest.mark.parametrize(
    ("changes", "preprocesses", "spent"),
    [
        ({}, False, [10, 0, 70, 20]),
        ({"cpu_wait_ns": 80}, False, [0, 0, 70, 30]),
        ({"cpu_ns": 10, "cpu_wait_ns": 5}, True, [45, 40, 10, 5]),
        ({"cpu_ns": 0, "cpu_wait_ns": 0}, True, [60, 0, 40, 0]),
        ({"preprocess_cpu_ns": 90}, False, [10, 70, 0, 20]),
        ({"preprocess_cpu_ns": 30, "cpu_ns": 0, "cpu_wait_ns": 0}, False, [60, 30, 10, 0]),
        ({"finished_ns": 40}, False, [0, 0, 0, 0]),
    ],
)
def test_a_workers_time_is_computing_first_then_starved_then_blocked(
    changes: dict[str, int], preprocesses: bool, spent: list[int]
) -> None:
    assert [part.item() for part in worker_time(worked(**changes), preprocesses)] == spent
    assert sum(spent) == max(0, changes.get("finished_ns", 150) - 50)


def test_work_of_one_batch() -> None:
    rows = worked(wait_ns=30, compute_ns=50, sync_ns=20, read_calls=4, app_bytes=8000, free_ns=60)
    work = work_of(rows, preprocesses=False)
    assert work.starved_share == pytest.approx(0.2)
    assert work.cpu_known
    assert work.call_ms == pytest.approx(60 / 4 / 1e6)
    assert work.call_bytes == 2000
    assert work.app_mb_per_second == pytest.approx(8000 * 1e3 / 100)
    assert work.wanted_mb_per_second == pytest.approx(8000 * 1e3 / 50)
    assert work.readers == pytest.approx(10 / 100)
    assert not find_causes(rows[:0], preprocesses=False, workers=2).total


# what accelerators ask for


def test_samples_share_files_and_times_may_be_drawn() -> None:
    words = ["dataset.num_files_train=10", "dataset.num_samples_per_file=30", "dataset.record_length_bytes=10000"]
    words += ["reader.batch_size=5", "train.computation_time={type:uniform,min:0.1,max:0.3}"]
    asked = demand("own", load(words))
    assert asked.num_samples == 300
    assert asked.dataset_gb == pytest.approx(300 * 10_000 / 1e9)
    assert asked.samples_per_second == pytest.approx(25)
    assert asked.mb_per_second == pytest.approx(0.25)


def test_an_accelerator_that_computes_nothing_has_no_limit() -> None:
    asked = demand("own", load(["train.computation_time=0"]))
    assert asked.samples_per_second is None
    assert asked.mb_per_second is None


@pytest.mark.parametrize(
    ("batch", "rows", "times"), [(16384, 6144, 1.25), (48, 24, 1.0), (8, 24, 3.0), (10, 24, 3.2), (24, 288, 4.0)]
)
def test_each_worker_in_turn_reads_a_row_group_of_which_its_batches_have_rows(
    batch: int, rows: int, times: float
) -> None:
    words = ["dataset.format=parquet", f"dataset.parquet.row_group_size={rows}", f"reader.batch_size={batch}"]
    words += [f"dataset.num_samples_per_file={batch * rows}", "dataset.record_length_bytes=1000"]
    workload = load([*words, "reader.read_threads=4"])
    assert row_group_reads(workload) == pytest.approx(times)
    begins = range(0, rows * batch, batch)
    touched = {
        (begin // batch % 4, group)
        for begin in begins
        for group in range(begin // rows, (begin + batch - 1) // rows + 1)
    }
    assert len(touched) * rows / (rows * batch) == pytest.approx(times), "counted worker by worker"
    assert demand("own", workload).sample_bytes == pytest.approx(1000 * times, abs=50 * times), "records are square"
    for in_order in ("reader.worker_streams=true", "reader.read_threads=1"):
        assert row_group_reads(load([*words, "reader.read_threads=4", in_order])) == 1


# checkpoints


S = 1_000_000_000
STAMPS = ("began_ns", "ended_ns", "asked_ns", "released_ns")
COLUMNS = ("rank", "checkpoint", *STAMPS, "bytes", "fsync_ns")


def test_one_checkpoint_by_rank_0_the_slowest_and_the_wall() -> None:
    rows = np.zeros(2, [(name, np.int64) for name in COLUMNS])
    rows[0] = (0, 4, 10 * S, 12 * S, 9 * S, 12 * S, GIB, S)
    rows[1] = (1, 4, 11 * S, 15 * S, 9 * S, 15 * S, 3 * GIB, S)
    times = times_of(rows)
    assert (times.checkpoint, times.bytes, times.slowest_rank) == (4, 4 * GIB, 1)
    assert (times.rank0_seconds, times.slowest_seconds, times.wall_seconds) == (2, 4, 5)
    assert (times.rank0_gib_per_second, times.slowest_gib_per_second) == (2, 1)
    assert times.wall_gb_per_second == pytest.approx(4 * GIB / 1e9 / 5)
    assert times.fsync_percent == pytest.approx(100 * 2 / 6)
    assert (times.stall_seconds, times.safe_seconds, times.drain_seconds) == (6, 6, 0)


def test_the_best_interval_of_young_and_daly() -> None:
    assert young_seconds(60, 24 * 3600) == pytest.approx(3219.9, abs=0.1)
    share = 60 / (2 * 86400)
    expected = math.sqrt(2 * 60 * 86400) * (1 + math.sqrt(share) / 3 + share / 9) - 60
    assert daly_seconds(60, 86400) == pytest.approx(expected)
    assert daly_seconds(100, 10) == 10, "checkpoints that take longer than jobs live"
    assert cost_percent(100, 900) == 10


@given(st.floats(0.1, 100), st.floats(3600, 1e6), st.floats(0, 3600))
def test_no_interval_wastes_less_than_the_best(stall: float, mtbf: float, drain: float) -> None:
    best = max(daly_seconds(stall, mtbf), drain)
    least = wasted_percent(best, stall, 10, mtbf, drain)
    for factor in (0.1, 0.5, 0.9, 1.1, 2.0):
        assert wasted_percent(factor * best, stall, 10, mtbf, drain) >= least - 0.05


@pytest.mark.parametrize(
    ("interval", "stall", "drain"),
    [(400, 20, 0), (200, 1, 189), (155, 0.5, 189), (1000, 30, 700), (10, 4, 90)],
    ids=["a whole save", "drained in time", "advised once", "a slow snapshot", "always draining"],
)
def test_what_is_lost_is_what_a_timeline_of_checkpoints_loses(interval: float, stall: float, drain: float) -> None:
    recovery, mtbf = 30.0, 1e6
    captured, durable, now = [0.0], [drain], 0.0  # of each checkpoint: when training went on, and when it was safe
    while len(captured) < 50:
        now = max(now + interval, durable[-1]) + stall
        captured.append(now)
        durable.append(now + drain)
    period = (captured[-1] - captured[-11]) / 10
    failures = np.linspace(durable[-4], durable[-3], 2001)
    again = np.mean([at - captured[int(np.searchsorted(durable, at, "right")) - 1] for at in failures[:-1]])
    expected = 100 * (1 - interval / period) + 100 * (again + recovery) / mtbf
    assert wasted_percent(interval, stall, recovery, mtbf, drain) == pytest.approx(expected, rel=1e-3)


@given(st.floats(0, 10), st.floats(0, 100), st.floats(0.5, 0.99))
def test_the_shortest_interval_of_asynchronous_ones_has_that_au(snapshot: float, drain: float, au: float) -> None:
    least = shortest_interval_seconds(snapshot, drain, au)
    if least > 1e-9:  # a shorter one is no interval, and its ratios are rounded
        stall = snapshot + max(0.0, drain - least)
        assert asynchronous_au_percent(least, [stall]) == pytest.approx(100 * au, rel=1e-6)


def test_no_interval_leaves_training_as_fast_as_without_checkpoints() -> None:
    assert shortest_interval_seconds(1.0, 2.0, au=1.0) == math.inf


# what limits checkpoints


_OF_HOSTS = {"host_busy_percent", "device_busy_percent", "link_percent", "throttled_percent"}
FULL = {"device_busy_percent": BUSY_PERCENT}
READ = {"name": "torch_load", "fsync_percent": 0.0}
QUOTA = Finding.of(Code.CPU_QUOTA, "caution", throttled_percent=10.0)
FULL_LINK = Finding.of(Code.NETWORK_FULL, "caution", link_percent=BUSY_PERCENT)
FEW_THREADS = Finding.of(Caveat.TOO_FEW_THREADS, "caution", setting="checkpoint.writers", threads=7)
ONE_BY_ONE = Finding.of(Caveat.TOO_FEW_THREADS, "caution", setting="checkpoint.read_as=fast", threads=7)


@pytest.mark.parametrize(
    ("changes", "what", "confidence", "found"),
    [
        ({}, "storage", "medium", None),
        (READ, "storage", "medium", None),
        (FULL, "storage", "high", None),
        ({"device_busy_percent": 10.0, "call_percent": 90.0, "fsync_percent": 0.0}, "storage", "high", None),
        (
            {"device_busy_percent": 10.0, "call_percent": 99.0, "fsync_percent": 0.0, "host_busy_percent": 90.0},
            "storage",
            "medium",
            None,
        ),
        (READ | {"from_storage_percent": NOT_READ_PERCENT}, "storage", "medium", None),
        (READ | {"from_storage_percent": 3.0}, "page cache", "high", None),
        ({"starved_percent": STARVED_PERCENT}, "emulator", "medium", None),
        ({"starved_percent": 30.1} | FULL, "emulator", "high", None),
        ({"cpu_wait_percent": WAIT_PERCENT}, "host CPU", "medium", None),
        ({"cpu_wait_percent": 2 * WAIT_PERCENT, "throttled_percent": 9.0}, "host CPU", "high", None),
        ({"cpu_wait_percent": 2 * WAIT_PERCENT, "throttled_percent": 10.0}, "host CPU", "high", QUOTA),
        ({"cpu_wait_percent": 99.0} | FULL, "storage", "high", None),
        ({"link_percent": BUSY_PERCENT}, "storage", "high", FULL_LINK),
        ({"cpu_percent": THREAD_PERCENT}, "host CPU", "medium", FEW_THREADS),
        (READ | {"cpu_percent": THREAD_PERCENT}, "host CPU", "medium", ONE_BY_ONE),
        ({"cpu_percent": 99.0} | FULL, "storage", "high", None),
    ],
)
def test_what_limits_is_named_with_its_certainty(
    changes: dict[str, Any], what: str, confidence: str, found: Finding | None
) -> None:
    known: dict[str, Any] = {"call_percent": 60.0, "fsync_percent": 25.0, "starved_percent": 1.0, "name": "write"}
    known |= {"cpu_percent": 20.0, "cpu_wait_percent": 2.0} | changes
    name = known.pop("name")
    host = {use: known.pop(use) for use in _OF_HOSTS & known.keys()}
    phase = present(checkpoint_run().summary.write)
    limit, findings = judge(name, replace(phase, **known), **host, threads=7)
    assert (limit.what, limit.confidence) == (what, confidence)
    assert findings == (() if found is None else (found,))

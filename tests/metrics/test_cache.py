"""Who served the bytes, by the kernel and by the devices, and how loudly that is said; each sample once an epoch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows
from dlemu.jobs.training.wording import memory_warning
from dlemu.metrics import cache
from dlemu.metrics.cache import (
    WANTED_RATIO,
    CacheProof,
    Delivered,
    delivered_between,
    device_metrics,
    device_request_kib,
    each_sample_once,
    mean_between,
    prove,
    served_by_storage,
)
from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.rates import Intervals, Mean, mean_within
from dlemu.metrics.rows import as_table, steps_of
from dlemu.plan.samples import Plan, RankPlan, hash_samples
from tests.metrics.test_loss import make_steps
from tests.plan.plans import make_plan, make_stream_plan
from tests.runs import make_job, make_log, present


def proof(shares: list[float], **changes: Any) -> CacheProof:
    """The proof of epochs that got these shares of their bytes from storage."""
    rows = make_steps([[0.0]] * len(shares))
    rows["epoch"], rows["step"] = rows["step"], 1
    rows["app_bytes"] = 1000
    rows["storage_bytes"] = [round(1000 * share) for share in shares]
    facts: dict[str, Any] = {"file_system": "ext4", "bypassed": False, "would_help": "reader.odirect=true"}
    result = prove(rows, **(facts | {"dataset_bytes": 10, "memory_bytes": 40} | changes))
    assert (memory_warning(result.finding) is None) == (result.finding is None), "there are words for it"
    return result


def code_of(shares: list[float], **changes: Any) -> tuple[str, str] | None:
    """The code and severity of what is to be said of them."""
    found = proof(shares, **changes).finding
    return (found.code, found.severity) if found else None


NOT_READ, PARTLY = (Code.PAGE_CACHE, "loud"), (Code.PAGE_CACHE, "caution")


def test_a_second_epoch_out_of_memory_is_said_loudly() -> None:
    result = proof([1.0, 0.01])
    assert result.from_storage_percent.per_epoch == (100.0, 1.0)
    assert result.from_storage_percent.mean == pytest.approx(50.5)
    assert result.finding == Finding(
        Code.PAGE_CACHE,
        "loud",
        {
            "would_help": "reader.odirect=true",
            "dataset_to_memory_ratio": 0.25,
            "from_storage_percent": 50.5,
            "least_percent": 1.0,
            "most_percent": 100.0,
        },
    )


def test_memory_as_a_file_system_is_no_storage_and_one_without_books_is_not_known() -> None:
    share, finding = proof([0.0], file_system="tmpfs")
    assert share.mean == 0
    assert finding == Finding(Code.NO_DATA_FROM_STORAGE, "loud", {"pattern": "in_memory", "file_system": "tmpfs"})
    result = proof([0.0, 0.0], file_system="fuse.thing")
    assert result.from_storage_percent == Mean(mean=None, per_epoch=(None, None))
    assert present(result.finding).numbers["pattern"] == "not_known"
    assert code_of([0.0, 0.0], file_system="fuse.thing") == PARTLY
    assert code_of([0.0], file_system="fuse.thing", bypassed=True) is None
    assert code_of([0.0], file_system="fuse.thing", dataset_bytes=1000) is None
    share, _ = proof([0.9, 0.9], file_system="nfs4")
    assert share.mean == pytest.approx(90), "books that tell something are believed"


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([1.0, 1.02], None),
        ([0.95], None),
        ([0.949], PARTLY),
        ([0.8, 0.8], PARTLY),
        ([0.5, 0.5], PARTLY),
        ([0.499], NOT_READ),
        ([1.5, 0.6], PARTLY),
        ([1.88, 0.0], NOT_READ),
    ],
)
def test_the_epoch_with_least_from_storage_decides(shares: list[float], expected: tuple[str, str] | None) -> None:
    assert code_of(shares) == expected


def test_where_nothing_is_known_a_dataset_of_five_times_the_memory_is_trusted() -> None:
    unknown: dict[str, Any] = {"file_system": "fuse.thing", "memory_bytes": 100}
    assert code_of([0.0], dataset_bytes=500, **unknown) is None
    small = present(proof([0.0], dataset_bytes=499, **unknown).finding)
    assert (small.code, small.severity) == PARTLY
    assert small.numbers["dataset_to_memory_ratio"] == 4.99
    assert small.numbers["wanted_ratio"] == WANTED_RATIO == 5
    assert code_of([0.0], dataset_bytes=499, bypassed=True, **unknown) is None
    assert code_of([0.0], dataset_bytes=499, **(unknown | {"memory_bytes": 0})) is None


def test_what_is_not_known_is_no_number() -> None:
    lost = proof([0.1], memory_bytes=0)
    assert "dataset_to_memory_ratio" not in present(lost.finding).numbers
    nothing = make_steps([[0.0]])
    assert not nothing["app_bytes"].any()
    found = prove(nothing, file_system="ext4", bypassed=False, would_help="", dataset_bytes=10, memory_bytes=40).finding
    assert found == Finding(Code.NO_DATA_FROM_STORAGE, "loud")


@pytest.mark.parametrize(
    ("accounted", "device", "expected"),
    [
        # the smaller of accounting and devices counts
        ([100, 100], [100, 100], 100),
        ([1.2, 1.2], [1.2, 1.2], 1.2),  # holes: neither counts them
        ([100, 100], [40, 60], 50),  # a cache below the file system
        ([100, 0], [0, 0], 50),  # devices that count nothing
        ([50, 50], [165, 165], 50),  # neighbours add to what the devices gave
        # what was read ahead makes up for nothing
        ([188, 0], [], 50),
        ([120, 104], [], 100),
        # one of the two is enough, none says nothing
        ([None, None], [30, 165], 65),
        ([80, None], [None, 60], 70),
        ([90, 90], [None, None], 90),
        ([None, 90], [None, None], 90),  # of an epoch that nobody watched nothing is known
        ([None, None], [], None),
    ],
)
def test_what_the_storage_served_is_the_least_that_is_known_of_each_epoch(
    accounted: list[float | None], device: list[float | None], expected: float | None
) -> None:
    rows = make_steps([[0.0]] * max(len(accounted), len(device)))
    rows["epoch"], rows["step"], rows["app_bytes"] = rows["step"], 1, 1000
    parts = (Mean(mean=None, per_epoch=tuple(percents)) for percents in (accounted, device))
    assert served_by_storage(rows, *parts) == pytest.approx(expected)


# bytes of the devices, from rates between readings


MB = 1e6


def rows_and_ends(**settings: Any) -> tuple[Any, list[tuple[int, int]]]:
    rows = make_log(make_job(**settings)).rows
    epochs = [rows[rows["epoch"] == epoch] for epoch in (1, 2)]
    return rows, [(int(part["free_ns"].min()), int(part["met_ns"].max())) for part in epochs]


def device(readings: list[tuple[int, float]]) -> Delivered:
    times, total = (np.array(column) for column in zip(*readings, strict=True))
    rates = np.diff(total) / (np.diff(times) / 1e9)
    return Delivered((0, 1), times.astype(np.int64), np.concatenate([[0.0], rates]))


def test_bytes_before_between_and_after_epochs_are_left_out() -> None:
    rows, ends = rows_and_ends()
    app_mb = [rows[rows["epoch"] == epoch]["app_bytes"].sum() / MB for epoch in (1, 2)]
    (begin, end), (begin_2, end_2) = ends
    first = device([(begin - 500, 0), (begin - 2, 70), (end + 1, 70 + app_mb[0]), (begin_2, 900 + app_mb[0])])
    _, share = device_metrics(rows, [first])
    assert share.per_epoch[0] == pytest.approx(100)
    assert share.per_epoch[1] is None, "a recorder that was lost knows nothing of what came after"
    first = device([(begin - 2, 0), (end + 1, app_mb[0]), (begin_2, 900 + app_mb[0]), (end_2 + 1, 900 + app_mb[0])])
    _, share = device_metrics(rows, [first])
    assert share.per_epoch == pytest.approx((100, 0), abs=1e-6)
    both = device([(begin - 500, 0), (begin, 70), (end + 5, 70), (begin_2, 70), (end_2, 70 + app_mb[1] / 2)])
    _, share = device_metrics(rows, [first, both])
    assert share.per_epoch == pytest.approx((100, 50))
    assert share.mean == pytest.approx(75)


def test_the_mean_request_is_of_all_devices_and_weighs_by_their_reads() -> None:
    rows, ((begin, end), (begin_2, end_2)) = rows_and_ends()
    times = [begin - 2, end + 1, begin_2, end_2 + 1]

    def grown(first: float, between: float, second: float) -> Delivered:
        total = np.cumsum([0, first, between, second])
        return device(list(zip(times, total.tolist(), strict=True)))

    mib = 1.048576
    megabytes = [grown(100 * mib, 77, 30 * mib), grown(20 * mib, 0, 10 * mib)]
    reads = [grown(100, 5000, 120), grown(20, 0, 40)]
    size = device_request_kib(rows, megabytes, reads)
    assert size.per_epoch == pytest.approx((1024, 256))
    assert size.mean == pytest.approx(1024 * 160 / 280)
    assert device_request_kib(rows, [], []).mean is None
    assert device_request_kib(rows, [grown(0, 0, 0)], [grown(0, 0, 0)]).mean is None


# what the workers delivered, by hashes, against what was planned


PLAN = make_plan(num_files=7, num_samples_per_file=5, batch_size=3, ranks=2, file_shuffle=True, seed=9)
"""35 samples: 5 steps of 2 x 3, and 5 samples that no rank reads."""


def delivered(epoch: int, steps: int, plan: Plan = PLAN) -> StepRows:
    rows = np.zeros(steps * plan.ranks, STEP_DTYPE)
    for at, (rank, step) in enumerate((rank, step) for rank in range(plan.ranks) for step in range(1, steps + 1)):
        samples = RankPlan(plan, rank).sample_ids(epoch, step)
        rows[at]["rank"], rows[at]["epoch"], rows[at]["step"] = rank, epoch, step
        rows[at]["samples"], rows[at]["sample_hash"] = len(samples), hash_samples(samples)
    return rows


@pytest.mark.parametrize("plan", [PLAN, replace(PLAN, worker_streams=2), make_stream_plan(sample_shuffle=False)])
@pytest.mark.parametrize("steps", [1, 2, 4, 5])
@pytest.mark.parametrize("epoch", [1, 2])
def test_what_was_planned_was_delivered_in_whatever_order(
    plan: Plan, steps: int, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = delivered(epoch, steps, plan)
    assert each_sample_once(plan, epoch, steps, rows) is True
    monkeypatch.setattr(cache, "_CHUNK", 4)
    assert each_sample_once(plan, epoch, steps, rows[::-1]) is True


def test_what_was_not_delivered_as_planned_is_told_and_of_an_epoch_that_was_cut_short_nothing() -> None:
    assert each_sample_once(PLAN, 1, 4, delivered(2, 4)) is False, "another epoch's"
    twice, fewer = delivered(1, 5), delivered(1, 5)
    twice[3]["sample_hash"] = twice[2]["sample_hash"]
    fewer[0]["samples"] = 2
    assert [each_sample_once(PLAN, 1, 5, rows) for rows in (twice, fewer)] == [False, False]
    assert [each_sample_once(PLAN, 1, 5, twice[:count]) for count in (-1, 0)] == [None, None]


# rates over time


TIMES = np.array([0, 10, 20, 40], np.int64)
RATES = np.array([777.0, 1.0, 3.0, 5.0])
"""1 from 0 to 10, 3 from 10 to 20, 5 from 20 to 40; what came before the first reading is not known."""


@pytest.mark.parametrize(
    ("windows", "mean"),
    [
        ([(0, 10)], 1.0),
        ([(0, 40)], (10 * 1 + 10 * 3 + 20 * 5) / 40),
        ([(5, 15)], (5 * 1 + 5 * 3) / 10),
        ([(12, 14)], 3.0),
        ([(0, 5), (30, 40)], (5 * 1 + 10 * 5) / 15),
        ([(-100, 10)], 1.0),
        ([(20, 1000)], 5.0),
        ([(-100, 1000)], (10 * 1 + 10 * 3 + 20 * 5) / 40),
    ],
)
def test_the_mean_over_windows_is_weighed_by_time(windows: list[tuple[int, int]], mean: float) -> None:
    assert mean_within(TIMES, RATES, windows) == pytest.approx(mean)


@pytest.mark.parametrize("windows", [[], [(50, 60)], [(-20, -10)], [(7, 7)]])
def test_without_readings_in_a_window_there_is_no_mean(windows: list[tuple[int, int]]) -> None:
    assert math.isnan(mean_within(TIMES, RATES, windows))


@pytest.mark.parametrize("count", [0, 1])
def test_one_reading_is_no_interval(count: int) -> None:
    assert math.isnan(mean_within(TIMES[:count], RATES[:count], [(0, 40)]))
    assert math.isnan(mean_between(TIMES[:count], RATES[:count], 0, 40))
    assert mean_within(TIMES[:2], RATES[:2], [(0, 40)]) == mean_between(TIMES[:2], RATES[:2], 0, 40) == 1.0


S = 1_000_000_000


@pytest.mark.parametrize(
    ("begin_s", "end_s", "megabytes"),
    [
        (0, 40, 10 * 1 + 10 * 3 + 20 * 5),
        (0, 10, 10.0),
        (5, 10, 10.0),  # from the last reading before the begin
        (5, 15, 10 * 1 + 10 * 3),  # to the first after the end
        (10, 20, 30.0),
        (11, 40, 10 * 3 + 20 * 5),
        (-2, 40, 140.0),  # 2 of 42 s are missed, less than a twentieth
        (-3, 40, math.nan),
        (0, 42, 140.0),
        (0, 43, math.nan),
        (41, 80, math.nan),
        (-40, -1, math.nan),
    ],
)
def test_what_was_delivered_is_counted_from_reading_to_reading(begin_s: int, end_s: int, megabytes: float) -> None:
    seen = delivered_between(TIMES * S, RATES, begin_s * S, end_s * S)
    assert seen == pytest.approx(megabytes, nan_ok=True)


INTERVALS = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0.01, 50), st.floats(0, 1e6)).map(
        lambda part: (part[0], sum(part[:2]), part[2])
    ),
    min_size=1,
    max_size=20,
)


def test_amounts_are_spread_evenly_over_their_time_and_add_up() -> None:
    spread = Intervals(np.array([0.0, 1.0]), np.array([2.0, 2.0]), np.array([0.0, 1.0, 2.0, 4.0]))
    assert spread.rates(np.array([4.0, 3.0])).tolist() == [2.0, 5.0, 0.0]


@given(INTERVALS, st.integers(1, 30))
def test_rates_over_all_time_give_the_amounts(intervals: list[tuple[float, float, float]], bins: int) -> None:
    starts, ends, amounts = (np.array(column) for column in zip(*intervals, strict=True))
    edges = np.linspace(-1, 200, bins + 1)
    rates = Intervals(starts, ends, edges).rates(amounts)
    assert float((rates * np.diff(edges)).sum()) == pytest.approx(amounts.sum(), rel=1e-6, abs=1e-6)


def test_ranks_that_were_cut_short_share_the_steps_they_have() -> None:
    rows = make_steps([[0.0, 5.0, 1.0]] * 4)
    table = as_table(rows[(rows["rank"] != 1) | (rows["step"] < 3)])
    steps = steps_of(table)
    assert steps.count == 4
    assert steps.row_counts.tolist() == [3, 3, 2, 2]
    assert steps.maximum(table["wait_ns"]).tolist() == [5e6, 5e6, 1e6, 1e6]
    assert table["rank"][steps.argmin(-table["wait_ns"])].tolist() == [1, 1, 2, 2]
    assert table["rank"][steps.argmin()].tolist() == [0] * 4

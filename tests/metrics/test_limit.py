"""What limited a run: each case of docs/metrics.md section 6, from step rows and from what is known beside them."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.jobs.training.steplog import StepRows
from dlemu.metrics.au import au_percent
from dlemu.metrics.findings import Code, Finding, Number
from dlemu.metrics.limit import (
    BUSY_PERCENT,
    FEW_REQUESTS,
    MIN_LOSS_PERCENT,
    STARVED_SHARE,
    Context,
    Limit,
    Scaling,
    judge_limit,
)
from dlemu.metrics.loss import Causes, Work, find_causes, loss_percent, work_of
from tests.metrics.test_loss import MS, any_rows, make_steps


def late_steps(*, cpu_ms: float = 1, cpu_wait_ms: float = 0, burned_ms: float = 0, **stamps: Any) -> StepRows:
    """Twenty steps of two ranks that lose 30 of 40 ms each, their workers 100 ms at each batch."""
    rows = make_steps([[30.0, 30.0]] * 20, **stamps)
    rows["cpu_ns"], rows["cpu_wait_ns"] = cpu_ms * MS, cpu_wait_ms * MS
    rows["preprocess_cpu_ns"] = burned_ms * MS
    rows["app_bytes"], rows["read_calls"] = 80 << 20, 10
    return rows


def limit_of(rows: StepRows, *, preprocesses: bool = False, workers: int = 8, **around: Any) -> Limit:
    causes = find_causes(rows, preprocesses=preprocesses, workers=workers)
    work = work_of(rows, preprocesses=preprocesses)
    return judge_limit(au_percent(rows), causes, work, Context(**around))


def found(limit: Limit) -> dict[str, dict[str, Number]]:
    return {finding.code: finding.numbers for finding in limit.findings}


@given(rows=any_rows())
def test_the_causes_add_up_to_the_loss(rows: StepRows) -> None:
    random = np.random.default_rng(len(rows))
    rows["cpu_ns"], rows["cpu_wait_ns"] = random.integers(0, 100 * MS, (2, len(rows)))
    lost = loss_percent(rows, rows)
    for preprocesses in (False, True):
        causes = find_causes(rows, preprocesses=preprocesses, workers=3, reads_stall=preprocesses)
        assert causes.total == pytest.approx(sum(astuple(lost)) - lost.uneven_computation, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "around", "what"),
    [
        ({"cpu_ms": 60, "cpu_wait_ms": 40, "read_ns": 20}, {}, "host CPU"),
        ({"cpu_ms": 99}, {"host_busy_percent": 97.0}, "host CPU"),
        ({"cpu_ms": 99, "read_ns": 10}, {"host_busy_percent": 40.0}, "loader"),
        ({"read_ns": 5}, {"preprocesses": True}, "loader"),
        ({"cpu_ms": 99, "burned_ms": 95, "read_ns": 5}, {"host_busy_percent": 40.0}, "loader"),
        ({"cpu_ms": 99, "burned_ms": 95, "read_ns": 5}, {"host_busy_percent": 97.0}, "host CPU"),
        ({"cpu_ms": 60, "burned_ms": 55, "cpu_wait_ms": 40, "read_ns": 5}, {}, "host CPU"),
        ({"read_ns": 5}, {}, "storage"),  # nothing else to be blocked in: opening files
        ({"finished_ns": -1, "started_ns": -101}, {}, "emulator"),
        ({"finished_ns": -1, "started_ns": -101, "cpu_ms": 50, "cpu_wait_ms": 50}, {}, "host CPU"),
        ({"started_ns": 29, "finished_ns": 30, "read_ns": 1, "cpu_ms": 0.5}, {}, "loader"),
        (
            {"started_ns": 29, "finished_ns": 30, "read_ns": 1, "cpu_ms": 0.5},
            {"host_busy_percent": 97.0},
            "host CPU",  # a worker that has time and no core begins nothing either
        ),
        ({}, {"ceiling_au": 89.0}, "storage"),
    ],
)
def test_each_kind_of_limit_is_told_from_the_others(changes: dict[str, Any], around: dict[str, Any], what: str) -> None:
    limit = limit_of(late_steps(**changes), **around)
    assert limit.what == what
    shares = dict(zip(("storage", "loader", "host CPU", "emulator"), astuple(limit.shares), strict=True))
    assert sum(shares.values()) == pytest.approx(100)
    assert max(shares, key=lambda name: shares[name]) == what


def test_batches_that_queue_behind_busy_workers_wait_for_what_these_do() -> None:
    rows = late_steps(started_ns=29, finished_ns=30, read_ns=1, cpu_ms=0.1)
    rows["started_ns"] -= 40 * MS  # each worker is at a batch for 41 of 40 ms
    rows["read_ns"] = 40 * MS
    queued = make_steps([[30.0, 30.0]] * 20, started_ns=29, finished_ns=30, read_ns=1)
    queued["cpu_ns"] = 1
    assert limit_of(rows, workers=2).what == "storage"
    assert limit_of(queued, workers=2).what == "loader"


def test_workers_that_had_time_before_do_not_hide_a_drive_that_became_slow() -> None:
    """Batches queue behind busy workers in the second half alone; on average these had time."""
    rows = make_steps([[0.0, 0.0]] * 200 + [[30.0, 30.0]] * 40)
    rows["started_ns"], rows["read_ns"] = rows["finished_ns"] - 2 * MS, 2 * MS
    slow = rows["wait_ns"] > 0
    rows["read_ns"][slow] = 20 * MS
    rows["started_ns"][slow] = rows["finished_ns"][slow] - 20 * MS
    behind = rows[slow].copy()  # the reads for later steps, that the late ones queue behind
    behind["step"] += 1000
    behind["started_ns"], behind["finished_ns"] = rows["started_ns"][slow] - 20 * MS, rows["started_ns"][slow]
    behind["wait_ns"] = behind["sync_ns"] = behind["compute_ns"] = 0
    rows = np.concatenate([rows, behind])
    rows["cpu_ns"], rows["app_bytes"], rows["read_calls"] = MS // 10, 8 << 20, 1
    causes = find_causes(rows, preprocesses=False, workers=2)
    assert causes.queueing == pytest.approx(0)
    assert limit_of(rows, workers=2).what == "storage"
    assert limit_of(rows, workers=16).what == "storage", "most of the wait was in reads all the same"


def test_a_worker_that_reads_a_mapped_file_hands_nothing_over() -> None:
    """Page faults hold Python's lock: a complete batch is late because the storage is slow at the next one."""
    rows = make_steps([[40.0]] * 20, started_ns=-20, finished_ns=-10)
    behind = rows.copy()  # the batches that the only worker reads meanwhile
    behind["step"] += 1000
    behind["started_ns"], behind["finished_ns"] = rows["free_ns"], rows["free_ns"] + 40 * MS
    behind["wait_ns"] = behind["sync_ns"] = behind["compute_ns"] = 0
    rows = np.concatenate([rows, behind])
    rows["cpu_ns"] = MS
    plain = find_causes(rows, preprocesses=False, workers=1)
    stalled = find_causes(rows, preprocesses=False, workers=1, reads_stall=True)
    assert (plain.storage, plain.hand_over) == pytest.approx((0, 80))
    assert stalled.storage > 70, "all but what the worker computes"
    assert stalled.storage + stalled.hand_over == pytest.approx(80)
    idle = find_causes(rows[:20], preprocesses=False, workers=1, reads_stall=True)
    assert (idle.storage, idle.hand_over) == pytest.approx((0, 80)), "a worker that reads nothing stalls nobody"


def test_readers_count_while_accelerators_wait() -> None:
    """At other times their queues are full: a drive that is slow half the time had as many readers as it could have."""
    rows = make_steps([[0.0, 0.0]] * 100 + [[30.0, 30.0]] * 20)
    slow = rows["wait_ns"] > 0
    rows["started_ns"] = rows["finished_ns"] - np.where(slow, 40, 1) * MS
    rows["read_ns"], rows["cpu_ns"] = rows["finished_ns"] - rows["started_ns"], 1
    rows["rank"][rows["rank"] == 1] = 3
    for name in ("free_ns", "started_ns", "finished_ns"):
        rows[name][rows["rank"] == 3] += 7_000 * MS  # another host's clock
    assert work_of(rows, preprocesses=False).readers == pytest.approx(2, rel=0.05)


ENOUGH = Work(
    starved_share=0.0,
    cpu_known=True,
    readers=16.0,
    call_ms=12.3456,
    call_bytes=4096,
    app_mb_per_second=1234.56,
    wanted_mb_per_second=5432.19,
)
"""Readers enough that nothing but the storage is to blame for the reads."""


LIMITED_BY = {
    "storage": "storage",
    "computing": "loader",
    "pause": "loader",
    "queueing": "loader",
    "starved": "host CPU",
    "hand_over": "emulator",
}
"""What is named when one cause outweighs all others."""


def limit_at(au: float = 40.0, causes: Causes | None = None, work: Work = ENOUGH, **around: Any) -> Limit:
    return judge_limit(au, causes or Causes(storage=60.0), work, Context(read_threads=5, **around))


@given(
    largest=st.sampled_from(sorted(LIMITED_BY)),
    shares=st.fixed_dictionaries({name: st.floats(0, 1) for name in LIMITED_BY}),
    lost=st.floats(0.1, 99),
)
def test_what_cost_more_than_all_else_together_is_the_limit(
    largest: str, shares: dict[str, float], lost: float
) -> None:
    shares |= {largest: 1.01 * sum(shares.values()) + 0.01}
    causes = Causes(**{name: lost * share / sum(shares.values()) for name, share in shares.items()})
    expected = LIMITED_BY[largest] if causes.total >= MIN_LOSS_PERCENT else "nothing"  # lost, but for rounding
    assert limit_at(100 - lost, causes).what == expected


OTHERS = Finding.of(Code.OTHER_PROGRAM_ON_DRIVE, mb_per_second=52, percent=38)
FULL_NETWORK = {"io_depth": 1, "network_percent": 97.0}
BUSY, BURNING = {"host_busy_percent": BUSY_PERCENT}, {"burns": True}
HELD_BACK = BUSY | {"own_busy_percent": 20.0, "cpu_throttled_percent": 40.0}
IDLE = {"host_busy_percent": 4.0, "cpu_limit_used_percent": 6.0}
MIXED = {"storage": 25, "computing": 15, "queueing": 15, "hand_over": 5}
ONE_SMALL, TWO_SMALL = {"readers": 1.0}, {"readers": 2.0}
UNKNOWN_CPU = {"cpu_known": False}
READS: dict[str, float] = {"storage": 60}
COMPUTES, QUEUES = {"computing": 60}, {"queueing": 60}


def device(depth: float, busy_percent: float) -> dict[str, Any]:
    return {"device_depth": depth, "device_busy_percent": busy_percent}


def trial(**rates: Any) -> dict[str, Any]:
    return {"scaling": Scaling(**{"readers": 8, "mb_per_second": 2000, "again_mb_per_second": 2000} | rates)}


def more(rate: float, **rates: Any) -> dict[str, Any]:
    return trial(more_readers=32, more_mb_per_second=rate, **rates)


def fewer(rate: float, **rates: Any) -> dict[str, Any]:
    return trial(fewer_readers=2, fewer_mb_per_second=rate, **rates)


def larger(rate: float, **rates: Any) -> dict[str, Any]:
    return trial(larger_request_bytes=4096, larger_mb_per_second=rate, **rates)


@pytest.mark.parametrize(
    ("causes", "work", "around", "what", "findings"),
    [
        # the storage, or too few readers of it
        (READS, {}, {}, ("storage", "high"), []),
        (READS, ONE_SMALL, {}, ("loader", "low"), ["too_few_readers"]),
        (READS, {"readers": 1, "call_bytes": 8 << 20}, {}, ("storage", "high"), []),
        (READS, {"call_bytes": 0}, {}, ("storage", "medium"), []),
        (READS, ONE_SMALL, device(1.0, 99), ("loader", "low"), ["too_few_readers"]),
        (READS, ONE_SMALL, device(1.0, 80), ("loader", "medium"), ["too_few_readers"]),
        (READS, {"readers": 2, "call_bytes": 1e6}, device(2.0, 97), ("storage", "low"), []),
        (READS, TWO_SMALL, device(2.0, 97), ("loader", "low"), ["too_few_readers"]),
        (READS, TWO_SMALL, {"io_depth": 2}, ("storage", "medium"), []),
        (READS, ONE_SMALL, device(0.1, 9), ("storage", "medium"), []),
        (READS, {"readers": 8.0}, device(7.5, 99), ("storage", "high"), []),
        # trials after the run; more got by taking it from other programs is no proof, nor a storage that became faster
        (READS, {}, more(7800), ("loader", "high"), ["too_few_readers"]),
        (READS, ONE_SMALL, more(2020), ("storage", "high"), []),
        (READS, ONE_SMALL, more(4e3, again_mb_per_second=4e3), ("storage", "high"), []),
        (READS, {"app_mb_per_second": 3500}, more(4e3), ("storage", "high"), []),
        (READS, {}, fewer(4e3), ("loader", "high"), ["too_many_readers"]),
        (READS, {}, fewer(2400), ("storage", "high"), []),
        (READS, {}, larger(4e3), ("loader", "high"), ["requests_too_small"]),
        # trials of readers that alone get all that is needed: one rank's storage was slow, or the storage for a time
        (READS, {}, larger(9e3, mb_per_second=6e3), ("storage", "high"), []),
        (READS, {}, fewer(9e3, mb_per_second=6e3), ("storage", "high"), []),
        (READS, {}, more(7800) | {"other_program": OTHERS}, ("storage", "high"), ["other_program_on_drive"]),
        (READS, {}, FULL_NETWORK, ("storage", "high"), ["network_full"]),
        (READS, {}, FULL_NETWORK | {"network_percent": 30.0}, ("storage", "high"), []),
        # no core, and who has them
        (READS, UNKNOWN_CPU, {}, ("storage", "medium"), []),
        (READS, UNKNOWN_CPU, BUSY, ("host CPU", "low"), []),
        (READS, UNKNOWN_CPU, {"from_storage_percent": 0.0}, ("loader", "low"), ["too_few_readers"]),
        (READS, UNKNOWN_CPU, BUSY | device(8, 99), ("storage", "medium"), []),
        (READS, UNKNOWN_CPU, BUSY | device(1, 99), ("host CPU", "low"), []),
        (READS, UNKNOWN_CPU, BUSY | device(8, 50), ("host CPU", "low"), []),
        (MIXED, {}, BUSY, ("host CPU", "low"), []),
        (MIXED, {}, {"host_busy_percent": 80.0}, ("storage", "low"), []),
        (MIXED, {}, BUSY | device(FEW_REQUESTS, BUSY_PERCENT), ("storage", "low"), []),
        ({"storage": 25, "computing": 15, "pause": 20}, {}, BUSY, ("storage", "low"), []),  # a sleep needs no core
        (COMPUTES, {}, BUSY | {"own_busy_percent": 20.0}, ("host CPU", "high"), ["other_program_on_cores"]),
        (COMPUTES, {}, BUSY | {"own_busy_percent": 80.0}, ("host CPU", "high"), []),
        (COMPUTES, {}, HELD_BACK, ("host CPU", "high"), ["other_program_on_cores", "cpu_quota"]),
        (COMPUTES, {}, {"cpu_limit_used_percent": 99.0}, ("host CPU", "high"), ["cpu_quota"]),
        (COMPUTES, {}, IDLE, ("loader", "high"), ["too_few_readers"]),
        (READS, {}, {"cpu_limit_used_percent": 99.0}, ("host CPU", "medium"), ["cpu_quota"]),
        (READS, {}, {"cpu_throttled_percent": 80.0}, ("host CPU", "medium"), ["cpu_quota"]),
        (READS, {}, {"cpu_limit_used_percent": 99.0, "ceiling_au": 50.0}, ("host CPU", "medium"), ["cpu_quota"]),
        (READS, {}, {"cpu_limit_used_percent": 99.0} | device(8, 99), ("storage", "high"), []),
        (READS, {}, {"memory_some_percent": 30.0}, ("host CPU", "high"), ["memory_pressure"]),
        (READS, {}, {"memory_some_percent": 30.0} | device(8, 99), ("storage", "medium"), ["memory_pressure"]),
        # the loader and the emulator
        ({"pause": 60}, BURNING, BUSY, ("host CPU", "high"), []),
        ({"pause": 60}, BURNING, {"host_busy_percent": 10.0}, ("loader", "high"), ["too_few_readers"]),
        ({"pause": 60}, {}, BUSY, ("loader", "high"), ["too_few_readers"]),
        (QUEUES, {"oversleep_share": STARVED_SHARE - 0.01}, {}, ("loader", "high"), ["prefetch_too_shallow"]),
        (QUEUES, {"oversleep_share": STARVED_SHARE}, {}, ("emulator", "medium"), []),
        (QUEUES, {"oversleep_share": 0.5}, BUSY, ("host CPU", "high"), []),
        (READS, {"oversleep_share": 0.9}, {}, ("storage", "high"), []),
        ({"hand_over": 60}, {}, {"collates": True}, ("host CPU", "high"), []),
        (READS, {}, {"ceiling_au": 60.0}, ("emulator", "medium"), ["emulator_ceiling"]),
        (READS, {}, {"ceiling_au": 60.0, "collates": True}, ("host CPU", "medium"), ["emulator_ceiling"]),
        (READS, {}, {"ceiling_au": 30.0}, ("storage", "high"), []),  # the run itself reached more
        (READS, {}, {"ceiling_au": 89.0}, ("storage", "high"), []),
    ],
)
def test_each_limit_is_told_from_the_others(
    causes: dict[str, float], work: dict[str, Any], around: dict[str, Any], what: tuple[str, str], findings: list[str]
) -> None:
    limit = limit_at(causes=Causes(**causes), work=replace(ENOUGH, **work), **around)
    assert (limit.what, limit.confidence) == what
    assert [*found(limit)] == findings
    shares = dict(zip(("storage", "loader", "host CPU", "emulator"), astuple(limit.shares), strict=True))
    assert sum(shares.values()) == pytest.approx(100)
    assert max(shares, key=lambda name: shares[name]) == limit.what


def test_findings_have_the_numbers_to_set() -> None:
    few = limit_at(work=replace(ENOUGH, readers=1.0), io_depth=1)
    assert found(few) == {Code.TOO_FEW_READERS: {"read_threads": 5, "pattern": "requests"}}
    many = limit_at(**fewer(4e3))
    assert {"read_threads": 1, "now_read_threads": 5}.items() <= found(many)[Code.TOO_MANY_READERS].items()
    small = limit_at(**larger(4e3))
    assert found(small)[Code.REQUESTS_TOO_SMALL]["transfer_size"] == 4096
    beside = limit_at(causes=Causes(computing=60), host_busy_percent=99.0, own_busy_percent=20.0)
    assert found(beside) == {Code.OTHER_PROGRAM_ON_CORES: {"busy_percent": 99.0, "own_percent": 20.0}}
    half = limit_at(ceiling_au=60.0)  # of 60 points lost, 40 are lost without storage
    assert (half.shares.emulator, half.shares.storage) == pytest.approx((200 / 3, 100 / 3))


def test_how_late_ranks_woke_is_a_share_of_all_their_time() -> None:
    rows = make_steps([[30.0, 30.0]] * 20)  # 40 ms each
    assert work_of(rows, preprocesses=False).oversleep_share == 0
    rows["slept_ns"] = rows["free_ns"] + rows["wait_ns"] + rows["compute_ns"]
    rows["slept_ns"][::2] += 20 * MS  # one of two ranks
    assert work_of(rows, preprocesses=False).oversleep_share == pytest.approx(10 / 50)
    rows["slept_ns"][1::2] -= 5 * MS  # a stamp before the end of the step takes nothing back
    assert work_of(rows, preprocesses=False).oversleep_share == pytest.approx(10 / 50)

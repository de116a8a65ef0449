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
from dlemu.metrics.causes import Causes, Work, find_causes, work_of
from dlemu.metrics.findings import Code, Finding, Number
from dlemu.metrics.limit import (
    BUSY_PERCENT,
    FEW_REQUESTS,
    MIN_LOSS_PERCENT,
    STARVED_SHARE,
    Context,
    Device,
    Limit,
    Scaling,
    judge_limit,
    reads_may_be_too_few,
)
from dlemu.metrics.loss import kept_loss_percent
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
    """The numbers of what explains it, by their codes."""
    return {finding.code: finding.numbers for finding in limit.findings}


@given(rows=any_rows())
def test_the_causes_add_up_to_the_loss(rows: StepRows) -> None:
    random = np.random.default_rng(len(rows))
    rows["cpu_ns"], rows["cpu_wait_ns"] = random.integers(0, 100 * MS, (2, len(rows)))
    lost = kept_loss_percent(rows)
    for preprocesses in (False, True):
        causes = find_causes(rows, preprocesses=preprocesses, workers=3, reads_stall=preprocesses)
        assert causes.total == pytest.approx(lost.total - lost.uneven_computation, abs=1e-6)


def test_blocked_in_reads_is_the_storage() -> None:
    limit = limit_of(late_steps())
    assert (limit.what, limit.confidence, limit.findings) == ("storage", "high", ())
    assert limit.numbers["app_mb_per_second"] == pytest.approx(2 * 80 * 1.048576 / 0.04, rel=0.1)


def test_a_busy_device_is_the_limit_though_somebody_lacks_memory() -> None:
    limit = limit_of(late_steps(), memory_some_percent=30.0, device=Device(mean_depth=8, busy_percent=99))
    assert (limit.what, limit.confidence, found(limit)) == ("storage", "medium", {"memory_pressure": {"percent": 30.0}})
    idle = limit_of(late_steps(), memory_some_percent=30.0, device=Device(mean_depth=8, busy_percent=50))
    assert (idle.what, [*found(idle)]) == ("host CPU", [Code.MEMORY_PRESSURE])


def test_nobody_waited() -> None:
    assert limit_of(make_steps([[0.1, 0.0]] * 5)).what == "nothing"


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
        ({}, {"ceiling_au": 50.0}, "emulator"),
        ({}, {"ceiling_au": 50.0, "collates": True}, "host CPU"),
        ({}, {"ceiling_au": 89.0}, "storage"),
        ({}, {"memory_some_percent": 30.0}, "host CPU"),
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


WAITING = Causes(storage=70.0)


ENOUGH = Work(
    elapsed_seconds=10,
    starved_share=0.0,
    cpu_known=True,
    readers=16.0,
    call_ms=12.3456,
    call_bytes=4096,
    app_mb_per_second=1234.56,
    wanted_mb_per_second=5432.19,
)
"""Readers enough that nothing but the storage is to blame for the reads."""


def reading(**changes: Any) -> Work:
    return replace(ENOUGH, app_mb_per_second=100, wanted_mb_per_second=400, **changes)


def more_got(mb_per_second: float) -> dict[str, Scaling]:
    """A trial right after the run, of one reader and four."""
    rates: dict[str, Any] = {"mb_per_second": 100, "more_mb_per_second": mb_per_second, "again_mb_per_second": 0.0}
    return {"scaling": Scaling(readers=1, more_readers=4, **rates)}


@pytest.mark.parametrize(
    ("work", "around", "what", "confidence"),
    [
        (reading(readers=1, call_bytes=4096), {}, "loader", "low"),
        (reading(readers=1, call_bytes=8 << 20), {}, "storage", "high"),
        (reading(readers=16, call_bytes=4096), {}, "storage", "high"),
        (reading(readers=1, call_bytes=4096), {"device": Device(mean_depth=1.0, busy_percent=99)}, "loader", "low"),
        (reading(readers=1, call_bytes=4096), {"device": Device(mean_depth=1.0, busy_percent=80)}, "loader", "medium"),
        (reading(readers=2, call_bytes=1e6), {"device": Device(mean_depth=2.0, busy_percent=97)}, "storage", "low"),
        (reading(readers=2, call_bytes=4096), {"device": Device(mean_depth=2.0, busy_percent=97)}, "loader", "low"),
        (reading(readers=1, call_bytes=4096), {"device": Device(mean_depth=0.1, busy_percent=9)}, "storage", "medium"),
        (reading(readers=8, call_bytes=4096), {"device": Device(mean_depth=7.5, busy_percent=99)}, "storage", "high"),
        (reading(readers=1, call_bytes=8 << 20), more_got(390), "loader", "high"),
        (reading(readers=1, call_bytes=4096), more_got(101), "storage", "high"),
    ],
)
def test_too_few_readers_are_told_from_slow_storage(
    work: Work, around: dict[str, Any], what: str, confidence: str
) -> None:
    limit = judge_limit(25.0, WAITING, work, Context(read_threads=1, **around))
    assert (limit.what, limit.confidence) == (what, confidence)
    assert found(limit) == ({Code.TOO_FEW_READERS: {"read_threads": 1}} if what == "loader" else {})


def test_readers_whose_cpu_is_not_known_are_blamed_with_less_confidence() -> None:
    rows = late_steps(cpu_ms=0)
    assert limit_of(rows).confidence == "medium"
    assert limit_of(rows, host_busy_percent=99.0).what == "host CPU"
    assert limit_of(rows, from_storage_percent=0.0).what == "loader"


def test_a_device_whose_queue_is_never_empty_is_the_limit_though_the_cores_are_busy() -> None:
    """Readers that lack a core leave the device with nothing to do."""
    rows, full = late_steps(cpu_ms=0), Device(mean_depth=8, busy_percent=99)
    assert limit_of(rows, host_busy_percent=99.0, device=full).what == "storage"
    assert limit_of(rows, host_busy_percent=99.0, device=Device(mean_depth=1, busy_percent=99)).what == "host CPU"
    assert limit_of(rows, host_busy_percent=99.0, device=Device(mean_depth=8, busy_percent=50)).what == "host CPU"


def test_a_loader_that_tells_no_calls_is_not_said_to_make_one() -> None:
    rows = late_steps(cpu_ms=0)
    rows["read_calls"] = 0
    limit = limit_of(rows)
    assert (limit.what, limit.confidence) == ("storage", "medium")
    assert "call_bytes" not in limit.numbers


BUSY = {"host_busy_percent": 99.0}


OTHERS = {"busy_percent": 99.0, "own_percent": 20.0}


@pytest.mark.parametrize(
    ("around", "findings"),
    [
        (BUSY | {"own_busy_percent": 20.0}, {Code.OTHER_PROGRAM_ON_CORES: OTHERS}),
        (BUSY | {"own_busy_percent": 90.0}, {}),
        (
            BUSY | {"own_busy_percent": 20.0, "cpu_throttled_percent": 40.0},
            {
                Code.OTHER_PROGRAM_ON_CORES: OTHERS,
                Code.CPU_QUOTA: {"used_percent": 0.0, "throttled_percent": 40.0},
            },
        ),
        (
            {"host_busy_percent": 66.0, "own_busy_percent": 1.0, "cpu_limit_used_percent": 99.0},
            {Code.CPU_QUOTA: {"used_percent": 99.0, "throttled_percent": 0.0}},
        ),
    ],
)
def test_who_has_the_cores_is_found(around: dict[str, Any], findings: dict[str, Any]) -> None:
    limit = limit_of(late_steps(cpu_ms=70, cpu_wait_ms=29), **around)
    assert (limit.what, found(limit)) == ("host CPU", findings)


def test_a_cpu_limit_that_is_far_off_limits_nothing() -> None:
    rows = late_steps(cpu_ms=99)
    assert limit_of(rows, host_busy_percent=4.0, cpu_limit_used_percent=6.0).what == "loader"


def test_other_readers_of_the_device_are_named_whatever_more_readers_got() -> None:
    """More readers get more of a drive that is shared: that says nothing of what it had left."""
    more = Scaling(readers=4, mb_per_second=60, more_readers=16, more_mb_per_second=110, again_mb_per_second=0.0)
    others = Finding.of(Code.OTHER_PROGRAM_ON_DRIVE, mb_per_second=52, percent=38)
    limit = limit_of(late_steps(), scaling=more, other_program=others)
    assert (limit.what, limit.findings) == ("storage", (others,))


def test_a_storage_that_became_faster_during_the_trial_does_not_say_that_readers_were_too_few() -> None:
    work = reading(readers=4, call_bytes=4096)
    faster = Scaling(readers=4, mb_per_second=60.0, more_readers=16, more_mb_per_second=137.0, again_mb_per_second=0.0)

    def what(scaling: Scaling, work: Work) -> str:
        return judge_limit(25.0, WAITING, work, Context(scaling=scaling)).what

    assert what(faster, work) == "loader"
    assert what(replace(faster, again_mb_per_second=136.0), work) == "storage"
    assert what(faster, replace(work, app_mb_per_second=110)) == "storage", "the run got no less with its own"


@pytest.mark.parametrize("changes", [{}, {"started_ns": 29, "finished_ns": 30, "read_ns": 1}])
def test_who_used_up_its_cpu_limit_waits_for_that_whatever_it_looks_blocked_in(changes: dict[str, Any]) -> None:
    rows = late_steps(**changes)
    limit: dict[str, Any] = {"cpu_limit_used_percent": 99.0}
    limited = limit_of(rows, **limit)
    assert (limited.what, [*found(limited)]) == ("host CPU", [Code.CPU_QUOTA])
    assert limit_of(rows, ceiling_au=30.0, **limit).what == "host CPU"
    held_back = limit_of(rows, cpu_limit_used_percent=60.0, cpu_throttled_percent=80.0)
    assert held_back.what == "host CPU"
    assert found(held_back)[Code.CPU_QUOTA]["throttled_percent"] == 80.0
    full = Device(mean_depth=8, busy_percent=99)
    assert limit_of(late_steps(), device=full, **limit).what == "storage"


def test_of_an_object_store_a_full_network_is_named() -> None:
    for percent, findings in ((30.0, {}), (97.0, {Code.NETWORK_FULL: {"percent": 97.0}})):
        limit = limit_of(late_steps(), is_object_store=True, network_percent=percent)
        assert (limit.what, found(limit)) == ("storage", findings)


def test_few_requests_at_a_long_latency_want_more_in_flight() -> None:
    trial = Scaling(readers=8, mb_per_second=1e5, more_readers=32, more_mb_per_second=3.8e5, again_mb_per_second=1e5)
    limit = limit_of(late_steps(), is_object_store=True, scaling=trial)
    assert (limit.what, found(limit)) == (
        "loader",
        {Code.TOO_FEW_READERS: {"read_threads": 1, "pattern": "requests"}},
    )


@pytest.mark.parametrize(
    ("trials", "code", "setting"),
    [
        ({"fewer_readers": 2, "fewer_mb_per_second": 2e5}, Code.TOO_MANY_READERS, {"read_threads": 1}),
        ({"larger_request_bytes": 4096, "larger_mb_per_second": 2e5}, Code.REQUESTS_TOO_SMALL, {"transfer_size": 4096}),
        ({"fewer_readers": 2, "fewer_mb_per_second": 1.2e5}, None, {}),
    ],
)
def test_the_trial_that_got_more_after_the_run_is_the_cause(
    trials: dict[str, Any], code: Code | None, setting: dict[str, int]
) -> None:
    scaling = Scaling(readers=8, mb_per_second=1e5, again_mb_per_second=1e5, **trials)
    limit = limit_of(late_steps(), scaling=scaling, read_threads=4)
    assert [*found(limit)] == ([code] if code else [])
    assert limit.what == ("loader" if code else "storage")
    assert not code or setting.items() <= found(limit)[code].items()


LIMITED_BY = {
    "storage": "storage",
    "computing": "loader",
    "pause": "loader",
    "queueing": "loader",
    "starved": "host CPU",
    "hand_over": "emulator",
}
"""What is named when one cause outweighs all others."""
FULL = Device(mean_depth=FEW_REQUESTS, busy_percent=BUSY_PERCENT)


def limit_at(au: float = 40.0, causes: Causes | None = None, work: Work = ENOUGH, **around: Any) -> Limit:
    return judge_limit(au, causes or Causes(storage=60.0), work, Context(read_threads=5, **around))


def told(limit: Limit) -> tuple[str, str]:
    return limit.what, limit.confidence


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
    wanted = LIMITED_BY[largest] if causes.total >= MIN_LOSS_PERCENT else "nothing"  # lost, but for rounding
    assert limit_at(100 - lost, causes).what == wanted


@pytest.mark.parametrize(
    ("causes", "around", "what"),
    [
        ({"computing": 15, "queueing": 15, "hand_over": 5}, {"host_busy_percent": 99.0}, "host CPU"),
        ({"computing": 15, "queueing": 15, "hand_over": 5}, {"host_busy_percent": 80.0}, "storage"),
        ({"computing": 15, "queueing": 15, "hand_over": 5}, {"host_busy_percent": 99.0, "device": FULL}, "storage"),
        ({"computing": 15, "pause": 20}, {"host_busy_percent": 99.0}, "storage"),  # a sleep needs no core
        ({}, {"au": 75.0, "ceiling_au": 70.0}, "storage"),  # the run itself reached more
        ({}, {"au": 75.0, "ceiling_au": 80.0}, "emulator"),
    ],
)
def test_reads_are_weighed_against_all_that_the_host_cost(
    causes: dict[str, float], around: dict[str, Any], what: str
) -> None:
    assert limit_at(causes=Causes(storage=25.0, **causes), **around).what == what


def test_preprocessing_that_burns_wants_a_core_and_one_that_sleeps_does_not() -> None:
    burning = replace(ENOUGH, burns=True)
    for work, busy_percent, what in ((burning, BUSY_PERCENT, "host CPU"), (ENOUGH, BUSY_PERCENT, "loader")):
        assert limit_at(causes=Causes(pause=60), work=work, host_busy_percent=busy_percent).what == what
    assert limit_at(causes=Causes(pause=60), work=burning, host_busy_percent=10.0).what == "loader"


def test_where_ranks_wake_late_the_workers_that_began_nothing_are_no_limit_of_the_loader() -> None:
    """Nobody watched the cores, and workers that are not at work have no account of who kept them from it."""
    queued = Causes(queueing=60)
    limit = limit_at(causes=queued, work=replace(ENOUGH, late_share=STARVED_SHARE))
    assert told(limit) == ("emulator", "medium")
    assert told(limit_at(causes=queued, work=replace(ENOUGH, late_share=STARVED_SHARE - 0.01))) == ("loader", "high")
    watched = limit_at(causes=queued, work=replace(ENOUGH, late_share=0.5), host_busy_percent=BUSY_PERCENT)
    assert told(watched) == ("host CPU", "high")
    assert told(limit_at(work=replace(ENOUGH, late_share=0.9))) == ("storage", "high"), (
        "a read that blocks needs no core"
    )


def test_how_late_ranks_woke_is_a_share_of_all_their_time() -> None:
    rows = make_steps([[30.0, 30.0]] * 20)  # 40 ms each
    assert work_of(rows, preprocesses=False).late_share == 0
    rows["slept_ns"] = rows["free_ns"] + rows["wait_ns"] + rows["compute_ns"]
    rows["slept_ns"][::2] += 20 * MS  # one of two ranks
    assert work_of(rows, preprocesses=False).late_share == pytest.approx(10 / 50)
    rows["slept_ns"][1::2] -= 5 * MS  # a stamp before the end of the step takes nothing back
    assert work_of(rows, preprocesses=False).late_share == pytest.approx(10 / 50)


def few(**changes: Any) -> Work:
    return replace(ENOUGH, app_mb_per_second=1.0, **changes)


@pytest.mark.parametrize(
    ("causes", "work", "ranks", "io_depth", "expected"),
    [
        (Causes(storage=60), few(readers=2.0), 3, None, True),
        (Causes(storage=60), few(readers=2.0), 4, None, False),  # 8 requests
        (Causes(storage=60), few(readers=1.0), 1, 8, False),
        (Causes(storage=MIN_LOSS_PERCENT - 0.01), few(readers=1.0), 1, None, False),
        (Causes(storage=29, queueing=31), few(readers=1.0), 1, None, False),
    ],
)
def test_more_requests_are_worth_a_trial_where_reads_are_most_of_the_loss_and_few(
    causes: Causes, work: Work, ranks: int, io_depth: int | None, expected: bool
) -> None:
    assert reads_may_be_too_few(causes, work, ranks, io_depth) is expected

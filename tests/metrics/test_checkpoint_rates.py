"""Formulas of checkpoints against numbers worked out by hand, and what limits them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.jobs.checkpoint.analyse import (
    BUSY_PERCENT,
    FROM_MEMORY_PERCENT,
    STARVED_PERCENT,
    THREAD_PERCENT,
    WAIT_PERCENT,
    judge,
)
from dlemu.jobs.checkpoint.summary import Caveat
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
from dlemu.metrics.findings import Code
from tests.results.handmade import checkpoint_run
from tests.runs import present

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


_OF_HOSTS = {"host_busy_percent", "device_busy_percent", "link_percent", "throttled_percent"}
FULL = {"device_busy_percent": BUSY_PERCENT}
READ = {"name": "read", "fsync_percent": 0.0}


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
        (READ | {"from_storage_percent": FROM_MEMORY_PERCENT}, "storage", "medium", None),
        (READ | {"from_storage_percent": 3.0}, "page cache", "high", None),
        ({"starved_percent": STARVED_PERCENT}, "emulator", "medium", None),
        ({"starved_percent": 30.1} | FULL, "emulator", "high", None),
        ({"cpu_wait_percent": WAIT_PERCENT}, "host CPU", "medium", None),
        ({"cpu_wait_percent": 2 * WAIT_PERCENT, "throttled_percent": 9.0}, "host CPU", "high", None),
        ({"cpu_wait_percent": 2 * WAIT_PERCENT, "throttled_percent": 10.0}, "host CPU", "high", Code.CPU_QUOTA),
        ({"cpu_wait_percent": 99.0} | FULL, "storage", "high", None),
        ({"link_percent": BUSY_PERCENT}, "storage", "high", Code.NETWORK_FULL),
        ({"cpu_percent": THREAD_PERCENT}, "host CPU", "medium", Caveat.TOO_FEW_THREADS),
        ({"cpu_percent": 99.0} | FULL, "storage", "high", None),
    ],
)
def test_what_limits_is_named_with_its_certainty(
    changes: dict[str, Any], what: str, confidence: str, found: str | None
) -> None:
    known: dict[str, Any] = {"call_percent": 60.0, "fsync_percent": 25.0, "starved_percent": 1.0, "name": "write"}
    known |= {"cpu_percent": 20.0, "cpu_wait_percent": 2.0} | changes
    name = known.pop("name")
    host = {use: known.pop(use) for use in _OF_HOSTS & known.keys()}
    phase = present(checkpoint_run().summary.write)
    limit, findings = judge(name, replace(phase, **known), **host, threads=7)
    assert (limit.what, limit.confidence) == (what, confidence)
    assert [finding.code for finding in findings] == ([] if found is None else [found])
    if found == Caveat.TOO_FEW_THREADS:
        assert findings[0].numbers == {"setting": "checkpoint.writers", "threads": 7}

"""What limited checkpoints: each verdict with its certainty, its evidence and its advice."""

from __future__ import annotations

from typing import Any

import pytest

from dlemu.jobs.checkpoint.limits import (
    BUSY_PERCENT,
    FROM_MEMORY_PERCENT,
    STARVED_PERCENT,
    THREAD_PERCENT,
    WAIT_PERCENT,
    Advice,
    PhaseActivity,
    judge_checkpoints,
)
from dlemu.jobs.checkpoint.wording import in_words


def activity(**changes: Any) -> PhaseActivity:
    """Writes of a rank with nothing that stands out; what is not given is not known."""
    known: dict[str, Any] = {
        "phase": "write",
        "gb_per_second": 1234.567,
        "call_percent": 60.0,
        "fsync_percent": 25.0,
        "starved_percent": 1.0,
        "cpu_percent": 20.0,
        "cpu_wait_percent": 2.0,
        "threads": 7,
    }
    return PhaseActivity(**(known | changes))


FULL = {"device_busy_percent": BUSY_PERCENT}
READ = {"phase": "read", "fsync_percent": 0.0}


@pytest.mark.parametrize(
    ("changes", "what", "confidence"),
    [
        ({}, "storage write", "medium"),
        (READ, "storage read", "medium"),
        (FULL, "storage write", "high"),
        ({"device_busy_percent": 10.0, "call_percent": 90.0, "fsync_percent": 0.0}, "storage write", "high"),
        (
            {"device_busy_percent": 10.0, "call_percent": 99.0, "fsync_percent": 0.0, "host_busy_percent": 90.0},
            "storage write",
            "medium",
        ),
        (READ | {"from_storage_percent": FROM_MEMORY_PERCENT}, "storage read", "medium"),
        (READ | {"from_storage_percent": 3.0}, "page cache", "high"),
        ({"from_storage_percent": 0.0}, "storage write", "medium"),
        ({"starved_percent": STARVED_PERCENT}, "generation", "medium"),
        ({"starved_percent": 30.1} | FULL, "generation", "high"),
        ({"cpu_wait_percent": WAIT_PERCENT}, "host CPU", "medium"),
        ({"cpu_wait_percent": 2 * WAIT_PERCENT}, "host CPU", "high"),
        ({"cpu_wait_percent": 99.0} | FULL, "storage write", "high"),
        ({"link_percent": BUSY_PERCENT}, "network", "high"),
        ({"cpu_percent": THREAD_PERCENT}, "host CPU", "medium"),
        ({"cpu_percent": 99.0} | FULL, "storage write", "high"),
    ],
)
def test_what_limits_is_named_with_its_certainty(changes: dict[str, Any], what: str, confidence: str) -> None:
    limit = in_words(judge_checkpoints(activity(**changes)))
    assert (limit.what, limit.confidence) == (what, confidence)


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({}, [Advice.TRY_MORE_THREADS]),
        (READ, [Advice.TRY_MORE_THREADS]),
        (READ | {"from_storage_percent": 1.0}, [Advice.EVICT]),
        (READ | {"from_storage_percent": 1.0, "evicted": True}, [Advice.GO_PAST_CACHE]),
        ({"starved_percent": 50.0}, [Advice.MORE_CORES_A_RANK]),
        ({"cpu_wait_percent": 50.0}, [Advice.SPARE_CACHE_COPY]),
        ({"cpu_wait_percent": 50.0, "throttled_percent": 9.0}, [Advice.SPARE_CACHE_COPY]),
        ({"cpu_wait_percent": 50.0, "throttled_percent": 10.0}, [Advice.RAISE_CPU_LIMIT]),
        ({"link_percent": 95.0}, [Advice.FASTER_LINK]),
        ({"cpu_percent": 95.0}, [Advice.MORE_THREADS_OR_DIRECT]),
        (READ | {"cpu_percent": 95.0}, [Advice.MORE_THREADS_OR_DIRECT]),
        (FULL, []),  # nothing more can be asked of it
        (READ | {"cpu_wait_percent": 50.0, "verified": True}, [Advice.VERIFY_LESS, Advice.SPARE_CACHE_COPY]),
    ],
)
def test_a_limit_says_what_to_do(changes: dict[str, Any], advice: list[Advice]) -> None:
    limit = in_words(judge_checkpoints(activity(**changes)))
    assert [said.code for said in limit.to_do] == advice
    if {Advice.TRY_MORE_THREADS, Advice.MORE_THREADS_OR_DIRECT} & {*advice}:
        assert limit.to_do[0].numbers == {"phase": changes.get("phase", "write"), "threads": 7}


def test_who_is_past_the_page_cache_is_not_sent_there() -> None:
    there = {Advice.SPARE_CACHE_COPY, Advice.MORE_THREADS_OR_DIRECT, Advice.EVICT, Advice.GO_PAST_CACHE}
    for changes in ({"cpu_wait_percent": 99.0}, {"cpu_percent": 99.0}, READ | {"from_storage_percent": 1.0}):
        assert {found.code for found in judge_checkpoints(activity(**changes)).to_do} <= there
        past = judge_checkpoints(activity(past_page_cache=True, **changes)).to_do
        assert not {found.code for found in past} & there

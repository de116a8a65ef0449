"""What limited checkpoints: each verdict with its certainty, its evidence and its advice, at its edges."""

from __future__ import annotations

from typing import Any

import pytest

from dlemu.metrics.checkpoint_limit import (
    BUSY_PERCENT,
    FROM_MEMORY_PERCENT,
    STARVED_PERCENT,
    THREAD_PERCENT,
    WAIT_PERCENT,
    Moved,
    judge_checkpoints,
)


def moved(**changes: Any) -> Moved:
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
    return Moved(**(known | changes))


FULL = {"device_busy_percent": BUSY_PERCENT}
READ = {"phase": "read", "fsync_percent": 0.0}


@pytest.mark.parametrize(
    ("changes", "what", "confidence"),
    [
        ({}, "storage write", "medium"),
        (READ, "storage read", "medium"),
        (FULL, "storage write", "high"),
        ({"device_busy_percent": BUSY_PERCENT - 0.1}, "storage write", "medium"),
        ({"device_busy_percent": 10.0, "call_percent": 65.0}, "storage write", "high"),
        ({"device_busy_percent": 10.0, "call_percent": 64.9}, "storage write", "medium"),
        ({"device_busy_percent": 10.0, "call_percent": 90.0, "fsync_percent": 0.0}, "storage write", "high"),
        ({"call_percent": 99.0}, "storage write", "medium"),
        (READ | {"from_storage_percent": FROM_MEMORY_PERCENT}, "storage read", "medium"),
        (READ | {"from_storage_percent": FROM_MEMORY_PERCENT - 0.1}, "page cache", "high"),
        ({"from_storage_percent": 0.0}, "storage write", "medium"),
        ({"starved_percent": STARVED_PERCENT}, "generation", "medium"),
        ({"starved_percent": STARVED_PERCENT - 0.1}, "storage write", "medium"),
        ({"starved_percent": 30.0}, "generation", "medium"),
        ({"starved_percent": 30.1}, "generation", "high"),
        ({"starved_percent": 30.1} | FULL, "generation", "high"),
        ({"cpu_wait_percent": WAIT_PERCENT}, "host CPU", "medium"),
        ({"cpu_wait_percent": WAIT_PERCENT - 0.1}, "storage write", "medium"),
        ({"cpu_wait_percent": 2 * WAIT_PERCENT}, "host CPU", "high"),
        ({"cpu_wait_percent": 2 * WAIT_PERCENT - 0.1}, "host CPU", "medium"),
        ({"cpu_wait_percent": 99.0} | FULL, "storage write", "high"),
        ({"link_percent": BUSY_PERCENT}, "network", "high"),
        ({"link_percent": BUSY_PERCENT - 0.1}, "storage write", "medium"),
        ({"cpu_percent": THREAD_PERCENT}, "host CPU", "medium"),
        ({"cpu_percent": THREAD_PERCENT - 0.1}, "storage write", "medium"),
        ({"cpu_percent": 99.0} | FULL, "storage write", "high"),
    ],
)
def test_a_verdict_changes_exactly_at_its_edges(changes: dict[str, Any], what: str, confidence: str) -> None:
    limit = judge_checkpoints(moved(**changes))
    assert (limit.what, limit.confidence) == (what, confidence)


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({}, "try more checkpoint.writers (now 7)"),
        (READ, "try more checkpoint.readers (now 7)"),
        (READ | {"from_storage_percent": 1.0}, "checkpoint.evict_page_cache=true"),
        (READ | {"from_storage_percent": 1.0, "evicted": True}, "checkpoint.odirect=true goes past it"),
        ({"starved_percent": 50.0}, "more cores a rank"),
        ({"cpu_wait_percent": 50.0}, "checkpoint.odirect=true"),
        ({"cpu_wait_percent": 50.0, "throttled_percent": 9.0}, "checkpoint.odirect=true"),
        ({"cpu_wait_percent": 50.0, "throttled_percent": 10.0}, "raise the CPU limit"),
        ({"link_percent": 95.0}, "a faster link"),
        ({"cpu_percent": 95.0}, "raise checkpoint.writers (now 7)"),
        (READ | {"cpu_percent": 95.0}, "raise checkpoint.readers (now 7)"),
    ],
)
def test_a_verdict_says_what_to_do(changes: dict[str, Any], advice: str) -> None:
    (said,) = judge_checkpoints(moved(**changes)).advice
    assert advice in said


def test_where_the_device_is_full_nothing_more_can_be_asked_of_it() -> None:
    assert judge_checkpoints(moved(**FULL)).advice == ()


def test_the_evidence_has_every_figure_that_is_known_and_no_other() -> None:
    (only,) = judge_checkpoints(moved()).evidence
    assert "1,234.57 GB/s" in only
    assert "60 % of the time in write calls, 25 % in fsync and had a core 20 % of it, wanted one 2 %" in only
    (read,) = judge_checkpoints(moved(**READ)).evidence
    assert "60 % of the time in read calls and had a core" in read
    whole = {
        "ceiling_gb_per_second": 4321.09,
        "device_mb_per_second": 5432.4,
        "device_depth": 3.25,
        "device_busy_percent": 77.4,
        "host_busy_percent": 66.4,
        "link_percent": 55.4,
    }
    _, content, devices, cores, link = judge_checkpoints(moved(**whole)).evidence
    assert "4,321.1 GB/s; threads waited for it 1.0 % of the time" in content
    assert devices == "the devices: 5,432 MB/s, busy 77 % of the time, mean queue depth 3.2"
    assert "66 % of the time" in cores
    assert "55 %" in link
    bare = judge_checkpoints(moved(device_mb_per_second=5.0)).evidence
    assert bare[1:] == ("the devices: 5 MB/s",)


def test_what_a_read_had_of_the_storage_is_at_most_all() -> None:
    for phase, shares in (("read", [(180.0, "100 %"), (99.4, "99 %"), (40.0, "40 %")]), ("write", [])):
        for percent, said in shares:
            evidence = judge_checkpoints(moved(phase=phase, from_storage_percent=percent)).evidence
            assert evidence[1] == f"the storage served {said} of the bytes"
    assert len(judge_checkpoints(moved(from_storage_percent=40.0)).evidence) == 1, "of writes it says nothing"
    assert len(judge_checkpoints(moved(**READ, ceiling_gb_per_second=5.0)).evidence) == 1


def test_who_is_past_the_page_cache_is_not_sent_there() -> None:
    for changes in ({"cpu_wait_percent": 99.0}, {"cpu_percent": 99.0}, READ | {"from_storage_percent": 1.0}):
        assert "odirect" in " ".join(judge_checkpoints(moved(**changes)).advice)
        assert "odirect" not in " ".join(judge_checkpoints(moved(past_page_cache=True, **changes)).advice)

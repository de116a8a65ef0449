"""What limited checkpoints: each verdict with its certainty, and what was found beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlemu.jobs.checkpoint.analyse import (
    BUSY_PERCENT,
    FROM_MEMORY_PERCENT,
    STARVED_PERCENT,
    THREAD_PERCENT,
    WAIT_PERCENT,
    judge,
)
from dlemu.jobs.checkpoint.summary import Caveat
from dlemu.metrics.findings import Code
from tests.results.handmade import checkpoint_run

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
    phase = checkpoint_run().summary.write
    assert phase is not None
    limit, findings = judge(name, replace(phase, **known), **host, threads=7)
    assert (limit.what, limit.confidence) == (what, confidence)
    assert [finding.code for finding in findings] == ([] if found is None else [found])
    if found == Caveat.TOO_FEW_THREADS:
        assert findings[0].numbers == {"setting": "checkpoint.writers", "threads": 7}

"""What limited a packing, from what its processes and the host did."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dlemu.contrib.pack.analyse import PackMeasurement, shares_of
from dlemu.contrib.pack.limits import Advice, judge_packing
from dlemu.contrib.pack.result import PackDevice, PackLimit, PackShares
from dlemu.contrib.pack.worker import ROW_DTYPE

MS = 1_000_000


def judged(**changed: Any) -> PackLimit:
    shares = {part: changed.pop(part, 0.0) for part in ("reading", "computing", "wanting_core", "writing", "idle")}
    device = PackDevice(
        mean_depth=changed.pop("mean_depth", 8.0), busy_percent=changed.pop("device_busy_percent", 99.0)
    )
    host: dict[str, Any] = {
        "processes": 4,
        "cores": 8,
        "host_busy_percent": 40.0,
        "own_busy_percent": 30.0,
        "throttled_percent": math.nan,
    }
    return judge_packing(PackShares(**shares), device, **host | changed)


@pytest.mark.parametrize(
    ("seen", "what", "advice"),
    [
        ({"reading": 90, "computing": 10}, "storage", Advice.FASTER_TO_READ),
        ({"writing": 90, "computing": 10}, "storage", Advice.FASTER_TO_WRITE),
        (
            {"reading": 90, "computing": 10, "mean_depth": 1, "device_busy_percent": 50},
            "processes",
            Advice.MORE_REQUESTS,
        ),
        ({"reading": 90, "computing": 10, "mean_depth": 1}, "storage", Advice.TRY_MORE_PROCESSES),
        ({"computing": 95, "writing": 5}, "processes", Advice.USE_FREE_CORES),
        ({"computing": 95, "writing": 5, "processes": 8}, "host CPU", Advice.MORE_CORES),
        (
            {"computing": 40, "wanting_core": 55, "reading": 5, "host_busy_percent": 100},
            "host CPU",
            Advice.STOP_OTHER_PROGRAMS,
        ),
        ({"wanting_core": 95, "host_busy_percent": 100, "throttled_percent": 10}, "host CPU", Advice.RAISE_CPU_LIMIT),
        ({"computing": 10, "idle": 90, "processes": 96}, "images", Advice.MORE_IMAGES),
    ],
)
def test_what_limited(seen: dict[str, Any], what: str, advice: Advice) -> None:
    limit = judged(**seen)
    assert limit.what == what
    assert limit.to_do[-1].code == advice
    assert len(limit.evidence) == len(limit.seen)
    assert limit.advice


def packing(**spent_ms: int) -> PackMeasurement:
    """One process that packed for a second."""
    rows = np.zeros(1, ROW_DTYPE)
    for name, value in spent_ms.items():
        rows[f"{name}_ns"] = value * MS
    return PackMeasurement(rows=rows, begin_ns=0, end_ns=1000 * MS, telemetry=None, finished=(), cores=1)


def test_waiting_for_the_reader_is_the_storage_s_where_that_was_blocked() -> None:
    shares = shares_of(
        packing(await_read=600, compute=300, compute_cpu=200, await_write=100, read=500, read_cpu=100, read_cpu_wait=50)
    )
    assert shares.reading == pytest.approx(60 * 0.7)
    assert shares.computing == pytest.approx(20 + 60 * 0.2)
    assert shares.wanting_core == pytest.approx(10 + 60 * 0.1)
    assert shares.writing == pytest.approx(10)
    assert shares.idle == pytest.approx(0, abs=1e-9)


def test_a_process_without_images_is_idle() -> None:
    shares = shares_of(packing(await_read=900, await_task=900, compute=100, compute_cpu=100))
    assert (round(shares.idle), round(shares.computing), round(shares.reading)) == (90, 10, 0)

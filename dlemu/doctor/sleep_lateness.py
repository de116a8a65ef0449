"""Sleeps end on time. A late one costs the accelerators nothing unless it makes the next batch late."""

from __future__ import annotations

import time

from dlemu.comm.clock import MonotonicClock
from dlemu.doctor.check_base import Check, Facts

NAME, ORDER = "sleep", 160
_SLEEP_NS, _TRIED_SECONDS, _LATE_US = 1_000_000, 0.3, 2_000  # 2 ms: most of cosmoflow's step on an h100


def check(facts: Facts) -> Check:
    return judge(oversleeps_us())


def oversleeps_us() -> list[float]:
    """Return how much too long sleeps of 1 ms are, in microseconds, sorted; takes 0.3 s."""
    clock = MonotonicClock()
    end, late = time.monotonic() + _TRIED_SECONDS, []
    while time.monotonic() < end:
        deadline_ns = clock.now_ns() + _SLEEP_NS
        clock.sleep_until(deadline_ns)
        late.append((clock.now_ns() - deadline_ns) / 1e3)
    return sorted(late)


def judge(late_us: list[float]) -> Check:
    """Look at the median of sorted latenesses."""
    median, high = late_us[len(late_us) // 2], late_us[min(len(late_us) - 1, len(late_us) * 99 // 100)]
    observed = f"1 ms sleeps end {median:.0f} us late (p99 {high:.0f} us)"
    if median > _LATE_US:
        advice = "stop other programs; workloads with steps of a few milliseconds will suffer"
        return Check(name=NAME, level="warn", observed=observed, wanted=f"below {_LATE_US} us", advice=advice)
    return Check(name=NAME, level="ok", observed=observed)

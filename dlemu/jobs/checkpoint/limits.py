"""Decides what limited writing or reading checkpoints, with what there is to do about it beside faster storage."""

from __future__ import annotations

from dlemu.jobs.checkpoint.summary import Cause, Caveat, Phase, PhaseSummary
from dlemu.metrics.findings import Code, Confidence, Finding, LimitedBy
from dlemu.metrics.limit import HELD_BACK_PERCENT

STARVED_PERCENT = 10.0
"""Threshold: content generation is the limit if threads wait for content at least this share of their time."""
BUSY_PERCENT = 90.0  # as in training: dlemu.metrics.limit.BUSY_PERCENT
"""Threshold: a device or a network link this busy is saturated."""
WAIT_PERCENT = 15.0  # as in training: dlemu.metrics.limit.STARVED_SHARE
"""Threshold: the host's CPU is the limit if threads wait for a core at least this share of their time."""
THREAD_PERCENT = 85.0
"""Threshold: copying bytes is the limit if threads run on a core at least this share of their time."""
FROM_MEMORY_PERCENT = 50.0  # as in training: dlemu.metrics.cache.NOT_READ_PERCENT
"""Threshold: below this share of bytes from storage, the page cache was measured."""

Limit = LimitedBy[Cause]


def judge(
    name: Phase, phase: PhaseSummary, *, threads: int, throttled_percent: float | None
) -> tuple[Limit, tuple[Finding, ...]]:
    """Return what limited a phase with `threads` a rank, and what was found on the way.

    `throttled_percent` is the share of the CPU limit's periods (cgroup) in which processes were throttled, on the most
    throttled host; None without a limit.
    """
    device_full = (phase.device_busy_percent or 0.0) >= BUSY_PERCENT
    if phase.from_storage_percent is not None and phase.from_storage_percent < FROM_MEMORY_PERCENT:
        return _limit("page cache", "high"), ()
    if phase.starved_percent >= STARVED_PERCENT:
        return _limit("emulator", "high" if phase.starved_percent > 3 * STARVED_PERCENT else "medium"), ()
    if phase.cpu_wait_percent >= WAIT_PERCENT and not device_full:
        confidence: Confidence = "high" if phase.cpu_wait_percent >= 2 * WAIT_PERCENT else "medium"
        held_back = throttled_percent is not None and throttled_percent >= HELD_BACK_PERCENT
        quota = Finding.of(Code.CPU_QUOTA, "caution", throttled_percent=throttled_percent)
        return _limit("host CPU", confidence), (quota,) if held_back else ()
    if phase.link_percent is not None and phase.link_percent >= BUSY_PERCENT:
        full = Finding.of(Code.NETWORK_FULL, "caution", link_percent=phase.link_percent)
        return _limit("storage", "high"), (full,)
    if phase.cpu_percent >= THREAD_PERCENT and not device_full:
        setting = "checkpoint.writers" if name == "write" else "checkpoint.readers"
        few = Finding.of(Caveat.TOO_FEW_THREADS, "caution", setting=setting, threads=threads)
        return _limit("host CPU", "medium"), (few,)
    sure = device_full or (
        phase.device_busy_percent is not None
        and phase.call_percent + phase.fsync_percent >= 90
        and (phase.host_busy_percent or 0.0) < BUSY_PERCENT  # what carries the calls out needs cores, too
    )
    return _limit("storage", "high" if sure else "medium"), ()


def _limit(what: Cause, confidence: Confidence) -> Limit:
    return Limit(what=what, confidence=confidence)

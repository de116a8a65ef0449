"""What limited the writing or the reading of checkpoints, with the evidence and what to do, as codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from dlemu.metrics.findings import Confidence, Finding, LimitedBy, Number
from dlemu.metrics.limit import HELD_BACK_PERCENT

What = Literal["storage write", "storage read", "host CPU", "network", "generation", "page cache"]

STARVED_PERCENT = 10.0
"""Share of the threads' time without bytes to write from which on making them is the limit."""
BUSY_PERCENT = 90.0  # as of training: dlemu.metrics.limit.BUSY_PERCENT
"""Cores, or a link, are full from this share on."""
WAIT_PERCENT = 15.0  # as of training: dlemu.metrics.limit.STARVED_SHARE
"""Share of the threads' time without a core that they want from which on the host is the limit."""
THREAD_PERCENT = 85.0
"""Share of its threads' time in which a rank had a core from which on the copying of bytes is the limit."""
FROM_MEMORY_PERCENT = 50.0  # as of training: dlemu.metrics.cache.NOT_READ_PERCENT
"""Below this share of the bytes the storage was not read."""


class Seen(StrEnum):
    """Codes of the evidence."""

    THREADS = "threads"
    CONTENT = "content"
    SERVED = "served"
    DEVICES = "devices"
    CORES = "cores"
    LINK = "link"


class Advice(StrEnum):
    """Codes of what would help."""

    EVICT = "evict"
    GO_PAST_CACHE = "go_past_cache"
    MORE_CORES_A_RANK = "more_cores_a_rank"
    RAISE_CPU_LIMIT = "raise_cpu_limit"
    SPARE_CACHE_COPY = "spare_cache_copy"
    MORE_CORES = "more_cores"
    FASTER_LINK = "faster_link"
    MORE_THREADS = "more_threads"
    MORE_THREADS_OR_DIRECT = "more_threads_or_direct"
    TRY_MORE_THREADS = "try_more_threads"


CheckpointLimit = LimitedBy[What]
"""What limited a phase."""


@dataclass(frozen=True, kw_only=True)
class PhaseActivity:
    """What is known of a phase. None where it is not."""

    phase: Literal["write", "read"]
    gb_per_second: float
    """Of all ranks over the wall, 1e9 bytes/s."""
    call_percent: float
    """Share of the threads' time in write or read calls."""
    fsync_percent: float
    starved_percent: float
    cpu_percent: float
    """Share of the threads' time in which they had a core."""
    cpu_wait_percent: float
    """The same in which they wanted one and had none."""
    ceiling_gb_per_second: float | None = None
    from_storage_percent: float | None = None
    host_busy_percent: float | None = None
    device_mb_per_second: float | None = None
    device_busy_percent: float | None = None
    device_depth: float | None = None
    link_percent: float | None = None
    """Of the busiest network interface, how much of its speed was used."""
    threads: int = 1
    """Of one rank."""
    evicted: bool = False
    """The page cache was emptied before they were read."""
    throttled_percent: float | None = None
    """Of the periods of the tightest CPU limit, those in which it held a host's processes back."""
    past_page_cache: bool = False
    """By O_DIRECT, or as they are in an object store."""


def judge_checkpoints(activity: PhaseActivity) -> CheckpointLimit:
    """Return what limited a phase, as codes."""
    what, confidence, to_do = _judged(activity)
    return CheckpointLimit(what=what, confidence=confidence, seen=tuple(_seen(activity)), to_do=to_do)


def _judged(activity: PhaseActivity) -> tuple[What, Confidence, tuple[Finding, ...]]:
    threads: dict[str, Number] = {"phase": activity.phase, "threads": activity.threads}
    if activity.phase == "read" and _from_memory(activity):
        past = Finding(Advice.GO_PAST_CACHE if activity.evicted else Advice.EVICT)
        return "page cache", "high", () if activity.past_page_cache else (past,)
    if activity.starved_percent >= STARVED_PERCENT:
        confidence: Confidence = "high" if activity.starved_percent > 30 else "medium"  # three times the limit
        return "generation", confidence, (Finding(Advice.MORE_CORES_A_RANK),)
    device_full = (activity.device_busy_percent or 0.0) >= BUSY_PERCENT
    if activity.cpu_wait_percent >= WAIT_PERCENT and not device_full:
        code = Advice.MORE_CORES if activity.past_page_cache else Advice.SPARE_CACHE_COPY
        if (activity.throttled_percent or 0.0) >= HELD_BACK_PERCENT:
            code = Advice.RAISE_CPU_LIMIT
        return "host CPU", "high" if activity.cpu_wait_percent >= 2 * WAIT_PERCENT else "medium", (Finding(code),)
    if (activity.link_percent or 0.0) >= BUSY_PERCENT:
        return "network", "high", (Finding(Advice.FASTER_LINK),)
    if activity.cpu_percent >= THREAD_PERCENT and not device_full:
        code = Advice.MORE_THREADS if activity.past_page_cache else Advice.MORE_THREADS_OR_DIRECT
        return "host CPU", "medium", (Finding(code, numbers=threads),)
    what: What = "storage write" if activity.phase == "write" else "storage read"
    sure = device_full or (
        activity.device_busy_percent is not None and activity.call_percent + activity.fsync_percent >= 90
    )
    more = Finding(Advice.TRY_MORE_THREADS, numbers=threads)
    return what, "high" if sure else "medium", () if device_full else (more,)


def _from_memory(activity: PhaseActivity) -> bool:
    return activity.from_storage_percent is not None and activity.from_storage_percent < FROM_MEMORY_PERCENT


def _seen(activity: PhaseActivity) -> Iterator[Finding]:
    threads: dict[str, Number] = {
        "phase": activity.phase,
        "gb_per_second": activity.gb_per_second,
        "call_percent": activity.call_percent,
        "fsync_percent": activity.fsync_percent,
        "cpu_percent": activity.cpu_percent,
        "cpu_wait_percent": activity.cpu_wait_percent,
    }
    yield Finding(Seen.THREADS, numbers=threads)
    if activity.phase == "write" and activity.ceiling_gb_per_second is not None:
        ceiling = {"gb_per_second": activity.ceiling_gb_per_second, "starved_percent": activity.starved_percent}
        yield Finding(Seen.CONTENT, numbers={**ceiling})
    if activity.from_storage_percent is not None and activity.phase == "read":
        yield Finding(Seen.SERVED, numbers={"percent": min(100.0, activity.from_storage_percent)})
    if activity.device_mb_per_second is not None:
        devices = {
            "mb_per_second": activity.device_mb_per_second,
            "busy_percent": activity.device_busy_percent,
            "depth": activity.device_depth,
        }
        yield Finding(Seen.DEVICES, numbers={name: value for name, value in devices.items() if value is not None})
    if activity.host_busy_percent is not None:
        yield Finding(Seen.CORES, numbers={"percent": activity.host_busy_percent})
    if activity.link_percent is not None:
        yield Finding(Seen.LINK, numbers={"percent": activity.link_percent})

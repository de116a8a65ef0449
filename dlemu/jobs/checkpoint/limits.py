"""Decides what limited writing or reading checkpoints; returns it with evidence and advice, as codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from dlemu.metrics.findings import Confidence, Finding, LimitedBy, Number
from dlemu.metrics.limit import HELD_BACK_PERCENT

What = Literal["storage write", "storage read", "host CPU", "network", "generation", "page cache"]

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


class Seen(StrEnum):
    """Codes of the evidence."""

    THREADS = "threads"
    CONTENT = "content"
    SERVED = "served"
    DEVICES = "devices"
    CORES = "cores"
    LINK = "link"


class Advice(StrEnum):
    """Codes of the advice."""

    EVICT = "evict"
    GO_PAST_CACHE = "go_past_cache"
    MORE_CORES_A_RANK = "more_cores_a_rank"
    RAISE_CPU_LIMIT = "raise_cpu_limit"
    SPARE_CACHE_COPY = "spare_cache_copy"
    MORE_CORES = "more_cores"
    VERIFY_LESS = "verify_less"
    FASTER_LINK = "faster_link"
    MORE_THREADS = "more_threads"
    MORE_THREADS_OR_DIRECT = "more_threads_or_direct"
    TRY_MORE_THREADS = "try_more_threads"


CheckpointLimit = LimitedBy[What]
"""What limited a phase, a write or read phase being all checkpoints of a run that were written or read."""


@dataclass(frozen=True, kw_only=True)
class PhaseActivity:
    """Utilisation of threads, hosts, devices and network during a phase; None: unknown."""

    phase: Literal["write", "read"]
    gb_per_second: float
    """Throughput of all ranks by wall-clock time, 1e9 bytes/s."""
    call_percent: float
    """Share of the threads' time in write or read calls."""
    fsync_percent: float
    starved_percent: float
    """Share of the threads' time waiting for content to be generated."""
    cpu_percent: float
    """Share of the threads' time running on a core."""
    cpu_wait_percent: float
    """Share of the threads' time runnable, but waiting for a core."""
    ceiling_gb_per_second: float | None = None
    from_storage_percent: float | None = None
    host_busy_percent: float | None = None
    device_mb_per_second: float | None = None
    device_busy_percent: float | None = None
    device_depth: float | None = None
    link_percent: float | None = None
    """Utilisation of the busiest network interface."""
    threads: int = 1
    """Writing or reading threads per rank."""
    evicted: bool = False
    """The files were evicted from the page cache before reading."""
    throttled_percent: float | None = None
    """Share of the CPU limit's periods (cgroup) in which processes were throttled, on the most throttled host."""
    verified: bool = False
    """Every byte read was compared, by the reading threads."""
    past_page_cache: bool = False
    """The page cache is bypassed: by O_DIRECT, or because the files are in an object store."""


def judge_checkpoints(activity: PhaseActivity) -> CheckpointLimit:
    """Return what limited a phase, as codes."""
    what, confidence, to_do = _judged(activity)
    return CheckpointLimit(what=what, confidence=confidence, seen=tuple(_seen(activity)), to_do=to_do)


def _judged(activity: PhaseActivity) -> tuple[What, Confidence, tuple[Finding, ...]]:
    threads: dict[str, Number] = {"phase": activity.phase, "threads": activity.threads}
    served = 100.0 if activity.from_storage_percent is None else activity.from_storage_percent
    if activity.phase == "read" and served < FROM_MEMORY_PERCENT:
        past = Finding(Advice.GO_PAST_CACHE if activity.evicted else Advice.EVICT)
        return "page cache", "high", () if activity.past_page_cache else (past,)
    if activity.starved_percent >= STARVED_PERCENT:
        confidence: Confidence = "high" if activity.starved_percent > 30 else "medium"  # three times the threshold
        return "generation", confidence, (Finding(Advice.MORE_CORES_A_RANK),)
    less: tuple[Finding, ...] = (Finding(Advice.VERIFY_LESS),) if activity.verified else ()
    device_full = (activity.device_busy_percent or 0.0) >= BUSY_PERCENT
    if activity.cpu_wait_percent >= WAIT_PERCENT and not device_full:
        code = Advice.MORE_CORES if activity.past_page_cache else Advice.SPARE_CACHE_COPY
        if (activity.throttled_percent or 0.0) >= HELD_BACK_PERCENT:
            code = Advice.RAISE_CPU_LIMIT
        confidence = "high" if activity.cpu_wait_percent >= 2 * WAIT_PERCENT else "medium"
        return "host CPU", confidence, (*less, Finding(code))
    if (activity.link_percent or 0.0) >= BUSY_PERCENT:
        return "network", "high", (Finding(Advice.FASTER_LINK),)
    if activity.cpu_percent >= THREAD_PERCENT and not device_full:
        code = Advice.MORE_THREADS if activity.past_page_cache else Advice.MORE_THREADS_OR_DIRECT
        return "host CPU", "medium", (*less, Finding(code, numbers=threads))
    what: What = "storage write" if activity.phase == "write" else "storage read"
    sure = device_full or (
        activity.device_busy_percent is not None
        and activity.call_percent + activity.fsync_percent >= 90
        and (activity.host_busy_percent or 0.0) < BUSY_PERCENT  # what carries the calls out needs cores, too
    )
    more = Finding(Advice.TRY_MORE_THREADS, numbers=threads)
    return what, "high" if sure else "medium", () if device_full else (more,)


def _seen(activity: PhaseActivity) -> Iterator[Finding]:
    yield Finding.of(
        Seen.THREADS,
        phase=activity.phase,
        gb_per_second=activity.gb_per_second,
        call_percent=activity.call_percent,
        fsync_percent=activity.fsync_percent,
        cpu_percent=activity.cpu_percent,
        cpu_wait_percent=activity.cpu_wait_percent,
    )
    if activity.phase == "write" and activity.ceiling_gb_per_second is not None:
        ceiling = {"gb_per_second": activity.ceiling_gb_per_second, "starved_percent": activity.starved_percent}
        yield Finding(Seen.CONTENT, numbers={**ceiling})
    if activity.from_storage_percent is not None and activity.phase == "read":
        yield Finding.of(Seen.SERVED, percent=min(100.0, activity.from_storage_percent))
    if activity.device_mb_per_second is not None:
        devices = {
            "mb_per_second": activity.device_mb_per_second,
            "busy_percent": activity.device_busy_percent,
            "depth": activity.device_depth,
        }
        yield Finding(Seen.DEVICES, numbers={name: value for name, value in devices.items() if value is not None})
    if activity.host_busy_percent is not None:
        yield Finding.of(Seen.CORES, percent=activity.host_busy_percent)
    if activity.link_percent is not None:
        yield Finding.of(Seen.LINK, percent=activity.link_percent)

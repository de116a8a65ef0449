"""What limited the writing or the reading of checkpoints, with the evidence and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dlemu.metrics.limit import HELD_BACK_PERCENT, Confidence

What = Literal["storage write", "storage read", "host CPU", "network", "generation", "page cache"]

STARVED_PERCENT = 10.0
"""Share of the threads' time without bytes to write from which on making them is the limit."""
BUSY_PERCENT = 90.0
"""Cores, or a link, are full from this share on."""
WAIT_PERCENT = 15.0
"""Share of the threads' time without a core that they want from which on the host is the limit."""
THREAD_PERCENT = 85.0
"""Share of its threads' time in which a rank had a core from which on the copying of bytes is the limit."""
FROM_MEMORY_PERCENT = 50.0
"""Below this share of the bytes the storage was not read."""


@dataclass(frozen=True, kw_only=True)
class CheckpointLimit:
    """One verdict."""

    what: What
    confidence: Confidence
    evidence: tuple[str, ...]
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Moved:
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
    """By O_DIRECT, or as they lie in an object store."""


_SPARE = "checkpoint.odirect=true spares the copy into the page cache; else "
_EVICT = "checkpoint.evict_page_cache=true empties it before reading, "
_PAST = "checkpoint.odirect=true goes past it"
_OR_DIRECT = ", or set checkpoint.odirect=true"


def judge_checkpoints(moved: Moved) -> CheckpointLimit:
    """Say what limited a phase."""
    evidence = tuple(_evidence(moved))
    key = "checkpoint.writers" if moved.phase == "write" else "checkpoint.readers"
    if moved.phase == "read" and _from_memory(moved):
        return CheckpointLimit(
            what="page cache",
            confidence="high",
            evidence=evidence,
            advice=() if moved.past_page_cache else (f"{'' if moved.evicted else _EVICT}{_PAST}",),
        )
    if moved.starved_percent >= STARVED_PERCENT:
        return CheckpointLimit(
            what="generation",
            confidence="high" if moved.starved_percent > 30 else "medium",
            evidence=evidence,
            advice=("this says nothing of the storage: use more cores a rank, fewer ranks, or more hosts",),
        )
    device_full = (moved.device_busy_percent or 0.0) >= BUSY_PERCENT
    if moved.cpu_wait_percent >= WAIT_PERCENT and not device_full:
        first = "" if moved.past_page_cache else _SPARE
        if (moved.throttled_percent or 0.0) >= HELD_BACK_PERCENT:
            first = "raise the CPU limit of this container or job (cgroup); else "
        return CheckpointLimit(
            what="host CPU",
            confidence="high" if moved.cpu_wait_percent >= 2 * WAIT_PERCENT else "medium",
            evidence=evidence,
            advice=(f"{first}more cores, or fewer ranks",),
        )
    if (moved.link_percent or 0.0) >= BUSY_PERCENT:
        return CheckpointLimit(
            what="network", confidence="high", evidence=evidence, advice=("a faster link, or more hosts",)
        )
    if moved.cpu_percent >= THREAD_PERCENT and not device_full:
        return CheckpointLimit(
            what="host CPU",
            confidence="medium",
            evidence=evidence,
            advice=(
                f"each thread is busy copying: raise {key} (now {moved.threads})"
                f"{'' if moved.past_page_cache else _OR_DIRECT}",
            ),
        )
    sure: Confidence = "high" if device_full or moved.call_percent + moved.fsync_percent >= 90 else "medium"
    return CheckpointLimit(
        what="storage write" if moved.phase == "write" else "storage read",
        confidence=sure if moved.device_busy_percent is not None else "medium",
        evidence=evidence,
        advice=()
        if device_full
        else (f"to rule out too few requests at a time, try more {key} (now {moved.threads})",),
    )


def _from_memory(moved: Moved) -> bool:
    return moved.from_storage_percent is not None and moved.from_storage_percent < FROM_MEMORY_PERCENT


def _evidence(moved: Moved) -> list[str]:
    verb = "write" if moved.phase == "write" else "read"
    sync = f", {moved.fsync_percent:.0f} % in fsync" if moved.phase == "write" else ""
    lines = [
        f"{moved.gb_per_second:,.2f} GB/s by all ranks; their threads were {moved.call_percent:.0f} % of the time in "
        f"{verb} calls{sync} and had a core {moved.cpu_percent:.0f} % of it, "
        f"wanted one {moved.cpu_wait_percent:.0f} %"
    ]
    if moved.phase == "write" and moved.ceiling_gb_per_second is not None:
        lines.append(
            f"with nothing to write to, content is made at {moved.ceiling_gb_per_second:,.1f} GB/s; threads waited for "
            f"it {moved.starved_percent:.1f} % of the time"
        )
    if moved.from_storage_percent is not None and moved.phase == "read":
        lines.append(f"the storage served {min(100.0, moved.from_storage_percent):.0f} % of the bytes")
    if moved.device_mb_per_second is not None:
        depth = "" if moved.device_depth is None else f", mean queue depth {moved.device_depth:.1f}"
        busy = "" if moved.device_busy_percent is None else f", busy {moved.device_busy_percent:.0f} % of the time"
        lines.append(f"the devices: {moved.device_mb_per_second:,.0f} MB/s{busy}{depth}")
    if moved.host_busy_percent is not None:
        lines.append(f"the cores of the busiest host were in use {moved.host_busy_percent:.0f} % of the time")
    if moved.link_percent is not None:
        lines.append(f"the busiest network link was used to {moved.link_percent:.0f} %")
    return lines

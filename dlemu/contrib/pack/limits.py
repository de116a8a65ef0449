"""Finds what limited a packing, as codes with evidence and advice, like `dlemu.metrics.limit` for training."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from dlemu.metrics.findings import Confidence, Finding, LimitedBy, Number
from dlemu.metrics.limit import (
    BUSY_PERCENT,
    FEW_REQUESTS,
    HELD_BACK_PERCENT,
    OTHER_PROGRAMS_PERCENT,
    STARVED_SHARE,
)

What = Literal["storage", "host CPU", "processes", "images"]

IDLE_PERCENT = 50.0
"""From this share of the processes' time without an image, there were too few images for so many processes."""


class Seen(StrEnum):
    """Codes of the evidence."""

    SHARES = "shares"
    CORES = "cores"
    THROTTLED = "throttled"
    PROCESSES = "processes"
    MOSTLY = "mostly"
    DEVICE = "device"


class Advice(StrEnum):
    """Codes of the advice."""

    MORE_IMAGES = "more_images"
    MORE_CORES = "more_cores"
    STOP_OTHER_PROGRAMS = "stop_other_programs"
    RAISE_CPU_LIMIT = "raise_cpu_limit"
    USE_FREE_CORES = "use_free_cores"
    MORE_REQUESTS = "more_requests"
    FASTER_TO_READ = "faster_storage_to_read"
    FASTER_TO_WRITE = "faster_storage_to_write"
    TRY_MORE_PROCESSES = "try_more_processes"


PackLimit = LimitedBy[What]
"""What limited a packing. `processes`: cores and storage had capacity for more; `images`: too few for the processes."""


def judge_packing(
    *,
    reading: float,
    computing: float,
    wanting_core: float,
    writing: float,
    idle: float,
    processes: int,
    cores: int,
    host_busy_percent: float | None,
    own_busy_percent: float,
    mean_depth: float | None,
    device_busy_percent: float | None,
    throttled_percent: float | None = None,
) -> PackLimit:
    """Return what limited a packing; `reading` to `idle` are shares of its processes' time, which add up to 100 %."""
    worked = max(1e-9, 100 - idle)
    shares: dict[str, Number] = {
        "reading_percent": reading,
        "computing_percent": computing,
        "wanting_core_percent": wanting_core,
        "writing_percent": writing,
        "idle_percent": idle,
    }
    spent = Finding(Seen.SHARES, numbers=shares)
    if idle >= IDLE_PERCENT:
        sure: Confidence = "high" if idle >= 75 else "medium"  # 1.5 x IDLE_PERCENT
        return PackLimit(what="images", confidence=sure, seen=(spent,), to_do=(Finding(Advice.MORE_IMAGES),))
    storage, cpu = (reading + writing) / worked, (computing + wanting_core) / worked
    share = max(storage, cpu)  # at 3/4, the other share is a third of it at most (docs/packing.md)
    confidence: Confidence = "high" if share >= 0.75 else "medium" if share >= 0.5 else "low"
    if cpu < storage:
        return _storage(spent, confidence, reading, writing, processes, mean_depth, device_busy_percent)
    busy = host_busy_percent
    no_core = wanting_core / worked >= STARVED_SHARE or (busy is not None and busy >= BUSY_PERCENT)
    if not no_core and processes < cores:
        used = Finding(Seen.PROCESSES, numbers={"processes": processes, "cores": cores})
        to_do = (Finding(Advice.USE_FREE_CORES),)
        return PackLimit(what="processes", confidence=confidence, seen=(spent, used), to_do=to_do)
    seen, advice = [spent], Advice.MORE_CORES
    if busy is not None:
        numbers: dict[str, Number] = {"cores": cores, "busy_percent": busy, "own_percent": own_busy_percent}
        seen.append(Finding(Seen.CORES, numbers=numbers))
        if busy - own_busy_percent >= max(own_busy_percent, OTHER_PROGRAMS_PERCENT):
            advice = Advice.STOP_OTHER_PROGRAMS
    if throttled_percent is not None and throttled_percent >= HELD_BACK_PERCENT:
        seen.append(Finding(Seen.THROTTLED, numbers={"percent": throttled_percent}))
        advice = Advice.RAISE_CPU_LIMIT
    return PackLimit(what="host CPU", confidence=confidence, seen=tuple(seen), to_do=(Finding(advice),))


def _storage(
    spent: Finding,
    confidence: Confidence,
    reading: float,
    writing: float,
    processes: int,
    mean_depth: float | None,
    busy_percent: float | None,
) -> PackLimit:
    reads = reading >= writing
    seen = [spent, Finding(Seen.MOSTLY, numbers={"of": "reads" if reads else "writes"})]
    is_full = busy_percent is not None and busy_percent >= BUSY_PERCENT
    if mean_depth is not None and busy_percent is not None:
        seen.append(Finding(Seen.DEVICE, numbers={"busy_percent": busy_percent, "depth": mean_depth}))
    few = mean_depth < FEW_REQUESTS if mean_depth is not None else processes < FEW_REQUESTS
    if few and not is_full:
        return PackLimit(
            what="processes",
            confidence="medium" if mean_depth is not None else "low",
            seen=tuple(seen),
            to_do=(Finding(Advice.MORE_REQUESTS),),
        )
    advice = [Advice.FASTER_TO_READ if reads else Advice.FASTER_TO_WRITE]
    if few:
        confidence = "medium"
        advice.append(Advice.TRY_MORE_PROCESSES)
    return PackLimit(what="storage", confidence=confidence, seen=tuple(seen), to_do=tuple(map(Finding, advice)))

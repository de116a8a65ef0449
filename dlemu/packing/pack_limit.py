"""What kept a packing from being faster, with the evidence: as `dlemu.metrics.limit` of a training run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dlemu.metrics.limit import (
    BUSY_PERCENT,
    FEW_REQUESTS,
    HELD_BACK_PERCENT,
    MOST_PERCENT,
    STARVED_SHARE,
    Confidence,
)

What = Literal["storage", "host CPU", "processes", "images"]

IDLE_PERCENT = 50.0
"""Share of the processes' time in which they had no image, from which on there were too few images for them."""


@dataclass(frozen=True, kw_only=True)
class PackLimit:
    """One verdict."""

    what: What
    """`processes`: cores and storage had room for more of them; `images`: too few for so many processes."""
    confidence: Confidence
    evidence: tuple[str, ...]
    advice: tuple[str, ...] = ()


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
    """Say what limited a packing, of the shares of its processes' time (percent, together 100)."""
    worked = max(1e-9, 100 - idle)
    told = (
        f"of the processes' time {reading:.0f} % were reads, {computing:.0f} % computing, {wanting_core:.0f} % wanting "
        f"a core, {writing:.0f} % writes, {idle:.0f} % without an image"
    )
    if idle >= IDLE_PERCENT:
        return PackLimit(
            what="images",
            confidence="high" if idle >= 75 else "medium",
            evidence=(told,),
            advice=("more images, fewer of them in a file (images_per_file), or fewer processes",),
        )
    storage, cpu = (reading + writing) / worked, (computing + wanting_core) / worked
    share = max(storage, cpu)
    confidence: Confidence = "high" if share >= 0.75 else "medium" if share >= 0.5 else "low"
    if cpu >= storage:
        busy = host_busy_percent
        no_core = wanting_core / worked >= STARVED_SHARE or (busy is not None and busy >= BUSY_PERCENT)
        if no_core or processes >= cores:
            evidence = [told]
            advice = "more cores; a smaller picture, or encode=raw, takes less of them"
            if busy is not None:
                evidence.append(f"the {cores} cores were {busy:.0f} % busy, {own_busy_percent:.0f} % with packing")
                if busy - own_busy_percent >= max(own_busy_percent, MOST_PERCENT):
                    advice = "other programs have most of the cores: stop them (top), or pack where nothing else does"
            if throttled_percent is not None and throttled_percent >= HELD_BACK_PERCENT:
                evidence.append(f"the CPU limit held them back in {throttled_percent:.0f} % of its periods")
                advice = "raise the CPU limit of this container or job (cgroup)"
            return PackLimit(what="host CPU", confidence=confidence, evidence=tuple(evidence), advice=(advice,))
        return PackLimit(
            what="processes",
            confidence=confidence,
            evidence=(told, f"{processes} of {cores} cores had a process"),
            advice=("more processes: cores were free, and the storage waited",),
        )
    return _storage(told, confidence, reading, writing, processes, mean_depth, device_busy_percent)


def _storage(
    told: str,
    confidence: Confidence,
    reading: float,
    writing: float,
    processes: int,
    mean_depth: float | None,
    busy_percent: float | None,
) -> PackLimit:
    evidence = [told, f"most of the storage's part were {'reads' if reading >= writing else 'writes'}"]
    is_full = busy_percent is not None and busy_percent >= BUSY_PERCENT
    if mean_depth is not None and busy_percent is not None:
        evidence.append(f"the device was busy {busy_percent:.0f} % of the time with {mean_depth:.1f} requests at once")
    few = mean_depth < FEW_REQUESTS if mean_depth is not None else processes < FEW_REQUESTS
    if few and not is_full:
        return PackLimit(
            what="processes",
            confidence="medium" if mean_depth is not None else "low",
            evidence=tuple(evidence),
            advice=("more processes, or ahead=4: the storage had few requests at a time",),
        )
    advice = "faster storage"
    advice += " for the images" if reading >= writing else " for the packed files, or a smaller picture"
    if few:
        confidence = "medium"
        advice += "; to rule out too few requests at a time, try more processes"
    return PackLimit(what="storage", confidence=confidence, evidence=tuple(evidence), advice=(advice,))

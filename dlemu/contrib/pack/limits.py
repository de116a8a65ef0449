"""Finds what limited a packing, as codes with evidence and advice, like `dlemu.metrics.limit` for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum

from dlemu.contrib.pack.result import PackDevice, PackLimit, PackShares, What
from dlemu.metrics.findings import Confidence, Finding, Number
from dlemu.metrics.limit import (
    BUSY_PERCENT,
    FEW_REQUESTS,
    HELD_BACK_PERCENT,
    OTHER_PROGRAMS_PERCENT,
    STARVED_SHARE,
)
from dlemu.results.wording import Wording, sentences

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


_SEEN: Wording = {
    Seen.SHARES: "the processes spent {reading_percent:.0f} % of their time in reads, {computing_percent:.0f} % "
    "computing, {wanting_core_percent:.0f} % waiting for a core, {writing_percent:.0f} % in writes, and "
    "{idle_percent:.0f} % without an image",
    Seen.CORES: "the {cores} cores were {busy_percent:.0f} % busy, {own_percent:.0f} % with packing",
    Seen.THROTTLED: "the CPU limit throttled the processes in {percent:.0f} % of its periods",
    Seen.PROCESSES: "only {processes} of {cores} cores had a packing process",
    Seen.MOSTLY: "most of the time in the storage was spent in {of}",
    Seen.DEVICE: "the device was busy {busy_percent:.0f} % of the time, with {depth:.1f} requests at a time",
}
_ADVICE: Wording = {
    Advice.MORE_IMAGES: "use more images, fewer images per file (images_per_file), or fewer processes",
    Advice.MORE_CORES: "use more cores; smaller images, or encode=raw, need less CPU",
    Advice.STOP_OTHER_PROGRAMS: "other programs use most of the cores: stop them (top), or pack on an idle host",
    Advice.RAISE_CPU_LIMIT: "raise the CPU limit of this container or job (cgroup)",
    Advice.USE_FREE_CORES: "use more processes: cores and storage were idle at times",
    Advice.MORE_REQUESTS: "use more processes, or ahead=4: the storage had few requests at a time",
    Advice.FASTER_TO_READ: "use faster storage for the images",
    Advice.FASTER_TO_WRITE: "use faster storage for the packed files, or smaller images",
    Advice.TRY_MORE_PROCESSES: "to rule out too few requests at a time, try more processes",
}


def judge_packing(
    shares: PackShares,
    device: PackDevice,
    *,
    processes: int,
    cores: int,
    host_busy_percent: float | None,
    own_busy_percent: float,
    throttled_percent: float,
) -> PackLimit:
    """Return what limited a packing; `throttled_percent` is NaN where the processes have no CPU limit."""
    spent = Finding(Seen.SHARES, numbers={f"{part}_percent": share for part, share in asdict(shares).items()})
    if shares.idle >= IDLE_PERCENT:
        return _limit("images", "high" if shares.idle >= 1.5 * IDLE_PERCENT else "medium", [spent], Advice.MORE_IMAGES)
    worked = max(1e-9, 100 - shares.idle)
    storage, cpu = (shares.reading + shares.writing) / worked, (shares.computing + shares.wanting_core) / worked
    share = max(storage, cpu)  # at 3/4, the other share is a third of it at most (docs/packing.md)
    confidence: Confidence = "high" if share >= 0.75 else "medium" if share >= 0.5 else "low"
    if cpu < storage:
        return _limited_by_storage(spent, confidence, shares, device, processes)
    is_busy = host_busy_percent is not None and host_busy_percent >= BUSY_PERCENT
    if processes < cores and not is_busy and shares.wanting_core / worked < STARVED_SHARE:
        used = Finding(Seen.PROCESSES, numbers={"processes": processes, "cores": cores})
        return _limit("processes", confidence, [spent, used], Advice.USE_FREE_CORES)
    seen, advice = [spent], Advice.MORE_CORES
    if host_busy_percent is not None:
        numbers: dict[str, Number] = {"busy_percent": host_busy_percent, "own_percent": own_busy_percent}
        seen.append(Finding(Seen.CORES, numbers={"cores": cores, **numbers}))
        if host_busy_percent - own_busy_percent >= max(own_busy_percent, OTHER_PROGRAMS_PERCENT):
            advice = Advice.STOP_OTHER_PROGRAMS
    if throttled_percent >= HELD_BACK_PERCENT:
        seen.append(Finding(Seen.THROTTLED, numbers={"percent": throttled_percent}))
        advice = Advice.RAISE_CPU_LIMIT
    return _limit("host CPU", confidence, seen, advice)


def _limited_by_storage(
    spent: Finding, confidence: Confidence, shares: PackShares, device: PackDevice, processes: int
) -> PackLimit:
    reads = shares.reading >= shares.writing
    seen = [spent, Finding(Seen.MOSTLY, numbers={"of": "reads" if reads else "writes"})]
    depth, busy_percent = device.mean_depth, device.busy_percent
    if depth is not None and busy_percent is not None:
        seen.append(Finding(Seen.DEVICE, numbers={"busy_percent": busy_percent, "depth": depth}))
    has_few_requests = (processes if depth is None else depth) < FEW_REQUESTS
    if has_few_requests and (busy_percent is None or busy_percent < BUSY_PERCENT):
        return _limit("processes", "low" if depth is None else "medium", seen, Advice.MORE_REQUESTS)
    faster = Advice.FASTER_TO_READ if reads else Advice.FASTER_TO_WRITE
    if has_few_requests:
        return _limit("storage", "medium", seen, faster, Advice.TRY_MORE_PROCESSES)
    return _limit("storage", confidence, seen, faster)


def _limit(what: What, confidence: Confidence, seen: Sequence[Finding], *advice: Advice) -> PackLimit:
    to_do = tuple(map(Finding, advice))
    return PackLimit(
        what=what,
        confidence=confidence,
        evidence=sentences(seen, _SEEN),
        advice=sentences(to_do, _ADVICE, {Advice.TRY_MORE_PROCESSES}),
        seen=tuple(seen),
        to_do=to_do,
    )

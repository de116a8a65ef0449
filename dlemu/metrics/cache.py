"""Proves that data came from storage, not from the page cache: compares bytes served by storage with bytes read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from dlemu.metrics.findings import Code, Finding, Number
from dlemu.metrics.rates import Mean, by_epoch
from dlemu.metrics.rows import Rows, is_any, sum_of

IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")
"""File systems in memory: there is no storage behind them."""
ACCOUNTED = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "vfat", "exfat", "overlay", "erofs", "squashfs")
"""File systems that read block devices in the reading thread's context: the kernel counts these bytes per thread."""
COUNTED = (*ACCOUNTED, *IN_MEMORY)
"""Where no bytes from storage are counted, none were read; on FUSE and most network file systems it is not known."""
NOT_READ_PERCENT, PARTLY_READ_PERCENT = 50.0, 95.0
"""If storage served less than this share of the bytes, the data counts as not read from storage, or only partly."""
WANTED_RATIO = 5.0
"""Smallest training dataset that MLPerf Storage allows, in multiples of the hosts' memory (rules v2.0, 2.1)."""


@dataclass(frozen=True, kw_only=True)
class CacheProof:
    """How much data came from storage: None if the kernel does not count it (FUSE, some network file systems)."""

    from_storage_percent: Mean
    """Bytes that storage served as a percentage of the bytes that the application read; above 100 with read-ahead."""
    dataset_to_memory: float | None
    """Size of the dataset / memory of all hosts."""
    finding: Finding | None
    """PAGE_CACHE or NO_DATA_FROM_STORAGE; None if nothing is wrong."""


def prove(
    rows: Rows, *, file_system: str, odirect: bool, evicted: bool, dataset_bytes: int, memory_bytes: int
) -> CacheProof:
    """Return from the training rows whether data came from storage; `evicted`: from the page cache, before reading."""
    known = is_any(rows, "storage_bytes") or file_system in COUNTED
    per_epoch = tuple(_percent(part) if known else None for part in by_epoch(rows))
    percent = _percent(rows) if known else None
    ratio = dataset_bytes / memory_bytes if memory_bytes else None
    return CacheProof(
        from_storage_percent=Mean(mean=percent, per_epoch=per_epoch),
        dataset_to_memory=ratio,
        finding=_finding(percent, per_epoch, file_system, ratio, past_cache=odirect, evicted=evicted)
        if is_any(rows, "app_bytes")
        else Finding(Code.NO_DATA_FROM_STORAGE, "loud"),
    )


def served_by_storage(rows: Rows, accounted: Mean, device: Mean) -> float | None:
    """Return the share of the bytes read that storage served, 0 to 100 %; None if unknown.

    Of `accounted` (`CacheProof.from_storage_percent`) and `device` (the devices' bytes) the smaller one counts per
    epoch, as devices also serve other programs, and read-ahead must not make up for cached reads in another epoch.
    """
    app_bytes = [sum_of(part, "app_bytes") for part in by_epoch(rows)]
    served = [
        (read, min(100.0, *known))
        for read, *shares in zip_longest(app_bytes, accounted.per_epoch, device.per_epoch)
        if read and (known := [share for share in shares if share is not None])
    ]
    total = sum(read for read, _ in served)
    return sum(read * share for read, share in served) / total if total else None


def _percent(rows: Rows) -> float | None:
    app_bytes = sum_of(rows, "app_bytes")
    return 100.0 * sum_of(rows, "storage_bytes") / app_bytes if app_bytes else None


def _finding(
    percent: float | None,
    per_epoch: Sequence[float | None],
    file_system: str,
    ratio: float | None,
    *,
    past_cache: bool,
    evicted: bool,
) -> Finding | None:
    if file_system in IN_MEMORY:
        return Finding.of(Code.NO_DATA_FROM_STORAGE, "loud", pattern="in_memory", file_system=file_system)
    remedies = ((not past_cache, "odirect=true"), (not past_cache and not evicted, "evict_page_cache=epochs"))
    settings = " or ".join(f"reader.{setting}" for helps, setting in remedies if helps)
    numbers: dict[str, Number] = {"would_help": settings} if settings else {}
    if ratio is not None:
        numbers["dataset_to_memory_ratio"] = ratio
    if percent is None:
        unsafe = ratio is not None and ratio < WANTED_RATIO and not (past_cache or evicted)
        numbers |= {"pattern": "not_known", "wanted_ratio": WANTED_RATIO}
        return Finding(Code.PAGE_CACHE, "caution", numbers) if unsafe else None
    shares = [share for share in per_epoch if share is not None]
    if not shares or min(shares) >= PARTLY_READ_PERCENT:
        return None
    numbers |= {"from_storage_percent": percent, "least_percent": min(shares), "most_percent": max(shares)}
    return Finding(Code.PAGE_CACHE, "loud" if min(shares) < NOT_READ_PERCENT else "caution", numbers)

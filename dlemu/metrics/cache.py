"""Proof that the storage was read: bytes that it served against bytes that the application read, for each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from dlemu.metrics.rows import Rows, is_any, sum_of
from dlemu.metrics.spread import Mean, by_epoch

IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")
"""File systems that are memory: there is no storage to read."""
ACCOUNTED = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "vfat", "exfat", "overlay", "erofs", "squashfs")
"""File systems whose reads reach a block device in the reader's own context, so that the kernel accounts for them."""
NOT_READ_PERCENT, PARTLY_READ_PERCENT = 50.0, 95.0
"""Below these shares of the bytes the storage was not read, or only in part."""
WANTED_RATIO = 5.0
"""Times the hosts' memory that MLPerf Storage wants a training dataset to have (rules v2.0, section 2.1)."""


@dataclass(frozen=True, kw_only=True)
class CacheProof:
    """`from_storage_percent` is None where the kernel does not account for them (FUSE, some network file systems)."""

    from_storage_percent: Mean
    """Bytes that the storage served in percent of those that the application read. Above 100: it read ahead."""
    dataset_to_memory: float | None
    """Bytes of the dataset / memory of all hosts."""
    warning: str | None


def prove(
    rows: Rows, *, file_system: str, odirect: bool, evicted: bool, dataset_bytes: int, memory_bytes: int
) -> CacheProof:
    """Judge by the training rows whether the storage was read."""
    known = is_any(rows, "storage_bytes") or file_system in (*ACCOUNTED, *IN_MEMORY)
    per_epoch = tuple(_percent(part) if known else None for part in by_epoch(rows))
    percent = _percent(rows) if known else None
    ratio = dataset_bytes / memory_bytes if memory_bytes else None
    return CacheProof(
        from_storage_percent=Mean(mean=percent, per_epoch=per_epoch),
        dataset_to_memory=ratio,
        warning=_warning(percent, per_epoch, file_system, ratio, past_cache=odirect, evicted=evicted),
    )


def served_by_storage(rows: Rows, accounted: Mean, device: Mean) -> float | None:
    """Return the share of the bytes read that the storage served, 0 to 100 %; None where nothing is known.

    `accounted` is `CacheProof.from_storage_percent`, `device` the devices' bytes in percent of the application's, both
    with a value for each epoch of the rows. Neither counts holes of sparse files, through the page cache or past it,
    nor what the page cache held: no request is made of either. In each epoch the smaller one counts, and no more than
    100: neighbours on a drive add to what its devices gave, but not to what the kernel accounts to our threads; what
    was read ahead or in vain in one epoch makes up for nothing in another. Where only the devices are known, it is the
    most that can have been served.
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


def _warning(
    percent: float | None,
    per_epoch: Sequence[float | None],
    file_system: str,
    ratio: float | None,
    *,
    past_cache: bool,
    evicted: bool,
) -> str | None:
    if file_system in IN_MEMORY:
        return f"STORAGE WAS NOT READ: the dataset lies in memory ({file_system})"
    advice = _advice(past_cache=past_cache, evicted=evicted)
    if percent is None:
        unsafe = ratio is not None and ratio < WANTED_RATIO and not (past_cache or evicted)
        warning = f"it is not known whether the storage was read: the dataset is {_ratio(ratio)} the hosts' memory"
        return f"{warning}, and MLPerf Storage asks for {WANTED_RATIO:g}; {advice}" if unsafe else None
    shares = [share for share in per_epoch if share is not None]
    if not shares or min(shares) >= PARTLY_READ_PERCENT:
        return None
    served = f"the page cache served {100 - min(100.0, percent):.0f} % of the bytes"
    if len(shares) > 1 and max(shares) - min(shares) > 10:
        served += f" (from storage in each epoch: {', '.join(_epoch_share(share) for share in shares[:6])} %)"
    size = f"the dataset is {_ratio(ratio)} the hosts' memory"
    if min(shares) < NOT_READ_PERCENT:
        return f"STORAGE WAS NOT READ: {served}; {size}; {advice}"
    return f"{served}; {size}; {advice}"


def _advice(*, past_cache: bool, evicted: bool) -> str:
    """Return what would have the storage read, of what the run did not do already."""
    past = "" if past_cache else "reader.odirect=true reads past the page cache"
    empty = "" if past_cache or evicted else "reader.evict_page_cache=epochs empties it"
    return ", ".join(filter(None, [past, empty])) or "a dataset larger than every cache on the way is read from storage"


def _epoch_share(percent: float) -> str:
    """Say what the storage served of an epoch's bytes; beyond 100 % it read ahead for a later one, or in vain."""
    more = percent - 100
    return f"{percent:.0f}" if more < 0.5 else f"100 and {more:.0f} more read ahead"


def _ratio(ratio: float | None) -> str:
    return "an unknown share of" if ratio is None else f"{ratio:.2g} times"

"""Proof that the data came from storage, not from the page cache, and that each planned sample was read once.

Two sources count the bytes from storage: the kernel, for each read, and the devices, in telemetry.
"""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from dlemu.config.schema import Workload
from dlemu.metrics.findings import Code, Finding, Number
from dlemu.metrics.rates import Floats, Mean, known, pooled, training_ns
from dlemu.metrics.rows import Ints, Rows, StepTable, as_table, has_nonzero, sum_of
from dlemu.plan.samples import Plan, hash_samples
from dlemu.plan.streams import StreamPlan

IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")  # file systems in memory, without storage behind them
ACCOUNTED = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "vfat", "exfat", "overlay", "erofs", "squashfs")
"""File systems that read block devices in the context of the reading thread: the kernel counts bytes per thread."""
COUNTED = (*ACCOUNTED, *IN_MEMORY)
"""File systems on which a count of 0 bytes means none from storage; on others (FUSE, most networks) it says nothing."""
NOT_READ_PERCENT, PARTLY_READ_PERCENT = 50.0, 95.0
"""If a smaller share of the bytes came from storage, data counts as not read, or only partly read, from storage."""
CACHE_KEYS = {"reader.evict_page_cache", "reader.odirect", "metric.cached"}  # settings on how the cache is treated
WANTED_RATIO = 5.0  # minimum of dataset size / memory of the hosts that MLPerf Storage allows (rules v2.0, 2.1)


def eviction(dataset_format: str) -> str:
    """Return the setting that evicts a dataset as often as its format allows: mapped files only at the start."""
    return "reader.evict_page_cache=" + ("start" if dataset_format == "mmap_indexed_binary" else "epochs")


def past_the_cache(workload: Workload) -> list[str]:
    """Return the settings that would keep the page cache from serving reads, of those that the workload takes."""
    reader = workload.reader
    if reader.odirect or reader.page_cache_percent:
        return [] if reader.odirect else ["reader.page_cache_percent=0"]
    takes_direct = reader.data_loader in ("pytorch", "threads") and reader.engine != "library"  # libraries may not
    settings = ["reader.odirect=true"] if takes_direct else []
    if (evicts := eviction(workload.dataset.format)) != f"reader.evict_page_cache={reader.evict_page_cache}":
        settings.append(evicts)
    return settings


class CacheProof(NamedTuple):
    """The share of the data that came from storage, and whether that is too little."""

    from_storage_percent: Mean
    """Bytes from storage, by the kernel, in % of the bytes that the application read; above 100 with read-ahead. None
    if the kernel does not count (FUSE, some network file systems)."""
    finding: Finding | None
    """PAGE_CACHE or NO_DATA_FROM_STORAGE; None if nothing is wrong, or nothing was measured."""


def prove(
    rows: Rows, *, file_system: str, bypassed: bool, would_help: str, dataset_bytes: int, memory_bytes: int
) -> CacheProof:
    """Return the proof from training rows; `bypassed`: by O_DIRECT, or by eviction before each epoch."""
    is_counted = has_nonzero(rows, "storage_bytes") or file_system in COUNTED

    def from_storage_percent(table: StepTable) -> float:
        app_bytes = sum_of(table, "app_bytes")
        return 100.0 * sum_of(table, "storage_bytes") / app_bytes if app_bytes and is_counted else math.nan

    from_storage = pooled(rows, from_storage_percent)
    percents = [percent for percent in from_storage.per_epoch if percent is not None]
    lowest = min(percents, default=100.0)
    may_be_cached = bool(memory_bytes) and dataset_bytes < WANTED_RATIO * memory_bytes and not bypassed
    finding = None
    numbers: dict[str, Number] = {"would_help": would_help} if would_help else {}
    if memory_bytes:
        numbers["dataset_to_memory_ratio"] = dataset_bytes / memory_bytes
    if len(rows) and not has_nonzero(rows, "app_bytes"):
        finding = Finding(Code.NO_DATA_FROM_STORAGE, "loud")
    elif len(rows) and file_system in IN_MEMORY:
        finding = Finding.of(Code.NO_DATA_FROM_STORAGE, "loud", pattern="in_memory", file_system=file_system)
    elif len(rows) and from_storage.mean is None and may_be_cached:
        numbers |= {"pattern": "not_known", "wanted_ratio": WANTED_RATIO}
        finding = Finding(Code.PAGE_CACHE, "caution", numbers)
    elif lowest < PARTLY_READ_PERCENT:
        numbers |= {"from_storage_percent": from_storage.mean, "least_percent": lowest, "most_percent": max(percents)}
        finding = Finding(Code.PAGE_CACHE, "loud" if lowest < NOT_READ_PERCENT else "caution", numbers)
    return CacheProof(from_storage, finding)


def served_by_storage(rows: Rows, accounted: Mean, device: Mean) -> float | None:
    """Return the percentage of the bytes read that came from storage, at most 100; None if unknown.

    An epoch counts with the smaller of the kernel's (`accounted`) and the devices' percentage, as devices serve other
    programs, too; and with at most 100, so that its read-ahead can't offset another's cached reads.
    """
    total_bytes, weighted_percents = 0, 0.0
    for epoch, by_kernel, by_device in zip_longest(as_table(rows).by_epoch, accounted.per_epoch, device.per_epoch):
        percent = smaller_percent(by_kernel, by_device)
        if percent is not None:
            app_bytes = sum_of(epoch, "app_bytes")
            total_bytes += app_bytes
            weighted_percents += app_bytes * percent
    return weighted_percents / total_bytes if total_bytes else None


def smaller_percent(by_kernel: float | None, by_devices: float | None) -> float | None:
    """Return the smaller of two percentages from storage, at most 100; None if both are unknown."""
    if by_kernel:  # then devices with a count of 0 count nothing (their `iostats` are off)
        by_devices = by_devices or None
    percents = [percent for percent in (by_kernel, by_devices) if percent is not None]
    return min(100.0, *percents) if percents else None


class Delivered(NamedTuple):
    """The rate at which a device delivered data to a host, over time."""

    ranks: tuple[int, ...]
    """Ranks of the host, whose stamps are on the clock of `time_ns`."""
    time_ns: Ints
    rate: Floats
    """MB/s or reads/s: the mean since the previous reading."""


def device_metrics(rows: Rows, devices: list[Delivered]) -> tuple[Mean, Mean]:
    """Return the MB/s of all devices, and their bytes in % of the bytes that the application read; None without any."""
    epochs = as_table(rows).by_epoch
    megabytes = _delivered(rows, devices) if devices else [math.nan] * len(epochs)
    app_megabytes = [sum_of(epoch, "app_bytes") / 1e6 for epoch in epochs]
    return _ratios(megabytes, [training_ns(epoch) / 1e9 for epoch in epochs]), _ratios(megabytes, app_megabytes, 100)


def device_request_kib(rows: Rows, megabytes: list[Delivered], requests: list[Delivered]) -> Mean:
    """Return the mean size of the devices' reads, KiB, from their MB/s and reads/s; None if they read nothing."""
    # An epoch without enough readings (NaN) counts with 0 bytes and 0 reads.
    moved_mb, reads = (np.nan_to_num(_delivered(rows, devices)).tolist() for devices in (megabytes, requests))
    return _ratios(moved_mb, reads, 1e6 / 1024)


def _ratios(amounts: list[float], totals: list[float], unit: float = 1.0) -> Mean:
    """Return `unit` x amount / total, of all epochs together and of each; None if an operand is NaN or the total 0."""

    def ratio(amount: float, total: float) -> float | None:
        return known(unit * amount / total) if total else None

    return Mean(mean=ratio(sum(amounts), sum(totals)), per_epoch=tuple(map(ratio, amounts, totals)))


def _delivered(rows: Rows, devices: list[Delivered]) -> list[float]:
    """Return the MB (or reads) that all devices delivered in each epoch; NaN if too many readings are missing."""

    def total(device: Delivered, epoch: StepTable) -> float:
        host_rows = epoch.of("rank", device.ranks)
        if not len(host_rows):
            return math.nan
        begin_ns, end_ns = int(host_rows["free_ns"].min()), int(host_rows["met_ns"].max())
        return delivered_between(device.time_ns, device.rate, begin_ns, end_ns)

    return [sum(total(device, epoch) for device in devices) for epoch in as_table(rows).by_epoch]


def delivered_between(time_ns: Ints, rate: Floats, begin_ns: int, end_ns: int) -> float:
    """Return the integral of a rate per second over a span, from the last reading before it to the first one after it.

    If readings are missing for more than 5 % of the span, the result is NaN: it could be wrong by as much.
    """
    first = max(0, int(np.searchsorted(time_ns, begin_ns, side="right")) - 1)
    last = int(np.searchsorted(time_ns, end_ns))
    time_ns, rate = time_ns[first : last + 1], rate[first : last + 1]
    if not len(time_ns):
        return math.nan
    missing_ns = max(0, int(time_ns[0]) - begin_ns) + max(0, end_ns - int(time_ns[-1]))
    return math.nan if missing_ns > 0.05 * (end_ns - begin_ns) else _integral(time_ns, rate)


def mean_between(time_ns: Ints, value: Floats, begin_ns: int, end_ns: int) -> float:
    """Return the time-weighted mean of the readings between two moments; NaN for fewer than two readings."""
    is_between = (time_ns >= begin_ns) & (time_ns <= end_ns)
    times, values = time_ns[is_between], value[is_between]
    return _integral(times, values) / ((times[-1] - times[0]) / 1e9) if len(times) > 1 else math.nan


def _integral(time_ns: Ints, value: Floats) -> float:
    """Return the sum of each reading x the seconds since the previous one; NaN for fewer than two readings."""
    return float((value[1:] * np.diff(time_ns)).sum() / 1e9) if len(time_ns) > 1 else math.nan


_CHUNK = 1 << 20  # samples hashed at a time, to limit memory: 8 MiB of numbers
_MODULUS = 1 << 64  # sums of 64-bit hashes wrap around


def each_sample_once(plan: Plan, epoch: int, steps: int, rows: Rows, *, stopped: bool = False) -> bool | None:
    """Return whether an epoch read each planned sample once, by the sum of sample hashes; None if that is unknown."""
    # A stream's window mixes samples of the whole epoch: if it was stopped, its first batches are not the planned ones.
    is_mixed = stopped and steps < plan.steps_per_epoch and plan.sample_shuffle and isinstance(plan, StreamPlan)
    if is_mixed or len(rows) < steps * plan.ranks:
        return None
    if sum_of(rows, "samples") != steps * plan.batch_size * plan.ranks:
        return False
    return sum_of(rows, "sample_hash") % _MODULUS == _planned_hash(plan, epoch, steps) % _MODULUS


def _planned_hash(plan: Plan, epoch: int, steps: int) -> int:
    """Return the sum of the hashes of the samples planned for the first `steps` steps of an epoch, on all ranks."""
    used = plan.ranks * steps * plan.batch_size
    is_complete = type(plan) is Plan and steps == plan.steps_per_epoch
    end = plan.num_samples if is_complete else used
    total = 0
    for start in range(0, end, _CHUNK):
        numbers = np.arange(start, min(start + _CHUNK, end))
        if is_complete:
            # A complete epoch drops only the last samples of its order, too few for a step. So hash all samples in
            # ascending order, and look up only the dropped ones in the shuffled order.
            dropped = plan.samples_at(epoch, numbers[max(0, used - start) :])
            total += hash_samples(numbers) - hash_samples(dropped)
        else:
            batches, place = np.divmod(numbers, plan.batch_size)
            rank, batch = np.divmod(batches, steps)
            total += hash_samples(plan.samples_at(epoch, plan.first_positions(rank, batch + 1) + place))
    return total

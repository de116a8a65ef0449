"""A change in how long reads take, for runs whose throughput over time can't show it: few large steps, or heavy tails.

The logarithm of each batch's time per byte has no heavy tails, and few suffice. n concurrent reads count as one, as
they share the storage; and both a read's time and the total throughput must change, else only the number of readers
did.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dlemu.metrics.causes import took_ns, worker_time
from dlemu.metrics.over_time import Floats
from dlemu.metrics.rows import StepTable, in_order
from dlemu.metrics.t_interval import quantile

SIGNIFICANCE = 0.001
"""False-alarm rate for all possible moments of a change together."""
_MIN_FACTOR = 1.25  # as for windows (changes.MIN_FACTOR)
_MIN_READS, _MIN_INDEPENDENT = 8, 3.0
"""Least number of reads, and of independent ones, on either side of a change."""
_MAX_READS = 20_000
"""With more reads, neighbours are averaged."""
MAX_ROWS = 200_000
"""Steps of all ranks. In longer runs a window of time has so many reads that heavy tails average out."""
_MIN_READERS_SHARE = 0.7
"""Share of the median number of concurrent reads; reads with fewer are left out."""
_MIN_FROM_STORAGE = 0.5
"""Share of a read's bytes; reads of which the storage served less came mostly from the page cache."""


@dataclass(frozen=True, kw_only=True)
class ReadChange:
    """A moment from which on reads took longer, or less long."""

    at_seconds: float
    """Since training began: the middle between the starts of the last read before and the first read after."""
    read_ms_before: float
    """Median time of a batch's reads."""
    read_ms_after: float
    mb_per_second_before: float
    """Throughput of all readers together while they read."""
    mb_per_second_after: float


def find_read_change(rows: StepTable, *, preprocesses: bool) -> ReadChange | None:
    """Return the moment at which read times changed most; None if the change is not significant."""
    if len(rows) > MAX_ROWS:
        return None
    begun, took, size_bytes = _reads(rows, preprocesses)
    if len(begun) < 2 * _MIN_READS:
        return None
    active = _concurrency(begun, took)
    usual = active >= _MIN_READERS_SHARE * np.median(active)
    begun, took, size_bytes, active = (values[usual] for values in (begun, took, size_bytes, active))
    group = max(1, -(-len(begun) // _MAX_READS))
    concurrent = max(1.0, float(active.mean()) / group)  # values that count as one
    times = _means(np.log(took / size_bytes), group)
    speeds = _means(np.log(size_bytes * active / took), group)
    split = _split(times, concurrent)
    if split is None:
        return None
    longer, slower = _t_value(times, split, concurrent), -_t_value(speeds, split, concurrent)
    critical = _critical_t(len(times), concurrent)
    if min(abs(longer), abs(slower)) < critical or longer * slower < 0:  # only the number of readers changed
        return None
    place = split * group
    before, after = np.median(took[:place]), np.median(took[place:])
    per_byte = math.exp(abs(float(times[:split].mean() - times[split:].mean())))
    if min(per_byte, max(before / after, after / before)) < _MIN_FACTOR:
        return None
    moment = float(begun[place - 1] + begun[place]) / 2

    def rate(part: slice) -> float:
        return float(size_bytes[part].sum() / (took[part] / active[part]).sum()) / 1e6

    return ReadChange(
        at_seconds=moment,
        read_ms_before=1e3 * float(before),
        read_ms_after=1e3 * float(after),
        mb_per_second_before=rate(slice(None, place)),
        mb_per_second_after=rate(slice(place, None)),
    )


def _reads(rows: StepTable, preprocesses: bool) -> tuple[Floats, Floats, Floats]:
    """Return the start of each batch's read, how long it was blocked in reads, s, and its bytes, ordered by start."""
    parts = []
    for own in in_order(rows).by_rank:
        start = int(own["free_ns"].min())
        read = worker_time(own, preprocesses).storage / 1e9
        used = (own["app_bytes"] > 0) & (took_ns(own) > 0) & (read > 0)
        if own["storage_bytes"].any():  # else unknown
            used &= own["storage_bytes"] >= _MIN_FROM_STORAGE * own["app_bytes"]
        parts.append(np.stack([(own["started_ns"] - start) / 1e9, read, own["app_bytes"].astype(float)])[:, used])
    begun, took, size_bytes = np.concatenate(parts, axis=1)
    order = np.argsort(begun, kind="stable")
    return begun[order], took[order], size_bytes[order]


def _concurrency(begun: Floats, took: Floats) -> Floats:
    """Return for each read the mean number of reads under way while it was, itself included."""
    edges = np.concatenate([begun, begun + took])
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    active = np.cumsum(np.concatenate([np.ones(len(begun)), -np.ones(len(begun))])[order])[:-1]
    passed = np.concatenate([[0.0], np.cumsum(active * np.diff(edges))])
    return np.asarray((np.interp(begun + took, edges, passed) - np.interp(begun, edges, passed)) / took)


def _means(values: Floats, group: int) -> Floats:
    """Return the mean of each `group` neighbouring values."""
    whole = len(values) // group * group
    return np.asarray(values[:whole].reshape(-1, group).mean(axis=1))


def _split(values: Floats, concurrent: float) -> int | None:
    """Return the split into two parts whose means fit the values best (least squares); None for too few values."""
    part = max(_MIN_READS, math.ceil(_MIN_INDEPENDENT * concurrent))
    count = len(values)
    if count < 2 * part:
        return None
    left = np.arange(part, count - part + 1)
    sums = np.cumsum(values - values.mean())[left - 1]
    return int(left[(np.abs(sums) / np.sqrt(left * (count - left))).argmax()])


def _t_value(values: Floats, split: int, concurrent: float) -> float:
    """Return by how many standard errors the mean rises at the split; `concurrent` values count as one."""
    before, after = values[:split], values[split:]
    variance = (((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum()) / (len(values) - 2)
    error = math.sqrt(variance * concurrent * (1 / len(before) + 1 / len(after)))
    return float(after.mean() - before.mean()) / max(error, 1e-12)


def _critical_t(count: int, concurrent: float) -> float:
    """Return the t value exceeded by chance at the rate SIGNIFICANCE over all possible splits (Bonferroni)."""
    independent = count / concurrent
    return quantile(1 - SIGNIFICANCE / 2 / max(1.0, independent), max(1, round(independent) - 2))

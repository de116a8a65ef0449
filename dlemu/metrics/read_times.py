"""A change in how long reads take, where what the storage gave over time does not show it: few large steps, or tails.

What all readers get in a window of time says little where a batch takes longer than a window, or where one read in a
hundred takes as long as all others. The logarithm of each read's own time does: it has no tails, and few reads suffice.
Reads that go on at a time are no independent witnesses of a storage that they share, so they count as one; and both a
read's time and what all readers had of the storage meanwhile must change, or it is the number of readers that did.
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
"""Probability of a change by chance, for all moments that are looked at together."""
LEAST_FACTOR = 1.25  # as of windows (changes.LEAST_FACTOR)
LEAST_READS, LEAST_WITNESSES = 8, 3.0
"""On either side: reads, and reads that do not go on at the same time."""
MOST_READS = 20_000
"""Reads beyond are taken together with their neighbours."""
MOST_ROWS = 200_000
"""Steps of all ranks. In longer runs windows of time hold so many reads that tails are averaged there already."""
_USUAL = 0.7
"""Share of the usual number of readers at a time; reads with fewer beside them are left out."""
_FROM_STORAGE = 0.5  # of its bytes: a read that memory served for the most part says nothing of storage


@dataclass(frozen=True, kw_only=True)
class ReadChange:
    """A moment from which on reads took longer, or shorter."""

    at_seconds: float
    """Since training began: the middle between the last read before and the first after."""
    read_ms_before: float
    """Median time of a batch's reads."""
    read_ms_after: float
    mb_per_second_before: float
    """What all readers got while they read."""
    mb_per_second_after: float


def find_read_change(rows: StepTable, *, preprocesses: bool) -> ReadChange | None:
    """Return the one moment at which reads changed most, if that is no chance."""
    if len(rows) > MOST_ROWS:
        return None
    begun, took, size_bytes = _reads(rows, preprocesses)
    if len(begun) < 2 * LEAST_READS:
        return None
    active = _beside(begun, took)
    usual = active >= _USUAL * np.median(active)
    begun, took, size_bytes, active = (values[usual] for values in (begun, took, size_bytes, active))
    each = max(1, -(-len(begun) // MOST_READS))
    together = max(1.0, float(active.mean()) / each)
    times = _means(np.log(took / size_bytes), each)
    speeds = _means(np.log(size_bytes * active / took), each)
    split = _split(times, together)
    if split is None:
        return None
    needed = _needed(len(times), together)
    longer, slower = _strength(times, split, together), -_strength(speeds, split, together)
    if min(abs(longer), abs(slower)) < needed or longer * slower < 0:  # fewer readers at a time are each served sooner
        return None
    place = split * each
    before, after = np.median(took[:place]), np.median(took[place:])
    per_byte = math.exp(abs(float(times[:split].mean() - times[split:].mean())))
    if min(per_byte, max(before / after, after / before)) < LEAST_FACTOR:
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
    """Return when each batch's read was begun, how long it was blocked in reads, s, and its bytes; by their begin."""
    parts = []
    for own in in_order(rows).by_rank:
        start = int(own["free_ns"].min())
        read = worker_time(own, preprocesses).storage / 1e9
        there = (own["app_bytes"] > 0) & (took_ns(own) > 0) & (read > 0)
        if own["storage_bytes"].any():  # memory's are no reads
            there &= own["storage_bytes"] >= _FROM_STORAGE * own["app_bytes"]
        parts.append(np.stack([(own["started_ns"] - start) / 1e9, read, own["app_bytes"].astype(float)])[:, there])
    begun, took, size_bytes = np.concatenate(parts, axis=1)
    order = np.argsort(begun, kind="stable")
    return begun[order], took[order], size_bytes[order]


def _beside(begun: Floats, took: Floats) -> Floats:
    """Return how many reads went on, on average, while each did."""
    edges = np.concatenate([begun, begun + took])
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    active = np.cumsum(np.concatenate([np.ones(len(begun)), -np.ones(len(begun))])[order])[:-1]
    passed = np.concatenate([[0.0], np.cumsum(active * np.diff(edges))])
    return np.asarray((np.interp(begun + took, edges, passed) - np.interp(begun, edges, passed)) / took)


def _means(values: Floats, each: int) -> Floats:
    whole = len(values) // each * each
    return np.asarray(values[:whole].reshape(-1, each).mean(axis=1))


def _split(values: Floats, together: float) -> int | None:
    """Return the split with the largest difference of means beside its error: least squares."""
    least = max(LEAST_READS, math.ceil(LEAST_WITNESSES * together))
    count = len(values)
    if count < 2 * least:
        return None
    left = np.arange(least, count - least + 1)
    sums = np.cumsum(values - values.mean())[left - 1]
    return int(left[(np.abs(sums) / np.sqrt(left * (count - left))).argmax()])


def _strength(values: Floats, split: int, together: float) -> float:
    """Return how many standard errors the mean rises by."""
    before, after = values[:split], values[split:]
    variance = (((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum()) / (len(values) - 2)
    error = math.sqrt(variance * together * (1 / len(before) + 1 / len(after)))
    return float(after.mean() - before.mean()) / max(error, 1e-12)


def _needed(count: int, together: float) -> float:
    """Return the t that chance passes so seldom, wherever the split is (Bonferroni)."""
    witnesses = count / together
    return quantile(1 - SIGNIFICANCE / 2 / max(1.0, witnesses), max(1, round(witnesses) - 2))

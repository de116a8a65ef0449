"""When the storage's speed changed, and when it stood still: found in the step rows, docs/metrics.md, section 6.

What the storage *can* give shows only while accelerators wait and workers are blocked in reads. At other times it gave
what was asked for, and could have given more: such a window is censored from above. So windows are compared by Gehan's
scores (a generalized Wilcoxon test for arbitrarily singly-censored samples, Biometrika 52, 1965), in the change-point
test of Pettitt (A non-parametric approach to the change-point problem, Applied Statistics 28, 1979), again on either
side of each change (binary segmentation: Vostrikova, Soviet Mathematics Doklady 24, 1981). Ranks, not sizes, decide:
bursts of a throttle and heavy tails count no more than any other window. Pure: step rows in, changes out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics.au import Rows
from dlemu.metrics.causes import split_worker_time
from dlemu.metrics.over_time import Floats, mean_rates

SIGNIFICANCE = 0.001
"""Probability of a change by chance, for each test."""
LEAST_FACTOR = 1.25
"""How many times the speed must differ for a change to be told."""
LEAST_WINDOWS = 6
"""Windows on either side of a change: fewer are a stall or a burst."""
_WINDOW_SECONDS, _MOST_WINDOWS, _BATCHES = 0.25, 400, 4
_LOST_SHARE, _ALIKE = 0.1, 0.7
"""Of a window's time, lost by the accelerators; and of the usual number of blocked readers: less tells no speed."""
_FROM_STORAGE, _WHOLE_QUANTILE, _LEAST_WHOLE = 0.5, 0.9, 0.1
"""Share of its usual bytes that storage must have served for a window to tell the storage's speed; what is usual is
what a batch had of it that no cache served, which a file system that compresses makes less than the bytes read."""
STALL_SECONDS, _TIMES_A_BATCH = 1.0, 5
"""How long no batch may be complete for it to be a stall, and how many times as long as a batch takes."""


@dataclass(frozen=True, kw_only=True)
class SpeedChange:
    """A moment from which on the storage gave more or less than before."""

    at_seconds: float
    """Since training began."""
    mb_per_second_before: float
    """Median from the change before (or the start) to this one; as much as was asked for where that was less."""
    mb_per_second_after: float
    """The same up to the next change, or the end."""
    percent: float
    """After, in % of before."""
    gb_before: float = 0.0
    """Read since training began up to then, of the storage."""


@dataclass(frozen=True, kw_only=True)
class Stall:
    """A time in which no read came to its end though workers waited for some."""

    at_seconds: float
    """Since training began."""
    seconds: float


@dataclass(frozen=True, eq=False)
class Supply:
    """What the storage gave over time; every array has one entry a window."""

    at_seconds: Floats
    """Begin of each window, since training began."""
    mb_per_second: Floats
    limits: NDArray[np.bool_]
    """Whether accelerators waited for it: then it is what the storage could give, else it could have given more."""


def clock(seconds: float) -> str:
    """Write a time since training began as 00:06, or 1:00:06."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def find_speed_changes(rows: Rows, *, preprocesses: bool = False) -> tuple[SpeedChange, ...]:
    """Return when the storage's speed changed while training rows were read, in order."""
    changes = changes_of(_without(supply_of(rows, preprocesses=preprocesses), find_stalls(rows)))
    if not changes:
        return ()
    ends, gigabytes = _seconds(rows, rows, "finished_ns"), _from_storage(rows) / 1e9
    return tuple(replace(change, gb_before=float(gigabytes[ends <= change.at_seconds].sum())) for change in changes)


def _without(supply: Supply, stalls: tuple[Stall, ...]) -> Supply:
    """Leave out the windows in which the storage stood still: that is told by itself."""
    running = np.ones(len(supply.at_seconds), np.bool_)
    length = float(np.median(np.diff(supply.at_seconds))) if len(running) > 1 else 0.0
    for stall in stalls:
        end = stall.at_seconds + stall.seconds
        running &= (supply.at_seconds + length <= stall.at_seconds) | (supply.at_seconds >= end)
    return Supply(supply.at_seconds[running], supply.mb_per_second[running], supply.limits[running])


def changes_of(supply: Supply) -> tuple[SpeedChange, ...]:
    """Return the changes of a supply."""
    if not len(supply.mb_per_second):
        return ()
    bounds = _merged(supply, sorted(_splits(supply, 0, len(supply.mb_per_second))))
    levels = [_level(supply, begin, end) for begin, end in zip([0, *bounds], [*bounds, None], strict=True)]
    return tuple(
        SpeedChange(
            at_seconds=float(supply.at_seconds[bound]),
            mb_per_second_before=before,
            mb_per_second_after=after,
            percent=100 * after / before,
        )
        for bound, before, after in zip(bounds, levels, levels[1:], strict=False)
    )


def supply_of(rows: Rows, *, preprocesses: bool = False) -> Supply:
    """Return what the storage gave in windows of equal length, and whether that was all it could.

    By the kernel's account of storage where it keeps one; else what was read. Windows in which the page cache served
    most of the bytes tell nothing of the storage and are left out. What the storage has of a batch is not always all
    of its bytes: a file system that compresses reads fewer. So a window is held against the batches of which it had
    most.
    """
    fetched = rows[(rows["app_bytes"] > 0) & (rows["finished_ns"] > rows["started_ns"])]
    if len(fetched) < 2 * LEAST_WINDOWS:
        return Supply(np.zeros(0), np.zeros(0), np.zeros(0, np.bool_))
    starts, ends = _seconds(rows, fetched, "started_ns"), _seconds(rows, fetched, "finished_ns")
    app, megabytes = fetched["app_bytes"] / 1e6, _from_storage(fetched) / 1e6
    whole = float(np.quantile(megabytes / app, _WHOLE_QUANTILE))
    whole = min(whole, 1.0) if whole >= _LEAST_WHOLE else 1.0
    blocked = split_worker_time(fetched, preprocesses)[:, 0] / 1e9
    free, waits = _seconds(rows, rows, "free_ns"), rows["wait_ns"] / 1e9
    ranks = len(np.unique(rows["rank"]))
    parts = [np.zeros((5, 0))]
    for epoch, edges in _edges(fetched["epoch"], starts, ends):
        mine, late = fetched["epoch"] == epoch, (rows["epoch"] == epoch) & (waits > 0)
        lost = mean_rates(free[late], (free + waits)[late], waits[late], edges) / ranks if late.any() else 0 * edges[1:]
        flows = [mean_rates(starts[mine], ends[mine], flow[mine], edges) for flow in (megabytes, app, blocked)]
        parts.append(np.stack([edges[:-1], *flows, lost]))
    windows = np.concatenate(parts, axis=1)
    at, given, _, readers, lost = windows[:, windows[1] > _FROM_STORAGE * whole * windows[2]]
    waiting = lost >= _LOST_SHARE
    usual = float(np.median(readers[waiting])) if waiting.any() else math.inf
    return Supply(at, given, waiting & (readers >= _ALIKE * usual))


def _from_storage(rows: Rows) -> Floats:
    """Return the bytes of each row that the storage served, by the kernel's account; else those that were read."""
    served: Floats = rows["storage_bytes" if rows["storage_bytes"].any() else "app_bytes"].astype(float)
    return served


def find_stalls(rows: Rows) -> tuple[Stall, ...]:
    """Return the times in which no batch was completed for a second or more, though accelerators waited, in order."""
    if not len(rows):
        return ()
    starts, ends = _seconds(rows, rows, "started_ns"), _seconds(rows, rows, "finished_ns")
    least = max(STALL_SECONDS, _TIMES_A_BATCH * float(np.median(ends - starts)))
    stalls = []
    for epoch in np.unique(rows["epoch"]):
        mine = rows["epoch"] == epoch
        done = np.sort(ends[mine])
        for gap in np.flatnonzero(np.diff(done) >= least):
            begin, end = float(done[gap]), float(done[gap + 1])
            read_all_along = mine & (starts <= begin + (end - begin) / 2) & (ends >= end)
            if (read_all_along & (rows["read_ns"] >= (end - begin) / 2 * 1e9)).any() and _waited(rows, begin, end):
                stalls.append(Stall(at_seconds=begin, seconds=end - begin))
    return tuple(stalls)


def _waited(rows: Rows, begin: float, end: float) -> bool:
    """Say whether some accelerator waited for a tenth of that time."""
    free = _seconds(rows, rows, "free_ns")
    overlap = np.minimum(free + rows["wait_ns"] / 1e9, end) - np.maximum(free, begin)
    return bool(overlap.max() >= _LOST_SHARE * (end - begin))


def _seconds(rows: Rows, chosen: Rows, column: str) -> Floats:
    """Return stamps of chosen rows as seconds since the first step was free, each rank by its own clock."""
    begins = np.full(int(rows["rank"].max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begins, rows["rank"], rows["free_ns"])
    seconds: Floats = (chosen[column] - begins[chosen["rank"]]) / 1e9
    return seconds


def _edges(epochs: NDArray[np.int64], starts: Floats, ends: Floats) -> Iterator[tuple[int, Floats]]:
    """Yield the windows' edges of each epoch, from its first read on to the last one's begin: then readers run dry."""
    spans = {epoch: (starts[epochs == epoch].min(), starts[epochs == epoch].max()) for epoch in np.unique(epochs)}
    seconds = sum(end - begin for begin, end in spans.values())
    batch = float(np.median(ends - starts))
    length = max(_WINDOW_SECONDS, seconds / _MOST_WINDOWS, _BATCHES * seconds / len(starts), batch)
    for epoch, (begin, end) in spans.items():
        yield int(epoch), begin + length * np.arange(int((end - begin) / length) + 1)


def _splits(supply: Supply, begin: int, end: int) -> Iterator[int]:
    """Yield the windows from begin to end with which a change came, and those on either side of each."""
    split = _split(supply, begin, end)
    if split is None:
        split = _split_for_a_while(supply, begin, end)
    if split is None:
        split = _split_within(supply, begin, end)
    if split is not None:
        yield split
        yield from _splits(supply, begin, split)
        yield from _splits(supply, split, end)


def _split_for_a_while(supply: Supply, begin: int, end: int) -> int | None:
    """Return when a speed began that later ended: over the whole it cancels out, and Pettitt's test does not see it.

    Kuiper's test of the range of the same sums (Tests concerning random points on a circle, Indagationes Mathematicae
    22, 1960): what lies between its ends is above, or below, what lies around it.
    """
    if end - begin < 3 * LEAST_WINDOWS:
        return None
    scores = _gehan_scores(supply.mb_per_second[begin:end], supply.limits[begin:end])
    squares = float((scores**2).sum())
    sums = np.cumsum(scores)
    first, last = sorted((begin + 1 + int(sums.argmin()), begin + 1 + int(sums.argmax())))
    if not squares or min(first - begin, last - first, end - last) < LEAST_WINDOWS:
        return None
    square = float(sums.max() - sums.min()) ** 2 / squares
    if 2 * (4 * square - 1) * math.exp(-2 * square) >= SIGNIFICANCE:
        return None
    before, after = _level(supply, begin, first), _level(supply, first, last)
    return None if _factor(before, after) < LEAST_FACTOR else _refined(supply, (begin, last), before, after)


def _split_within(supply: Supply, begin: int, end: int) -> int | None:
    """Return a change inside of some part, where several cancel out over the whole.

    Parts are half as long again and again, each overlapping half of the next (seeded binary segmentation: Kovacs,
    Buehlmann, Li, Munk, Biometrika 110, 2023). All of them together err no more often than one test does.
    """
    parts, length = [], (end - begin) // 2
    while length >= 2 * LEAST_WINDOWS:
        parts += [(first, first + length) for first in range(begin, end - length + 1, max(1, length // 2))]
        length //= 2
    found = (_split(supply, *part, SIGNIFICANCE / len(parts)) for part in parts)
    return next((split for split in found if split is not None), None)


def _split(supply: Supply, begin: int, end: int, significance: float = SIGNIFICANCE) -> int | None:
    count = end - begin
    if count < 2 * LEAST_WINDOWS:
        return None
    scores = _gehan_scores(supply.mb_per_second[begin:end], supply.limits[begin:end])
    squares = float((scores**2).sum())
    if not squares:
        return None
    sums = np.abs(np.cumsum(scores)[LEAST_WINDOWS - 1 : count - LEAST_WINDOWS])
    if 2 * math.exp(-2 * float(sums.max()) ** 2 / squares) >= significance:
        return None
    left = np.arange(LEAST_WINDOWS, count - LEAST_WINDOWS + 1)
    split = begin + LEAST_WINDOWS + int((sums / np.sqrt(left * (count - left))).argmax())  # else drawn to the middle
    before, after = _level(supply, begin, split), _level(supply, split, end)
    return None if _factor(before, after) < LEAST_FACTOR else _refined(supply, (begin, end), before, after)


def _refined(supply: Supply, bounds: tuple[int, int], before: float, after: float) -> int:
    """Return the split that leaves fewest windows on the wrong side of the mean of both levels."""
    begin, end = bounds
    values, limits = supply.mb_per_second[begin:end], supply.limits[begin:end]
    middle = math.sqrt(before * after)
    sides = np.where(values > middle, 1, np.where(limits, -1, 0)) * (1 if before > after else -1)
    right = np.cumsum(sides)[LEAST_WINDOWS - 1 : len(sides) - LEAST_WINDOWS]
    return end - LEAST_WINDOWS - int(right[::-1].argmax())  # of equal ones the last: the first that certainly changed


def _gehan_scores(values: Floats, limits: NDArray[np.bool_]) -> Floats:
    """Return for each window how many others it is certainly above, less those it is certainly below.

    One that no one waited for is at least as high as it looks: it is above what is exact and lower, and below none.
    """
    above = (values[:, np.newaxis] > values) & limits[np.newaxis, :]
    scores: Floats = (above.sum(axis=1) - above.sum(axis=0)).astype(float)
    return scores


def _merged(supply: Supply, bounds: list[int]) -> list[int]:
    """Return the changes that are left when those that are none beside their neighbours' levels are taken out."""
    while bounds:
        edges = [0, *bounds, len(supply.mb_per_second)]
        levels = [_level(supply, begin, end) for begin, end in itertools.pairwise(edges)]
        factors = [_factor(before, after) for before, after in itertools.pairwise(levels)]
        least = int(np.argmin(factors))
        if factors[least] >= LEAST_FACTOR:
            return bounds
        bounds = bounds[:least] + bounds[least + 1 :]
    return bounds


def _level(supply: Supply, begin: int, end: int | None) -> float:
    """Return the median speed of some windows.

    Those that tell it and those that show it was at least as much; all, where too few tell it: then the median is what
    was asked for, and the storage could have given more.
    """
    values, limits = supply.mb_per_second[begin:end], supply.limits[begin:end]
    exact = values[limits]
    if len(exact) < LEAST_WINDOWS:
        return float(np.median(values))
    return float(np.median(values[limits | (values > np.median(exact))]))


def _factor(before: float, after: float) -> float:
    """Return how many times the greater is the smaller; infinite beside nothing."""
    least = min(before, after)
    return max(before, after) / least if least > 0 else math.inf

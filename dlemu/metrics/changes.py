"""When the storage's speed changed, and when it stalled: found in the step rows, docs/metrics.md, section 6.

What the storage *can* give shows only while accelerators wait and workers are blocked in reads. At other times it gave
what was requested, and could have given more: such a window is censored from above. So windows are compared by Gehan's
scores (a generalized Wilcoxon test for arbitrarily singly-censored samples, Biometrika 52, 1965), in the change-point
test of Pettitt (A non-parametric approach to the change-point problem, Applied Statistics 28, 1979), again on either
side of each change (binary segmentation: Vostrikova, Soviet Mathematics Doklady 24, 1981). Ranks, not sizes, decide:
bursts of a throttle and heavy tails count no more than any other window. Pure: step rows in, changes out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics.causes import cpu_is_known, took_ns, worker_time
from dlemu.metrics.over_time import Floats, Intervals
from dlemu.metrics.read_times import find_read_change
from dlemu.metrics.rows import Rows, StepTable, in_order, is_any

SIGNIFICANCE = 0.001
"""Probability of a change by chance, for each test."""
LEAST_FACTOR = 1.25
"""How many times the speed must differ for a change to be reported."""
LEAST_WINDOWS = 6
"""Windows on either side of a change: fewer are a stall or a burst."""
_WINDOW_SECONDS, _MOST_WINDOWS, _BATCHES = 0.25, 400, 4  # 400: scores compare all pairs
_LOST_SHARE, _ALIKE = 0.1, 0.7
"""A window shows the storage's speed only where accelerators waited for this share of its time, or where this share of
the usual number of readers was blocked."""
_FROM_STORAGE, _WHOLE_QUANTILE, _LEAST_WHOLE = 0.5, 0.9, 0.1
"""A window shows the storage's speed only where storage served this share of a batch's usual storage bytes: those of
batches that no cache served. On a file system that compresses they are fewer than the bytes read."""
STALL_SECONDS, _TIMES_A_BATCH = 1.0, 5
"""How long no batch may be complete for it to be a stall, and how many times as long as a batch takes."""


@dataclass(frozen=True, kw_only=True)
class SpeedChange:
    """A moment from which on the storage gave more or less than before."""

    at_seconds: float
    """Since training began."""
    mb_per_second_before: float
    """Median from the change before (or the start) to this one; as much as was requested where that was less."""
    mb_per_second_after: float
    """The same up to the next change, or the end."""
    percent: float
    """After, in % of before."""
    gb_before: float = 0.0
    """GB read from storage between the start of training and the change."""
    read_ms_before: float | None = None
    """Median time of a batch's reads, where the change was found in these and not in what all of them got."""
    read_ms_after: float | None = None


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
    table = in_order(rows)
    changes = changes_of(_without(supply_of(table, preprocesses=preprocesses), find_stalls(table)))
    if not changes:
        change = find_read_change(table, preprocesses=preprocesses) if len(table) else None
        if change is None:
            return ()
        percent = 100 * change.mb_per_second_after / change.mb_per_second_before
        changes = (SpeedChange(**asdict(change), percent=percent),)
    column, before = storage_column(table), np.zeros(len(changes))
    for own, start_ns in _ranks(table):
        ends, gigabytes = (own["finished_ns"] - start_ns) / 1e9, own[column] / 1e9
        before += [float(gigabytes[ends <= change.at_seconds].sum()) for change in changes]
    return tuple(replace(change, gb_before=gb) for change, gb in zip(changes, before.tolist(), strict=True))


def _without(supply: Supply, stalls: tuple[Stall, ...]) -> Supply:
    """Leave out the windows in which the storage stalled: that is reported separately."""
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
    most of the bytes show nothing of the storage and are left out. What the storage has of a batch is not always all
    of its bytes: a file system that compresses reads fewer. So a window is compared with the batches that took most
    from the storage.
    """
    table = in_order(rows)
    ranks = [(own[(own["app_bytes"] > 0) & (took_ns(own) > 0)], start) for own, start in _ranks(table)]
    ranks = [(fetched, start) for fetched, start in ranks if len(fetched)]
    if sum(len(fetched) for fetched, _ in ranks) < 2 * LEAST_WINDOWS:
        return Supply(np.zeros(0), np.zeros(0), np.zeros(0, np.bool_))
    column = _from_storage_of([fetched for fetched, _ in ranks])
    cpu_known = any(cpu_is_known(fetched) for fetched, _ in ranks)
    shares = np.concatenate([fetched[column] / fetched["app_bytes"] for fetched, _ in ranks])
    whole = float(np.quantile(shares, _WHOLE_QUANTILE))
    whole = min(whole, 1.0) if whole >= _LEAST_WHOLE else 1.0
    del shares
    parts = [np.zeros((5, 0))]
    for epoch, edges in _edges(ranks):
        given, app, readers, lost = (np.zeros(len(edges) - 1) for _ in range(4))
        for fetched, start_ns in ranks:
            own = fetched.of("epoch", (epoch,))
            if not len(own):
                continue
            began, over = ((own[name] - start_ns) / 1e9 for name in ("started_ns", "finished_ns"))
            batches = Intervals(began, over, edges)
            given += batches.rates(own[column] / 1e6)
            app += batches.rates(own["app_bytes"] / 1e6)
            readers += batches.rates(worker_time(own, preprocesses, cpu_known=cpu_known).storage / 1e9)
        for all_of, start_ns in _ranks(table):
            own = all_of.of("epoch", (epoch,))
            late = own["wait_ns"] > 0  # plain arrays: a StepTable of every other row would be all pieces
            free, waits = (own["free_ns"][late] - start_ns) / 1e9, own["wait_ns"][late] / 1e9
            lost += Intervals(free, free + waits, edges).rates(waits) / len(table.by_rank)
        parts.append(np.stack([edges[:-1], given, app, readers, lost]))
    windows = np.concatenate(parts, axis=1)
    at, given, _, readers, lost = windows[:, windows[1] > _FROM_STORAGE * whole * windows[2]]
    waiting = lost >= _LOST_SHARE
    usual = float(np.median(readers[waiting])) if waiting.any() else math.inf
    return Supply(at, given, waiting & (readers >= _ALIKE * usual))


def storage_column(rows: StepTable) -> str:
    """Return the column with the bytes that the storage served, by the kernel's account; else those that were read."""
    return _from_storage_of([rows])


def _from_storage_of(parts: Sequence[StepTable]) -> str:
    return "storage_bytes" if any(is_any(part, "storage_bytes") for part in parts) else "app_bytes"


def find_stalls(rows: Rows) -> tuple[Stall, ...]:
    """Return the times in which no batch was completed for a second or more, though accelerators waited, in order."""
    return in_order(rows).once(_find_stalls)


def _find_stalls(table: StepTable) -> tuple[Stall, ...]:
    if not len(table):
        return ()
    ranks = _ranks(table)
    took = np.concatenate([took_ns(own) for own, _ in ranks])
    least = max(STALL_SECONDS, _TIMES_A_BATCH * float(np.median(took)) / 1e9)
    del took
    stalls = []
    for epoch in table.values("epoch"):
        mine = [(own.of("epoch", (epoch,)), start_ns) for own, start_ns in ranks]
        done = np.concatenate([(own["finished_ns"] - start_ns) / 1e9 for own, start_ns in mine])
        done.sort(kind="stable")
        for gap in np.flatnonzero(np.diff(done) >= least):
            begin, end = float(done[gap]), float(done[gap + 1])
            if any(_reads_all_along(own, start_ns, begin, end) for own, start_ns in mine) and _waited(
                ranks, begin, end
            ):
                stalls.append(Stall(at_seconds=begin, seconds=end - begin))
    return tuple(stalls)


def _reads_all_along(own: StepTable, start_ns: int, begin: float, end: float) -> bool:
    """Return whether a batch of a rank's was read from the first half of that time to its end or longer."""
    starts, ends = ((own[name] - start_ns) / 1e9 for name in ("started_ns", "finished_ns"))
    half = (end - begin) / 2
    return bool(((starts <= begin + half) & (ends >= end) & (own["read_ns"] >= half * 1e9)).any())


def _waited(ranks: list[tuple[StepTable, int]], begin: float, end: float) -> bool:
    """Return whether some accelerator waited for a tenth of that time."""
    longest = 0.0
    for own, start_ns in ranks:
        free = (own["free_ns"] - start_ns) / 1e9
        overlap = np.minimum(free + own["wait_ns"] / 1e9, end) - np.maximum(free, begin)
        longest = max(longest, float(overlap.max()))
    return longest >= _LOST_SHARE * (end - begin)


def _ranks(table: StepTable) -> list[tuple[StepTable, int]]:
    """Return each rank's rows with the moment of its clock at which its first step was free."""
    return table.once(_ranks_of)


def _ranks_of(table: StepTable) -> list[tuple[StepTable, int]]:
    return [(own, int(own["free_ns"].min())) for own in table.by_rank]


def _edges(ranks: list[tuple[StepTable, int]]) -> Iterator[tuple[int, Floats]]:
    """Yield each epoch's window edges, from its first read to the begin of its last one: then readers go idle."""
    spans: dict[int, tuple[float, float]] = {}
    for fetched, start_ns in ranks:
        for own in fetched.by_epoch:
            starts, (epoch,) = own["started_ns"], own.values("epoch")
            begin, end = (int(starts.min()) - start_ns) / 1e9, (int(starts.max()) - start_ns) / 1e9
            known = spans.get(epoch, (begin, end))
            spans[epoch] = min(begin, known[0]), max(end, known[1])
    seconds = sum(end - begin for begin, end in spans.values())
    took = np.concatenate([took_ns(fetched) for fetched, _ in ranks])
    batch = float(np.median(took)) / 1e9
    length = max(_WINDOW_SECONDS, seconds / _MOST_WINDOWS, _BATCHES * seconds / len(took), batch)
    for epoch, (begin, end) in sorted(spans.items()):
        yield epoch, begin + length * np.arange(int((end - begin) / length) + 1, dtype=np.float64)


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
    22, 1960): what is between its ends is above, or below, what lies around it.
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
    Buehlmann, Li, Munk, Biometrika 110, 2023). Together they have the false-alarm rate of one test (Bonferroni).
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
    split = (
        begin + LEAST_WINDOWS + int((sums / np.sqrt(left * (count - left))).argmax())
    )  # without the root: biased to the middle
    before, after = _level(supply, begin, split), _level(supply, split, end)
    return None if _factor(before, after) < LEAST_FACTOR else _refined(supply, (begin, end), before, after)


def _refined(supply: Supply, bounds: tuple[int, int], before: float, after: float) -> int:
    """Return the split that leaves fewest windows on the wrong side of the mean of both levels."""
    begin, end = bounds
    values, limits = supply.mb_per_second[begin:end], supply.limits[begin:end]
    middle = math.sqrt(before * after)
    sides = np.where(values > middle, 1, np.where(limits, -1, 0)) * (1 if before > after else -1)
    right = np.cumsum(sides)[LEAST_WINDOWS - 1 : len(sides) - LEAST_WINDOWS]
    return end - LEAST_WINDOWS - int(right[::-1].argmax())  # on a tie the later: the first certain change


def _gehan_scores(values: Floats, limits: NDArray[np.bool_]) -> Floats:
    """Return for each window how many others it is certainly above, less those it is certainly below.

    One that no one waited for is at least as high as it looks: it is above what is exact and lower, and below none.
    """
    above = (values[:, np.newaxis] > values) & limits[np.newaxis, :]
    scores: Floats = (above.sum(axis=1) - above.sum(axis=0)).astype(float)
    return scores


def _merged(supply: Supply, bounds: list[int]) -> list[int]:
    """Return the changes without those between levels that differ too little, of which the smallest goes first."""
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

    Those that show it and those that show it was at least as much; all, where too few show it: then the median is what
    was requested, and the storage could have given more.
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

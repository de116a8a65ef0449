"""When the storage's speed changed, and when it stalled, from the step rows (docs/metrics.md, section 6).

    MB/s of a window   | 200 200 200 200 200 200   80  80  80  80  80  80 |
                                             change to 40 % ^ at the first slow window

The run is cut into windows of time. A window's throughput is what the storage *can* deliver only while accelerators
wait and workers are blocked in reads; else it is a lower bound, that is, right-censored. So windows are compared by
Gehan's scores (a generalized Wilcoxon test for arbitrarily singly-censored samples, Biometrika 52, 1965) in Pettitt's
change-point test (A non-parametric approach to the change-point problem, Applied Statistics 28, 1979), repeated on
either side of each change (binary segmentation: Vostrikova, Soviet Mathematics Doklady 24, 1981). The tests use the
order of the windows' values, not the values, so the bursts of a throttle and heavy tails weigh no more than others.

Where throughput over time shows nothing (few large steps, or heavy tails), the time that reads take may. The logarithm
of a batch's time per byte has no heavy tails, so few batches suffice. n concurrent reads count as one, as they share
the storage. Both a read's time and the total throughput must change: if only one does, only the number of readers did.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics.findings import Code, Finding, Number
from dlemu.metrics.loss import took_ns, worker_time
from dlemu.metrics.rates import Floats, Intervals, during, under_way
from dlemu.metrics.rows import Rows, StepTable, began_ns, cached, in_order, is_any, sum_of
from dlemu.metrics.t_interval import quantile

SIGNIFICANCE = 0.001
"""False-alarm rate of each test."""
MIN_FACTOR = 1.25
"""Ratio of the speeds before and after from which a change is reported."""
MIN_WINDOWS = 6
"""Least number of windows on either side of a change: fewer slow or fast windows are a stall or a burst."""
_MIN_WAIT_SHARE, _MIN_READERS_SHARE = 0.1, 0.7
"""A window shows what the storage can deliver if accelerators waited for this share of its time, and if this share of
the usual number of workers was blocked in reads. A read counts if this share of the usual number was under way."""
_MIN_FROM_STORAGE = 0.5
"""A window, or a read, counts if the storage served this share of the bytes that it serves where nothing is cached."""
STALL_SECONDS, _STALL_BATCHES = 1.0, 5
"""Least length of a stall, in seconds and in times that a batch usually takes."""
_MIN_READS, _MIN_INDEPENDENT = 8, 3.0
"""Least number of reads, and of independent ones, on either side of a change of read times."""
MAX_ROWS = 200_000
"""Most steps of all ranks whose read times are examined: in longer runs heavy tails average out in each window."""


@dataclass(frozen=True, kw_only=True)
class SpeedChange:
    """A moment from which on the storage delivered more or less than before."""

    at_seconds: float
    """Since training began."""
    mb_per_second_before: float
    """Median since the previous change (or the start), a lower bound where readers requested no more; of a change of
    read times, the rate of all readers together while they read."""
    mb_per_second_after: float
    """Median until the next change, or the end."""
    percent: float
    """Speed after the change, in % of the speed before."""
    gb_before: float = 0.0
    """GB read from storage between the start of training and the change."""
    read_ms_before: float | None = None
    """Median time of a batch's reads, where the change was found in read times, not in throughput; else None."""
    read_ms_after: float | None = None


@dataclass(frozen=True, kw_only=True)
class Stall:
    """A time in which no batch was completed, though a worker was reading and an accelerator waited."""

    at_seconds: float
    """Since training began."""
    seconds: float


@dataclass(frozen=True, eq=False)
class Supply:
    """The storage's throughput over time: arrays with one entry per window."""

    at_seconds: Floats
    """Start of each window, since training began."""
    mb_per_second: Floats
    limits: NDArray[np.bool_]
    """Whether the throughput is all that the storage could deliver; else it is a lower bound."""

    def __len__(self) -> int:
        return len(self.at_seconds)

    def __getitem__(self, part: slice | NDArray[np.bool_]) -> Supply:
        return Supply(self.at_seconds[part], self.mb_per_second[part], self.limits[part])

    @property
    def level(self) -> float:
        """The median speed, without lower bounds below the exact windows' median; of all windows if few are exact."""
        exact = self.mb_per_second[self.limits]
        if len(exact) < MIN_WINDOWS:
            return float(np.median(self.mb_per_second))
        return float(np.median(self.mb_per_second[self.limits | (self.mb_per_second > np.median(exact))]))

    @property
    def gehan_scores(self) -> Floats:
        """For each window how many are certainly slower, minus how many are certainly faster: 3 1 2 -> 2 -2 0."""
        above = (self.mb_per_second[:, np.newaxis] > self.mb_per_second) & self.limits[np.newaxis, :]
        return np.asarray(above.sum(axis=1) - above.sum(axis=0), float)


def find_unsteadiness(rows: Rows, *, preprocesses: bool) -> Iterator[Finding]:
    """Yield how the storage was not steady: each change of its speed, each stall, and what explains the changes.

    The `pattern` (`speed_changed`, `stalled`, `ran_out`, `first_touch`) says which numbers a finding has.
    """
    table = in_order(rows)
    changes = find_speed_changes(table, preprocesses=preprocesses)
    for change in changes:
        numbers = {name: value for name, value in asdict(change).items() if value is not None}
        yield not_steady("speed_changed", **numbers)
    for stall in find_stalls(table):
        yield not_steady("stalled", **asdict(stall))
    yield from find_ran_out(changes)
    yield from _find_first_touch(changes, table)


def not_steady(pattern: str, **numbers: Number) -> Finding:
    """Return the finding that the storage was not steady in this way."""
    return Finding(Code.STORAGE_NOT_STEADY, "caution", {"pattern": pattern, **numbers})


def find_speed_changes(rows: Rows, *, preprocesses: bool = False) -> tuple[SpeedChange, ...]:
    """Return the changes of the storage's speed in training rows, in order; by read times where throughput has none."""
    table = in_order(rows)
    supply, stalls = supply_of(table, preprocesses=preprocesses), find_stalls(table)
    length = float(np.median(np.diff(supply.at_seconds))) if len(supply) > 1 else 0.0
    stalled = np.zeros(len(supply), np.bool_)
    for stall in stalls:  # these are reported on their own
        end = stall.at_seconds + stall.seconds
        stalled |= (supply.at_seconds + length > stall.at_seconds) & (supply.at_seconds < end)
    changes = changes_of(supply[~stalled])
    if not changes and len(table) <= MAX_ROWS and _lost_time(table, stalls):
        change = find_read_change(table, preprocesses=preprocesses)
        changes = () if change is None else (change,)
    ends, gigabytes = (table["finished_ns"] - began_ns(table)) / 1e9, table[storage_column(table)] / 1e9
    return tuple(replace(change, gb_before=float(gigabytes[ends <= change.at_seconds].sum())) for change in changes)


def _lost_time(table: StepTable, stalls: Sequence[Stall]) -> bool:
    """Return whether accelerators waited, after an epoch's first step and out of stalls, for reads that were slower."""
    later = table["step"] > 1
    stalled_ns = 1e9 * sum(stall.seconds for stall in stalls) * len(table.by_rank)
    waited_ns = float(table["wait_ns"][later].sum()) - stalled_ns
    computed_ns = float(table["compute_ns"][later].sum())
    return waited_ns > 0.02 * (waited_ns + computed_ns)  # the share from which a limit is named (MIN_LOSS_PERCENT)


def changes_of(supply: Supply) -> tuple[SpeedChange, ...]:
    bounds = _splits(supply)
    while bounds:
        parts = itertools.pairwise([0, *bounds, len(supply)])
        levels = list(itertools.pairwise(supply[begin:end].level for begin, end in parts))
        factors = [_factor(before, after) for before, after in levels]
        if min(factors) >= MIN_FACTOR:
            return tuple(
                SpeedChange(
                    at_seconds=at_seconds,
                    mb_per_second_before=before,
                    mb_per_second_after=after,
                    percent=100 * after / before,
                )
                for at_seconds, (before, after) in zip(supply.at_seconds[bounds].tolist(), levels, strict=True)
            )
        del bounds[factors.index(min(factors))]  # the parts before and after it are one part, with a level of its own
    return ()


def supply_of(rows: Rows, *, preprocesses: bool = False) -> Supply:
    """Return the storage's throughput in windows of equal length, and whether it was all that it could deliver.

    Bytes are the kernel's count of bytes from storage, where it keeps one, else the bytes read. Windows mostly served
    by the page cache are left out.
    """
    table = in_order(rows)
    began, took = began_ns(table), took_ns(table) / 1e9
    fetched = (table["app_bytes"] > 0) & (took > 0)
    if fetched.sum() < 2 * MIN_WINDOWS:
        return Supply(np.zeros(0), np.zeros(0), np.zeros(0, np.bool_))
    starts, ends, free = ((table[name] - began) / 1e9 for name in ("started_ns", "finished_ns", "free_ns"))
    storage_mb, app_mb, waited = table[storage_column(table)] / 1e6, table["app_bytes"] / 1e6, table["wait_ns"] / 1e9
    blocked = worker_time(table, preprocesses).storage / 1e9
    # Storage bytes per byte read of uncached batches: below 1 on a file system that compresses.
    uncached_share = min(1.0, float(np.quantile(storage_mb[fetched] / app_mb[fetched], 0.9)))
    if uncached_share < 0.1:  # nearly all batches were cached
        uncached_share = 1.0
    epochs = [table["epoch"] == epoch for epoch in np.unique(table["epoch"][fetched])]
    seconds = sum(float(np.ptp(starts[epoch & fetched])) for epoch in epochs)
    # At least 4 batches of all ranks a window, and at most 400 windows: the scores compare every pair of windows.
    length = max(0.25, seconds / 400, 4 * seconds / int(fetched.sum()), float(np.median(took[fetched])))
    by_epoch = []
    for epoch in epochs:
        reads, waits = epoch & fetched, epoch & (waited > 0)
        first, last = starts[reads].min(), starts[reads].max()
        edges = first + length * np.arange(int((last - first) / length) + 1, dtype=np.float64)
        batches = Intervals(starts[reads], ends[reads], edges)
        waiting = Intervals(free[waits], free[waits] + waited[waits], edges)
        rates = [batches.rates(amounts[reads]) for amounts in (storage_mb, app_mb, blocked)]
        by_epoch.append(np.vstack([edges[:-1], *rates, waiting.rates(waited[waits]) / len(table.by_rank)]))
    windows = np.concatenate(by_epoch, axis=1)
    windows = windows[:, windows[1] > _MIN_FROM_STORAGE * uncached_share * windows[2]]
    at_seconds, storage_rate, _, readers, wait_share = windows
    is_waiting = wait_share >= _MIN_WAIT_SHARE
    usual = float(np.median(readers[is_waiting])) if is_waiting.any() else math.inf
    return Supply(at_seconds, storage_rate, is_waiting & (readers >= _MIN_READERS_SHARE * usual))


def storage_column(rows: StepTable) -> str:
    """Return the column of the kernel's count of bytes from storage, or of the bytes read where it keeps none."""
    return "storage_bytes" if is_any(rows, "storage_bytes") else "app_bytes"


@cached
def find_stalls(table: StepTable) -> tuple[Stall, ...]:
    """Return the storage's stalls (see `Stall`), in order."""
    if not len(table):
        return ()
    began = began_ns(table)
    starts, ends, free = ((table[name] - began) / 1e9 for name in ("started_ns", "finished_ns", "free_ns"))
    reading, wait_ends = table["read_ns"] / 1e9, free + table["wait_ns"] / 1e9
    min_seconds = max(STALL_SECONDS, _STALL_BATCHES * float(np.median(took_ns(table))) / 1e9)
    stalls = []
    for epoch in table.values("epoch"):
        of_epoch = table["epoch"] == epoch
        completed = np.sort(ends[of_epoch])
        for gap in np.flatnonzero(np.diff(completed) >= min_seconds):
            begin, end = float(completed[gap]), float(completed[gap + 1])
            half = (end - begin) / 2
            # A batch was in reads at least from the middle of the gap to the gap's end.
            was_reading = of_epoch & (starts <= begin + half) & (ends >= end) & (reading >= half)
            waited = float((np.minimum(wait_ends, end) - np.maximum(free, begin)).max())
            if was_reading.any() and waited >= _MIN_WAIT_SHARE * (end - begin):
                stalls.append(Stall(at_seconds=begin, seconds=end - begin))
    return tuple(stalls)


def _splits(supply: Supply) -> list[int]:
    """Return the indices of the windows that start with a change, in order; searches on both sides of each change."""
    split = _split(supply, SIGNIFICANCE) or _split_for_a_while(supply) or _split_within(supply)
    if not split:
        return []
    later = [split + index for index in _splits(supply[split:])]
    return [*_splits(supply[:split]), split, *later]


def _split_for_a_while(supply: Supply) -> int | None:
    """Return where a speed begins that ends later (100 100 50 50 100 100): Pettitt's test hardly sees such a change.

    Kuiper's test (Tests concerning random points on a circle, Indagationes Mathematicae 22, 1960) uses the range of the
    same sums: between their minimum and maximum, the speed is above, or below, that before and after.
    """
    if len(supply) < 3 * MIN_WINDOWS:
        return None
    scores = supply.gehan_scores
    squares, sums = float((scores**2).sum()), np.cumsum(scores)
    first, last = sorted((1 + int(sums.argmin()), 1 + int(sums.argmax())))
    if not squares or min(first, last - first, len(supply) - last) < MIN_WINDOWS:
        return None
    square = float(sums.max() - sums.min()) ** 2 / squares
    if 2 * (4 * square - 1) * math.exp(-2 * square) >= SIGNIFICANCE:
        return None
    return first if _factor(supply[:first].level, supply[first:last].level) >= MIN_FACTOR else None


def _split_within(supply: Supply) -> int | None:
    """Return a change found in a part of the windows, where several changes cancel out over all windows.

    Seeded binary segmentation (Kovacs, Buehlmann, Li, Munk, Biometrika 110, 2023); false alarms by Bonferroni.
    """
    parts, length = [], len(supply) // 2
    while length >= 2 * MIN_WINDOWS:
        parts += [(first, first + length) for first in range(0, len(supply) - length + 1, max(1, length // 2))]
        length //= 2
    for first, last in parts:
        if split := _split(supply[first:last], SIGNIFICANCE / len(parts)):
            return first + split
    return None


def _split(supply: Supply, significance: float) -> int | None:
    """Return the change that Pettitt's test finds in the windows; None if not significant."""
    scores = supply.gehan_scores
    split, squares = _best_split(scores, MIN_WINDOWS), float((scores**2).sum())
    if split is None or not squares:
        return None
    largest = float(np.abs(np.cumsum(scores)[MIN_WINDOWS - 1 : -MIN_WINDOWS]).max())
    if 2 * math.exp(-2 * largest**2 / squares) >= significance:
        return None
    return split if _factor(supply[:split].level, supply[split:].level) >= MIN_FACTOR else None


def _factor(before: float, after: float) -> float:
    """Return the ratio of the greater to the smaller speed; infinite if one is 0."""
    smaller = min(before, after)
    return max(before, after) / smaller if smaller > 0 else math.inf


def _find_first_touch(changes: Sequence[SpeedChange], table: StepTable) -> Iterator[Finding]:
    """Yield how slow the first epoch was, if the only change is a rise of speed at its end.

    A volume that loads each block at its first read, as one restored from a snapshot, is slow until then.
    """
    if len(table.by_epoch) < 2 or len(changes) != 1 or changes[0].percent < 100:
        return
    gb, change = sum_of(table.by_epoch[0], storage_column(table)) / 1e9, changes[0]
    if abs(change.gb_before - gb) <= 0.1 * gb:  # it may be off by a window, or a few batches
        first, later = change.mb_per_second_before, change.mb_per_second_after
        yield not_steady("first_touch", gb=gb, mb_per_second_first=first, mb_per_second_after=later)


def find_ran_out(changes: Sequence[SpeedChange]) -> Iterator[Finding]:
    """Yield that a cache or burst credit ran out: falls of speed after about as many bytes each, with rises in pauses.

    Fall after 10 GB, rise after 15, fall after 25: `gb` = 10 came fast, `times` = 2. Twice is a proof, once a hint, as
    other load that starts then looks the same.
    """
    falls, rises = changes[::2], changes[1::2]
    alternate = all(fall.percent < 100 for fall in falls) and all(rise.percent >= 100 for rise in rises)
    if not alternate or len(falls) == len(rises):
        return
    fast_from_gb = [0.0, *(rise.gb_before for rise in rises)]
    fast_gb = [fall.gb_before - begin for fall, begin in zip(falls, fast_from_gb, strict=True)]
    if min(fast_gb) > 0 and max(fast_gb) <= 1.3 * min(fast_gb):  # a change is known only to a window of time
        yield not_steady(
            "ran_out",
            gb=sum(fast_gb) / len(fast_gb),
            times=len(falls),
            mb_per_second_before=falls[0].mb_per_second_before,
            mb_per_second_after=min(fall.mb_per_second_after for fall in falls),
        )


def find_read_change(rows: StepTable, *, preprocesses: bool) -> SpeedChange | None:
    """Return the moment at which read times changed most; None if the change is not significant.

    It is the middle between the starts of the last read before and the first after; the rates are of all readers
    together while they read.
    """
    starts, took, size_bytes = _reads(rows, preprocesses)
    if len(starts) < 2 * _MIN_READS:
        return None
    edges, reading, lengths = under_way(starts, starts + took)
    active = during(starts, starts + took, edges, reading * lengths) / took  # mean number of reads, this one included
    usual = active >= _MIN_READERS_SHARE * np.median(active)
    starts, took, size_bytes, active = (values[usual] for values in (starts, took, size_bytes, active))
    concurrent = max(1.0, float(active.mean()))  # reads that count as one
    log_times, count = np.log(took / size_bytes), len(took)
    split = _best_split(log_times, max(_MIN_READS, math.ceil(_MIN_INDEPENDENT * concurrent)))
    if split is None:
        return None
    slowness = np.stack([log_times, log_times - np.log(active)])  # of a read, and of all readers together
    before, after = slowness[:, :split], slowness[:, split:]
    variances = (split * before.var(axis=1) + (count - split) * after.var(axis=1)) / (count - 2)
    errors = np.sqrt(variances * concurrent * (1 / split + 1 / (count - split)))
    rises = after.mean(axis=1) - before.mean(axis=1)
    t_values = rises / np.maximum(errors, 1e-12)
    independent = count / concurrent
    # exceeded by chance at the rate SIGNIFICANCE over all possible splits (Bonferroni)
    critical = quantile(1 - SIGNIFICANCE / 2 / max(1.0, independent), max(1, round(independent) - 2))
    if np.abs(t_values).min() < critical or t_values.prod() < 0:  # only the readers' number did
        return None
    seconds_before, seconds_after = float(np.median(took[:split])), float(np.median(took[split:]))
    if min(math.exp(abs(float(rises[0]))), _factor(seconds_before, seconds_after)) < MIN_FACTOR:
        return None
    busy = took / active  # of a read's time, its share of the storage's time
    rates = np.add.reduceat(size_bytes, [0, split]) / np.add.reduceat(busy, [0, split]) / 1e6
    mb_before, mb_after = rates.tolist()
    return SpeedChange(
        at_seconds=float(starts[split - 1] + starts[split]) / 2,
        mb_per_second_before=mb_before,
        mb_per_second_after=mb_after,
        percent=100 * mb_after / mb_before,
        read_ms_before=1e3 * seconds_before,
        read_ms_after=1e3 * seconds_after,
    )


def _reads(rows: StepTable, preprocesses: bool) -> tuple[Floats, Floats, Floats]:
    """Return for each batch when it was started and how long its worker was blocked in reads, s, and its bytes.

    In order of start; without batches of which less than _MIN_FROM_STORAGE came from the storage.
    """
    starts, blocked = (rows["started_ns"] - began_ns(rows)) / 1e9, worker_time(rows, preprocesses).storage / 1e9
    counts = (rows["app_bytes"] > 0) & (took_ns(rows) > 0) & (blocked > 0)
    if is_any(rows, "storage_bytes"):  # else it is unknown what came from the storage
        counts &= rows["storage_bytes"] >= _MIN_FROM_STORAGE * rows["app_bytes"]
    order = np.flatnonzero(counts)[np.argsort(starts[counts], kind="stable")]
    return starts[order], blocked[order], rows["app_bytes"][order].astype(float)


def _best_split(values: Floats, fewest: int) -> int | None:
    """Return the split whose parts' means deviate most from all values' mean, in standard errors (least squares).

    Each part has at least `fewest` values; None if there are too few. Without the weights it is biased to the middle.
    """
    splits = np.arange(fewest, len(values) - fewest + 1)
    if not len(splits):
        return None
    sums = np.cumsum(values - values.mean())[splits - 1]
    return int(splits[(np.abs(sums) / np.sqrt(splits * (len(values) - splits))).argmax()])

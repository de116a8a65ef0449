"""Finds changes of the storage's speed, and its stalls, in step rows (docs/metrics.md, section 6).

    MB/s of a window   | 200 200 200 200 200 200   80  80  80  80  80  80 |
                                             change to 40 % ^ at the first slow window

Changes are found in the throughput of windows of time. While accelerators wait and workers are blocked in reads, the
throughput is what the storage *can* deliver; else it is a lower bound, that is, right-censored. Gehan's scores compare
such values (A generalized Wilcoxon test for comparing arbitrarily singly-censored samples, Biometrika 52, 1965).
Pettitt's test finds a change in them (A non-parametric approach to the change-point problem, Applied Statistics 28,
1979), and is repeated on either side of it (binary segmentation: Vostrikova, Soviet Mathematics Doklady 24, 1981). It
uses the order of the values, not their size, so bursts of a throttle and heavy tails carry no extra weight.

With few large steps or heavy tails, throughput may hide a change that read times show. The logarithm of a batch's time
per byte has no heavy tails, so few batches suffice. n concurrent reads count as one, because they share the storage.
Read times and total throughput must both change; else only the number of readers changed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics.findings import Code, Finding, Number
from dlemu.metrics.loss import fetch_ns, worker_time
from dlemu.metrics.rates import Floats, Intervals, during, under_way
from dlemu.metrics.rows import Rows, StepTable, as_table, cached, has_nonzero, sum_of, training_start_ns
from dlemu.metrics.t_interval import quantile

SIGNIFICANCE = 0.001  # false-alarm rate of each test
MIN_FACTOR = 1.25  # smallest ratio of the speeds before and after a change that is reported
MIN_WINDOWS = 6  # windows needed on either side of a change: fewer slow or fast windows are a stall or a burst
# A window shows what the storage can deliver only if accelerators waited while enough workers were blocked in reads.
_MIN_WAIT_SHARE = 0.1  # share of the window's time for which accelerators waited
_MIN_READERS_SHARE = 0.7  # number of readers / its median; batches whose read times are compared need it, too
_MIN_FROM_STORAGE = 0.5  # share of a window's or a read's bytes from storage, relative to uncached reads; else left out
STALL_SECONDS, _STALL_BATCHES = 1.0, 5  # shortest stall, in seconds and in median batch times
_MIN_READS, _MIN_INDEPENDENT = 8, 3.0  # reads, and independent reads, needed on either side of a change of read times
MAX_ROWS = 200_000  # read times of more rows are not examined: in longer runs, windows average out heavy tails


@dataclass(frozen=True, kw_only=True)
class SpeedChange:
    """A moment from which on the storage delivered more or less than before."""

    at_seconds: float
    """Since the start of training."""
    mb_per_second_before: float
    """Median since the previous change or the start, a lower bound if readers requested no more; for a change found in
    read times, the rate of all readers together while they read."""
    mb_per_second_after: float
    """The same until the next change or the end."""
    percent: float
    """Speed after the change, in % of the speed before."""
    gb_before: float = 0.0
    """GB read from storage between the start of training and the change."""
    read_ms_before: float | None = None
    """Median time of a batch's reads, for a change found in read times; else None."""
    read_ms_after: float | None = None


@dataclass(frozen=True, kw_only=True)
class Stall:
    """A time in which no batch was completed, although a worker was reading and an accelerator waited."""

    at_seconds: float
    """Since the start of training."""
    seconds: float


@dataclass(frozen=True, eq=False)
class Throughput:
    """The storage's throughput in windows of time, in order: arrays with one entry per window."""

    at_seconds: Floats
    """Start of each window, since the start of training."""
    mb_per_second: Floats
    limits: NDArray[np.bool_]
    """Whether the throughput is the storage's limit; else it is a lower bound of what the storage can deliver."""

    def __len__(self) -> int:
        return len(self.at_seconds)

    def __getitem__(self, selection: slice | NDArray[np.bool_]) -> Throughput:
        return Throughput(self.at_seconds[selection], self.mb_per_second[selection], self.limits[selection])

    @property
    def level(self) -> float:
        """The median speed. If enough windows are at the limit, lower bounds below the median of these are left out."""
        at_limit = self.mb_per_second[self.limits]
        if len(at_limit) < MIN_WINDOWS:
            return float(np.median(self.mb_per_second))
        return float(np.median(self.mb_per_second[self.limits | (self.mb_per_second > np.median(at_limit))]))

    @property
    def gehan_scores(self) -> Floats:
        """For each window, the number of certainly slower windows minus that of certainly faster: 3 1 2 -> 2 -2 0."""
        is_faster = (self.mb_per_second[:, np.newaxis] > self.mb_per_second) & self.limits[np.newaxis, :]
        return np.asarray(is_faster.sum(axis=1) - is_faster.sum(axis=0), float)


def find_unsteadiness(rows: Rows, *, preprocesses: bool) -> Iterator[Finding]:
    """Yield each change of speed, each stall, and their explanations; a finding's `pattern` determines its numbers."""
    table = as_table(rows)
    changes = find_speed_changes(table, preprocesses=preprocesses)
    for change in changes:
        numbers = {name: value for name, value in asdict(change).items() if value is not None}
        yield not_steady("speed_changed", **numbers)
    for stall in find_stalls(table):
        yield not_steady("stalled", **asdict(stall))
    yield from find_ran_out(changes)
    yield from _find_first_touch(changes, table)


def not_steady(pattern: str, **numbers: Number) -> Finding:
    """Return a finding that the storage was not steady, with its pattern and numbers."""
    return Finding(Code.STORAGE_NOT_STEADY, "caution", {"pattern": pattern, **numbers})


def find_speed_changes(rows: Rows, *, preprocesses: bool = False) -> tuple[SpeedChange, ...]:
    """Return the changes of the storage's speed in training rows, in order; if throughput has none, by read times."""
    table = as_table(rows)
    windows, stalls = throughput_of(table, preprocesses=preprocesses), find_stalls(table)
    window_seconds = float(np.median(np.diff(windows.at_seconds))) if len(windows) > 1 else 0.0
    is_stalled = np.zeros(len(windows), np.bool_)
    for stall in stalls:  # stalls have findings of their own
        end = stall.at_seconds + stall.seconds
        is_stalled |= (windows.at_seconds + window_seconds > stall.at_seconds) & (windows.at_seconds < end)
    changes = changes_of(windows[~is_stalled])
    if not changes and len(table) <= MAX_ROWS:
        later = table[table["step"] > 1]
        waited_ns = sum_of(later, "wait_ns") - 1e9 * sum(stall.seconds for stall in stalls) * len(table.by_rank)
        # Unless accelerators waited outside of stalls and first steps, slower reads had no effect.
        if waited_ns > 0.02 * (waited_ns + sum_of(later, "compute_ns")):  # as `limit.MIN_LOSS_PERCENT`
            change = find_read_change(table, preprocesses=preprocesses)
            changes = () if change is None else (change,)
    ends, gigabytes = (table["finished_ns"] - training_start_ns(table)) / 1e9, table[storage_column(table)] / 1e9
    return tuple(replace(change, gb_before=float(gigabytes[ends <= change.at_seconds].sum())) for change in changes)


def changes_of(windows: Throughput) -> tuple[SpeedChange, ...]:
    """Return the changes of throughput by at least MIN_FACTOR, in order."""
    bounds = _change_points(windows)
    while bounds:
        segments = itertools.pairwise([0, *bounds, len(windows)])
        levels = list(itertools.pairwise(windows[begin:end].level for begin, end in segments))
        factors = [_factor(before, after) for before, after in levels]
        if min(factors) >= MIN_FACTOR:
            return tuple(
                SpeedChange(
                    at_seconds=at_seconds,
                    mb_per_second_before=before,
                    mb_per_second_after=after,
                    percent=100 * after / before,
                )
                for at_seconds, (before, after) in zip(windows.at_seconds[bounds].tolist(), levels, strict=True)
            )
        del bounds[factors.index(min(factors))]  # joins the segments on either side of the smallest change
    return ()


def throughput_of(table: StepTable, *, preprocesses: bool) -> Throughput:
    """Return the storage's throughput in windows of equal length, without windows served mostly by the page cache."""
    origin_ns, fetch_seconds = training_start_ns(table), fetch_ns(table) / 1e9
    has_reads = (table["app_bytes"] > 0) & (fetch_seconds > 0)
    if has_reads.sum() < 2 * MIN_WINDOWS:
        return Throughput(np.zeros(0), np.zeros(0), np.zeros(0, np.bool_))
    starts, ends, free = ((table[name] - origin_ns) / 1e9 for name in ("started_ns", "finished_ns", "free_ns"))
    storage_mb, app_mb = table[storage_column(table)] / 1e6, table["app_bytes"] / 1e6
    wait_seconds, blocked_seconds = table["wait_ns"] / 1e9, worker_time(table, preprocesses).storage / 1e9
    # Bytes from storage / bytes read, of uncached batches: below 1 on a file system that compresses
    uncached_ratio = min(1.0, np.quantile(storage_mb[has_reads] / app_mb[has_reads], 0.9))
    if uncached_ratio < 0.1:  # nearly all batches were cached, so the ratio is unknown
        uncached_ratio = 1.0
    epochs = [table["epoch"] == epoch for epoch in np.unique(table["epoch"][has_reads])]  # masks of their rows
    read_seconds = sum(np.ptp(starts[in_epoch & has_reads]) for in_epoch in epochs)
    # A window has at least 4 batches. There are at most 400 windows, because the scores compare each with each.
    batch_seconds = read_seconds / int(has_reads.sum())
    window_seconds = max(0.25, read_seconds / 400, 4 * batch_seconds, np.median(fetch_seconds[has_reads]))
    by_epoch = []
    for in_epoch in epochs:
        reads, waits = in_epoch & has_reads, in_epoch & (wait_seconds > 0)
        first, last = starts[reads].min(), starts[reads].max()
        edges = first + window_seconds * np.arange(int((last - first) / window_seconds) + 1, dtype=np.float64)
        read_intervals = Intervals(starts[reads], ends[reads], edges)
        rates = [read_intervals.rates(amounts[reads]) for amounts in (storage_mb, app_mb, blocked_seconds)]
        wait_intervals = Intervals(free[waits], free[waits] + wait_seconds[waits], edges)
        wait_share = wait_intervals.rates(wait_seconds[waits]) / len(table.by_rank)
        by_epoch.append(np.vstack([edges[:-1], *rates, wait_share]))
    # One value per window. Seconds that workers were blocked in reads, per second, are a number of readers.
    at_seconds, storage_rate, app_rate, readers, wait_share = np.concatenate(by_epoch, axis=1)
    is_uncached = storage_rate > _MIN_FROM_STORAGE * uncached_ratio * app_rate
    is_waiting = is_uncached & (wait_share >= _MIN_WAIT_SHARE)
    usual_readers = np.median(readers[is_waiting]) if is_waiting.any() else math.inf
    is_limit = is_waiting & (readers >= _MIN_READERS_SHARE * usual_readers)
    return Throughput(at_seconds, storage_rate, is_limit)[is_uncached]


def storage_column(rows: StepTable) -> str:
    """Return the name of the column of bytes from storage or, if the kernel did not count these, of bytes read."""
    return "storage_bytes" if has_nonzero(rows, "storage_bytes") else "app_bytes"


@cached
def find_stalls(table: StepTable) -> tuple[Stall, ...]:
    """Return the storage's stalls (see `Stall`), in order."""
    if not len(table):
        return ()
    origin_ns = training_start_ns(table)
    starts, ends, free = ((table[name] - origin_ns) / 1e9 for name in ("started_ns", "finished_ns", "free_ns"))
    reading, wait_ends = table["read_ns"] / 1e9, free + table["wait_ns"] / 1e9
    min_seconds = max(STALL_SECONDS, _STALL_BATCHES * float(np.median(fetch_ns(table))) / 1e9)
    stalls = []
    for epoch in table.values("epoch"):
        in_epoch = table["epoch"] == epoch
        completed = np.sort(ends[in_epoch])
        for gap in np.flatnonzero(np.diff(completed) >= min_seconds):
            begin, end = float(completed[gap]), float(completed[gap + 1])
            half = (end - begin) / 2
            # In a stall, the reads of some batch take at least from the middle of the gap to its end.
            was_reading = in_epoch & (starts <= begin + half) & (ends >= end) & (reading >= half)
            waited = float((np.minimum(wait_ends, end) - np.maximum(free, begin)).max())
            if was_reading.any() and waited >= _MIN_WAIT_SHARE * (end - begin):
                stalls.append(Stall(at_seconds=begin, seconds=end - begin))
    return tuple(stalls)


def _change_points(windows: Throughput) -> list[int]:
    """Return the indices of the windows from which on the speed is another, in order."""
    change = _lasting_change(windows, SIGNIFICANCE) or _temporary_change(windows) or _change_in_segment(windows)
    if not change:
        return []
    later = [change + index for index in _change_points(windows[change:])]
    return [*_change_points(windows[:change]), change, *later]


def _temporary_change(windows: Throughput) -> int | None:
    """Return the start of a temporary change (100 100 50 50 100 100), which Pettitt's test has little power to find.

    Kuiper's test (Tests concerning random points on a circle, Indagationes Mathematicae 22, 1960) uses the range of the
    same cumulative sums. Between their minimum and maximum, the speed is above (or below) that before and after.
    """
    if len(windows) < 3 * MIN_WINDOWS:
        return None
    scores = windows.gehan_scores
    squares, sums = float((scores**2).sum()), np.cumsum(scores)
    first, last = sorted((1 + int(sums.argmin()), 1 + int(sums.argmax())))
    if not squares or min(first, last - first, len(windows) - last) < MIN_WINDOWS:
        return None
    square = float(sums.max() - sums.min()) ** 2 / squares
    if 2 * (4 * square - 1) * math.exp(-2 * square) >= SIGNIFICANCE:
        return None
    return first if _factor(windows[:first].level, windows[first:last].level) >= MIN_FACTOR else None


def _change_in_segment(windows: Throughput) -> int | None:
    """Return a change in a segment of the windows, because several changes may cancel out over all windows.

    Seeded binary segmentation (Kovacs, Buehlmann, Li, Munk, Biometrika 110, 2023), with a Bonferroni correction.
    """
    segments, length = [], len(windows) // 2
    while length >= 2 * MIN_WINDOWS:
        segments += [(first, first + length) for first in range(0, len(windows) - length + 1, max(1, length // 2))]
        length //= 2
    for first, last in segments:
        if change := _lasting_change(windows[first:last], SIGNIFICANCE / len(segments)):
            return first + change
    return None


def _lasting_change(windows: Throughput, significance: float) -> int | None:
    """Return the index of the change that Pettitt's test finds in the windows; None if it is not significant."""
    scores = windows.gehan_scores
    split, squares = _best_split(scores, MIN_WINDOWS), float((scores**2).sum())
    if split is None or not squares:
        return None
    largest = float(np.abs(np.cumsum(scores)[MIN_WINDOWS - 1 : -MIN_WINDOWS]).max())
    if 2 * math.exp(-2 * largest**2 / squares) >= significance:
        return None
    return split if _factor(windows[:split].level, windows[split:].level) >= MIN_FACTOR else None


def _factor(before: float, after: float) -> float:
    """Return the ratio of the higher to the lower speed; infinite if one is 0."""
    smaller = min(before, after)
    return max(before, after) / smaller if smaller > 0 else math.inf


def _find_first_touch(changes: Sequence[SpeedChange], table: StepTable) -> Iterator[Finding]:
    """Yield a finding if the first epoch was slow: the only change is a rise of speed at its end.

    A volume restored from a snapshot, for example, loads each block at its first read, which is slow.
    """
    if len(table.by_epoch) < 2 or len(changes) != 1 or changes[0].percent < 100:
        return
    change = changes[0]
    gb = sum_of(table.by_epoch[0], storage_column(table)) / 1e9
    if abs(change.gb_before - gb) <= 0.1 * gb:  # a change is located only to within a window, or a few batches
        first, later = change.mb_per_second_before, change.mb_per_second_after
        yield not_steady("first_touch", gb=gb, mb_per_second_first=first, mb_per_second_after=later)


def find_ran_out(changes: Sequence[SpeedChange]) -> Iterator[Finding]:
    """Yield a finding if a cache or a burst credit ran out: speed falls each time after about as many fast bytes.

    A fall at 10 GB, a rise at 15 and a fall at 25 give `gb` = 10 and `times` = 2. Two falls are proof. One is a hint,
    because other load that begins at that moment looks the same.
    """
    falls, rises = changes[::2], changes[1::2]
    does_alternate = all(fall.percent < 100 for fall in falls) and all(rise.percent >= 100 for rise in rises)
    if not does_alternate or len(falls) == len(rises):  # no change, or the speed is high at the end
        return
    fast_from_gb = [0.0, *(rise.gb_before for rise in rises)]
    fast_gb = [fall.gb_before - begin for fall, begin in zip(falls, fast_from_gb, strict=True)]
    if min(fast_gb) > 0 and max(fast_gb) <= 1.3 * min(fast_gb):  # a change is located only to within a window
        yield not_steady(
            "ran_out",
            gb=sum(fast_gb) / len(fast_gb),
            times=len(falls),
            mb_per_second_before=falls[0].mb_per_second_before,
            mb_per_second_after=min(fall.mb_per_second_after for fall in falls),
        )


def find_read_change(rows: StepTable, *, preprocesses: bool) -> SpeedChange | None:
    """Return the most significant change of read times, halfway between the starts of two reads; None without one."""
    starts, seconds, size_bytes, active = _usual_reads(rows, preprocesses)
    split = _significant_split(np.log(seconds / size_bytes), active)
    if split is None:
        return None
    seconds_before, seconds_after = float(np.median(seconds[:split])), float(np.median(seconds[split:]))
    if _factor(seconds_before, seconds_after) < MIN_FACTOR:
        return None
    storage_seconds = seconds / active  # each read's share of the storage's time
    rates = np.add.reduceat(size_bytes, [0, split]) / np.add.reduceat(storage_seconds, [0, split]) / 1e6
    mb_before, mb_after = rates.tolist()
    return SpeedChange(
        at_seconds=float(starts[split - 1] + starts[split]) / 2,
        mb_per_second_before=mb_before,
        mb_per_second_after=mb_after,
        percent=100 * mb_after / mb_before,
        read_ms_before=1e3 * seconds_before,
        read_ms_after=1e3 * seconds_after,
    )


def _significant_split(log_times: Floats, active: Floats) -> int | None:
    """Return where the log times per byte of reads change most; None if by less than MIN_FACTOR, or perhaps by chance.

    Two-sample t-tests must agree: one of single reads, one of all readers together (time per byte / `active` readers).
    """
    count = len(log_times)
    if count < 2 * _MIN_READS:
        return None
    concurrent = max(1.0, float(active.mean()))  # number of reads that count as one independent read
    split = _best_split(log_times, max(_MIN_READS, math.ceil(_MIN_INDEPENDENT * concurrent)))
    if split is None:
        return None
    tested = np.stack([log_times, log_times - np.log(active)])
    before, after = tested[:, :split], tested[:, split:]
    variances = (split * before.var(axis=1) + (count - split) * after.var(axis=1)) / (count - 2)
    errors = np.sqrt(variances * concurrent * (1 / split + 1 / (count - split)))
    rises = after.mean(axis=1) - before.mean(axis=1)
    t_single, t_together = (rises / np.maximum(errors, 1e-12)).tolist()
    independent = count / concurrent
    # By chance, the largest t value of all splits exceeds this at the rate SIGNIFICANCE (Bonferroni).
    critical = quantile(1 - SIGNIFICANCE / 2 / max(1.0, independent), max(1, round(independent) - 2))
    if min(abs(t_single), abs(t_together)) < critical or t_single * t_together < 0:
        return None  # not both changed, or not in the same direction
    return split if math.exp(abs(float(rises[0]))) >= MIN_FACTOR else None


def _usual_reads(rows: StepTable, preprocesses: bool) -> list[Floats]:
    """Return start (s), time blocked in reads (s), bytes and concurrency of batches, each (batches,), sorted by start.

    The concurrency of a batch is the mean number of batches being read meanwhile, itself included. Batches of unusually
    low concurrency, and those of which less than _MIN_FROM_STORAGE came from storage, are left out.
    """
    starts = (rows["started_ns"] - training_start_ns(rows)) / 1e9
    blocked = worker_time(rows, preprocesses).storage / 1e9
    is_read = (rows["app_bytes"] > 0) & (fetch_ns(rows) > 0) & (blocked > 0)
    if has_nonzero(rows, "storage_bytes"):  # otherwise, it is unknown how much came from storage
        is_read &= rows["storage_bytes"] >= _MIN_FROM_STORAGE * rows["app_bytes"]
    order = np.flatnonzero(is_read)[np.argsort(starts[is_read], kind="stable")]
    if not len(order):
        return [np.zeros(0)] * 4
    starts, seconds, size_bytes = starts[order], blocked[order], rows["app_bytes"][order].astype(float)
    edges, reading, lengths = under_way(starts, starts + seconds)
    active = during(starts, starts + seconds, edges, reading * lengths) / seconds
    is_usual = active >= _MIN_READERS_SHARE * np.median(active)
    return [values[is_usual] for values in (starts, seconds, size_bytes, active)]


def _best_split(values: Floats, min_size: int) -> int | None:
    """Return the split into two parts of at least `min_size` values whose means differ most, in standard errors."""
    splits = np.arange(min_size, len(values) - min_size + 1)
    if not len(splits):
        return None
    sums = np.cumsum(values - values.mean())[splits - 1]
    standardised = np.abs(sums) / np.sqrt(splits * (len(values) - splits))  # raw sums prefer splits in the middle
    return int(splits[standardised.argmax()])

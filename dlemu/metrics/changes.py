"""When the storage's speed changed, and when it stalled, from the step rows (docs/metrics.md, section 6).

The run is cut into windows of time. A window's throughput is what the storage *can* deliver only while accelerators
wait and workers are blocked in reads; else it is a lower bound, that is, right-censored. So windows are compared by
Gehan's scores (a generalized Wilcoxon test for arbitrarily singly-censored samples, Biometrika 52, 1965) in Pettitt's
change-point test (A non-parametric approach to the change-point problem, Applied Statistics 28, 1979), repeated on
either side of each change (binary segmentation: Vostrikova, Soviet Mathematics Doklady 24, 1981). The tests use the
order of the windows' values, not the values, so the bursts of a throttle and heavy tails weigh no more than others.

Changes that come after a number of bytes have a cause of their own. A drive's cache, or a cloud volume's burst credit,
lasts for a number of bytes: the storage is fast from the first byte, slows down after them, and recovers in a pause.
Repeated slow-downs after about the same number of bytes prove it; a single one is a hint, because other load that
starts then looks the same. A volume that loads each block at its first read (as one restored from a snapshot) is slow
for the first epoch only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics.causes import cpu_is_known, took_ns, worker_time
from dlemu.metrics.findings import Code, Finding, Number
from dlemu.metrics.over_time import Floats, Intervals
from dlemu.metrics.read_times import find_read_change
from dlemu.metrics.rows import Rows, StepTable, filled, in_order, is_any, sum_of

SIGNIFICANCE = 0.001
"""False-alarm rate of each test."""
MIN_FACTOR = 1.25
"""Ratio of the speeds before and after from which a change is reported."""
MIN_WINDOWS = 6
"""Least number of windows on either side of a change: fewer are a stall or a burst."""
_WINDOW_SECONDS, _WINDOW_BATCHES = 0.25, 4
"""Least length of a window, in seconds and in batches of all ranks."""
_MAX_WINDOWS = 400  # the scores compare every pair of windows
_MIN_WAIT_SHARE, _MIN_READERS_SHARE = 0.1, 0.7
"""A window shows what the storage can deliver if accelerators waited for this share of its time, and if this share of
the usual number of workers was blocked in reads."""
_MIN_LOST_SHARE = 0.02
"""Share of the time that accelerators must have waited for a change of read times to count, as for a limit to be
named (`dlemu.metrics.limit.MIN_LOSS_PERCENT`)."""
_MIN_FROM_STORAGE = 0.5
"""A window counts if the storage served this share of the bytes that it serves where nothing is cached."""
_UNCACHED_QUANTILE, _MIN_UNCACHED_SHARE = 0.9, 0.1
"""The quantile over the batches of storage bytes per byte read is that of uncached batches: below 1 on a file system
that compresses. Less than the minimum means that nearly all batches were cached: then it is taken to be 1."""
STALL_SECONDS, _STALL_BATCHES = 1.0, 5
"""Least length of a stall, in seconds and in times that a batch usually takes."""


@dataclass(frozen=True, kw_only=True)
class SpeedChange:
    """A moment from which on the storage delivered more or less than before."""

    at_seconds: float
    """Since training began."""
    mb_per_second_before: float
    """Median since the previous change (or the start); a lower bound where readers requested no more."""
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


def find_unsteadiness(rows: Rows, *, preprocesses: bool) -> tuple[Finding, ...]:
    """Return what was not steady of the storage: each change of its speed, each stall, and what explains the changes.

    Findings of the same `pattern` (`speed_changed`, `stalled`, `ran_out`, `first_touch`) have the same numbers.
    """
    table = in_order(rows)
    changes = find_speed_changes(table, preprocesses=preprocesses)
    column = storage_column(table)
    gb_of_epochs = [sum_of(epoch, column) / 1e9 for epoch in table.by_epoch] if changes else []
    explained = find_ran_out(changes), find_first_touch(changes, gb_of_epochs)
    return (
        *(not_steady("speed_changed", **{k: v for k, v in asdict(one).items() if v is not None}) for one in changes),
        *(not_steady("stalled", **asdict(stall)) for stall in find_stalls(table)),
        *(finding for finding in explained if finding is not None),
    )


def not_steady(pattern: str, **numbers: Number) -> Finding:
    """Return the finding that the storage was not steady in this way."""
    return Finding(Code.STORAGE_NOT_STEADY, "caution", {"pattern": pattern, **numbers})


def find_speed_changes(rows: Rows, *, preprocesses: bool = False) -> tuple[SpeedChange, ...]:
    """Return the changes of the storage's speed in training rows, in order; by read times where throughput has none."""
    table = in_order(rows)
    changes = changes_of(_without(supply_of(table, preprocesses=preprocesses), find_stalls(table)))
    if not changes:
        change = find_read_change(table, preprocesses=preprocesses) if _lost_time(table) else None
        if change is None:
            return ()
        percent = 100 * change.mb_per_second_after / change.mb_per_second_before
        changes = (SpeedChange(**asdict(change), percent=percent),)
    column, before = storage_column(table), np.zeros(len(changes))
    for own, start_ns in _ranks(table):
        ends, gigabytes = (own["finished_ns"] - start_ns) / 1e9, own[column] / 1e9
        before += [float(gigabytes[ends <= change.at_seconds].sum()) for change in changes]
    return tuple(replace(change, gb_before=gb) for change, gb in zip(changes, before.tolist(), strict=True))


def _lost_time(table: StepTable) -> bool:
    """Return whether accelerators waited after the first step of an epoch: else slower reads made no difference."""
    names = ("wait_ns", "compute_ns")
    _, (step, *first), _ = table.ends("step", *names)
    totals = (sum_of(table, name) for name in names)
    wait_ns, compute_ns = (float(all_ns - own[step == 1].sum()) for all_ns, own in zip(totals, first, strict=True))
    return wait_ns > _MIN_LOST_SHARE * (wait_ns + compute_ns)


def _without(supply: Supply, stalls: tuple[Stall, ...]) -> Supply:
    """Return the supply without the windows in which the storage stalled: stalls are reported on their own."""
    running = np.ones(len(supply.at_seconds), np.bool_)
    length = float(np.median(np.diff(supply.at_seconds))) if len(running) > 1 else 0.0
    for stall in stalls:
        end = stall.at_seconds + stall.seconds
        running &= (supply.at_seconds + length <= stall.at_seconds) | (supply.at_seconds >= end)
    return Supply(supply.at_seconds[running], supply.mb_per_second[running], supply.limits[running])


def changes_of(supply: Supply) -> tuple[SpeedChange, ...]:
    """Return the changes of a throughput over time, in order."""
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
    """Return the storage's throughput in windows of equal length, and whether it was all that it could deliver.

    Bytes are the kernel's count of bytes from storage, where it keeps one, else the bytes read. Windows mostly served
    by the page cache are left out; what uncached batches need (`_UNCACHED_QUANTILE`) allows for compression.
    """
    table = in_order(rows)
    ranks = [(own[(own["app_bytes"] > 0) & (took_ns(own) > 0)], start) for own, start in _ranks(table)]
    ranks = [(fetched, start) for fetched, start in ranks if len(fetched)]
    if sum(len(fetched) for fetched, _ in ranks) < 2 * MIN_WINDOWS:
        return Supply(np.zeros(0), np.zeros(0), np.zeros(0, np.bool_))
    column = _from_storage_of([fetched for fetched, _ in ranks])
    cpu_known = any(cpu_is_known(fetched) for fetched, _ in ranks)
    shares = filled((own[column] / own["app_bytes"] for own, _ in ranks), sum(len(own) for own, _ in ranks), np.float64)
    uncached_share = float(np.quantile(shares, _UNCACHED_QUANTILE, overwrite_input=True))
    uncached_share = min(uncached_share, 1.0) if uncached_share >= _MIN_UNCACHED_SHARE else 1.0
    del shares
    edges = dict(_edges(ranks))
    sums = {epoch: np.zeros((4, len(edges[epoch]) - 1)) for epoch in edges}
    for fetched, start_ns in ranks:
        for own in fetched.by_epoch:
            (epoch,) = own.values("epoch")
            starts, ends = ((own[name] - start_ns) / 1e9 for name in ("started_ns", "finished_ns"))
            batches = Intervals(starts, ends, edges[epoch])
            read = worker_time(own, preprocesses, cpu_known=cpu_known).storage / 1e9
            sums[epoch][:3] += [batches.rates(amounts) for amounts in (own[column] / 1e6, own["app_bytes"] / 1e6, read)]
    for all_of, start_ns in _ranks(table):
        for own in all_of.by_epoch:
            (epoch,) = own.values("epoch")
            if epoch not in edges:
                continue
            late = own["wait_ns"] > 0  # plain arrays: a StepTable of scattered rows has a piece for each
            free, waits = (own["free_ns"][late] - start_ns) / 1e9, own["wait_ns"][late] / 1e9
            sums[epoch][3] += Intervals(free, free + waits, edges[epoch]).rates(waits) / len(table.by_rank)
    windows = np.concatenate([np.vstack([edges[epoch][:-1], sums[epoch]]) for epoch in edges], axis=1)
    at, stored, _, readers, waited = windows[:, windows[1] > _MIN_FROM_STORAGE * uncached_share * windows[2]]
    waiting = waited >= _MIN_WAIT_SHARE
    usual = float(np.median(readers[waiting])) if waiting.any() else math.inf
    return Supply(at, stored, waiting & (readers >= _MIN_READERS_SHARE * usual))


def storage_column(rows: StepTable) -> str:
    """Return the column of the kernel's count of bytes from storage, or of the bytes read where it keeps none."""
    return _from_storage_of([rows])


def _from_storage_of(parts: Sequence[StepTable]) -> str:
    return "storage_bytes" if any(is_any(part, "storage_bytes") for part in parts) else "app_bytes"


def find_stalls(rows: Rows) -> tuple[Stall, ...]:
    """Return the storage's stalls (see `Stall`), in order."""
    return in_order(rows).once(_find_stalls)


def _find_stalls(table: StepTable) -> tuple[Stall, ...]:
    if not len(table):
        return ()
    ranks = _ranks(table)
    done_by_epoch: dict[int, list[Floats]] = {epoch: [] for epoch in table.values("epoch")}
    took, at = np.empty(len(table), np.int64), 0
    for part, start_ns in ranks:
        for own in part.by_epoch:
            done = _ends_of_spans((own["finished_ns"] - start_ns) / 1e9)
            done_by_epoch[own.values("epoch")[0]].append(done)
        took[at : at + len(part)] = took_ns(part)
        at += len(part)
    min_seconds = max(STALL_SECONDS, _STALL_BATCHES * float(np.median(took, overwrite_input=True)) / 1e9)
    del took
    stalls = []
    for epoch, dones in done_by_epoch.items():
        done = np.sort(np.concatenate(dones))
        for gap in np.flatnonzero(np.diff(done) >= min_seconds):
            begin, end = float(done[gap]), float(done[gap + 1])
            mine = [(own.of("epoch", (epoch,)), start_ns) for own, start_ns in ranks]
            if any(_reads_all_along(own, start_ns, begin, end) for own, start_ns in mine) and _waited(
                ranks, begin, end
            ):
                stalls.append(Stall(at_seconds=begin, seconds=end - begin))
    return tuple(stalls)


def _ends_of_spans(moments: Floats) -> Floats:
    """Return the first and last of the moments in each span of half of STALL_SECONDS: gaps as long as that remain."""
    moments = np.sort(moments)
    changes = np.flatnonzero(np.diff(moments // (STALL_SECONDS / 2)))
    kept: Floats = moments[np.unique(np.concatenate([[0], changes, changes + 1, [len(moments) - 1]]))]
    return kept


def _reads_all_along(own: StepTable, start_ns: int, begin: float, end: float) -> bool:
    """Return whether one of the rank's batches was in reads for the second half of that time at least, to its end."""
    starts, ends = ((own[name] - start_ns) / 1e9 for name in ("started_ns", "finished_ns"))
    half = (end - begin) / 2
    return bool(((starts <= begin + half) & (ends >= end) & (own["read_ns"] >= half * 1e9)).any())


def _waited(ranks: list[tuple[StepTable, int]], begin: float, end: float) -> bool:
    """Return whether an accelerator waited for `_MIN_WAIT_SHARE` of that time."""
    longest = 0.0
    for own, start_ns in ranks:
        free = (own["free_ns"] - start_ns) / 1e9
        overlap = np.minimum(free + own["wait_ns"] / 1e9, end) - np.maximum(free, begin)
        longest = max(longest, float(overlap.max()))
    return longest >= _MIN_WAIT_SHARE * (end - begin)


def _ranks(table: StepTable) -> list[tuple[StepTable, int]]:
    """Return each rank's rows, and when training began by the rank's clock, ns."""
    return table.once(_ranks_of)


def _ranks_of(table: StepTable) -> list[tuple[StepTable, int]]:
    return [(own, int(own.ends("free_ns")[1][0].min())) for own in table.by_rank]


def _edges(ranks: list[tuple[StepTable, int]]) -> Iterator[tuple[int, Floats]]:
    """Yield each epoch with its windows' edges, s, from its first batch's start to its last's: then readers idle."""
    spans: dict[int, tuple[float, float]] = {}
    for fetched, start_ns in ranks:
        for own in fetched.by_epoch:
            starts, (epoch,) = own["started_ns"], own.values("epoch")
            begin, end = (int(starts.min()) - start_ns) / 1e9, (int(starts.max()) - start_ns) / 1e9
            known = spans.get(epoch, (begin, end))
            spans[epoch] = min(begin, known[0]), max(end, known[1])
    seconds = sum(end - begin for begin, end in spans.values())
    took = filled((took_ns(own) for own, _ in ranks), sum(len(own) for own, _ in ranks))
    batch = float(np.median(took, overwrite_input=True)) / 1e9
    length = max(_WINDOW_SECONDS, seconds / _MAX_WINDOWS, _WINDOW_BATCHES * seconds / len(took), batch)
    for epoch, (begin, end) in sorted(spans.items()):
        yield epoch, begin + length * np.arange(int((end - begin) / length) + 1, dtype=np.float64)


def _splits(supply: Supply, begin: int, end: int) -> Iterator[int]:
    """Yield the indices of the windows from `begin` to `end` that start with a change, searching either side again."""
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
    """Return the start of a speed that later ended: such a change cancels out over the whole in Pettitt's test.

    Kuiper's test (Tests concerning random points on a circle, Indagationes Mathematicae 22, 1960) uses the range of the
    same sums: between their minimum and maximum, the speed is above, or below, that before and after.
    """
    if end - begin < 3 * MIN_WINDOWS:
        return None
    scores = _gehan_scores(supply.mb_per_second[begin:end], supply.limits[begin:end])
    squares = float((scores**2).sum())
    sums = np.cumsum(scores)
    first, last = sorted((begin + 1 + int(sums.argmin()), begin + 1 + int(sums.argmax())))
    if not squares or min(first - begin, last - first, end - last) < MIN_WINDOWS:
        return None
    square = float(sums.max() - sums.min()) ** 2 / squares
    if 2 * (4 * square - 1) * math.exp(-2 * square) >= SIGNIFICANCE:
        return None
    before, after = _level(supply, begin, first), _level(supply, first, last)
    return None if _factor(before, after) < MIN_FACTOR else _refined(supply, (begin, last), before, after)


def _split_within(supply: Supply, begin: int, end: int) -> int | None:
    """Return a change found in a part of the windows, where several changes cancel out over the whole.

    Seeded binary segmentation (Kovacs, Buehlmann, Li, Munk, Biometrika 110, 2023); false alarms by Bonferroni.
    """
    parts, length = [], (end - begin) // 2
    while length >= 2 * MIN_WINDOWS:
        parts += [(first, first + length) for first in range(begin, end - length + 1, max(1, length // 2))]
        length //= 2
    found = (_split(supply, *part, SIGNIFICANCE / len(parts)) for part in parts)
    return next((split for split in found if split is not None), None)


def _split(supply: Supply, begin: int, end: int, significance: float = SIGNIFICANCE) -> int | None:
    """Return the change that Pettitt's test finds in the windows from `begin` to `end`; None if not significant."""
    count = end - begin
    if count < 2 * MIN_WINDOWS:
        return None
    scores = _gehan_scores(supply.mb_per_second[begin:end], supply.limits[begin:end])
    squares = float((scores**2).sum())
    if not squares:
        return None
    sums = np.abs(np.cumsum(scores)[MIN_WINDOWS - 1 : count - MIN_WINDOWS])
    if 2 * math.exp(-2 * float(sums.max()) ** 2 / squares) >= significance:
        return None
    left = np.arange(MIN_WINDOWS, count - MIN_WINDOWS + 1)
    weights = np.sqrt(left * (count - left))  # without them the split is biased to the middle
    split = begin + MIN_WINDOWS + int((sums / weights).argmax())
    before, after = _level(supply, begin, split), _level(supply, split, end)
    return None if _factor(before, after) < MIN_FACTOR else _refined(supply, (begin, end), before, after)


def _refined(supply: Supply, bounds: tuple[int, int], before: float, after: float) -> int:
    """Return the split with the fewest windows on the wrong side of the geometric mean of both levels."""
    begin, end = bounds
    values, limits = supply.mb_per_second[begin:end], supply.limits[begin:end]
    middle = math.sqrt(before * after)
    sides = np.where(values > middle, 1, np.where(limits, -1, 0)) * (1 if before > after else -1)
    right = np.cumsum(sides)[MIN_WINDOWS - 1 : len(sides) - MIN_WINDOWS]
    return end - MIN_WINDOWS - int(right[::-1].argmax())  # on a tie, the latest


def _gehan_scores(values: Floats, limits: NDArray[np.bool_]) -> Floats:
    """Return for each window how many others it is certainly faster than, minus how many are certainly faster."""
    above = (values[:, np.newaxis] > values) & limits[np.newaxis, :]
    scores: Floats = (above.sum(axis=1) - above.sum(axis=0)).astype(float)
    return scores


def _merged(supply: Supply, bounds: list[int]) -> list[int]:
    """Remove the smallest change and compute the levels again until all changes are of MIN_FACTOR or more."""
    while bounds:
        edges = [0, *bounds, len(supply.mb_per_second)]
        levels = [_level(supply, begin, end) for begin, end in itertools.pairwise(edges)]
        factors = [_factor(before, after) for before, after in itertools.pairwise(levels)]
        least = int(np.argmin(factors))
        if factors[least] >= MIN_FACTOR:
            return bounds
        bounds = bounds[:least] + bounds[least + 1 :]
    return bounds


def _level(supply: Supply, begin: int, end: int | None) -> float:
    """Return the median speed of the windows from `begin` to `end`: of exact ones and higher bounds, or of all."""
    values, limits = supply.mb_per_second[begin:end], supply.limits[begin:end]
    exact = values[limits]
    if len(exact) < MIN_WINDOWS:
        return float(np.median(values))
    return float(np.median(values[limits | (values > np.median(exact))]))


def _factor(before: float, after: float) -> float:
    """Return the ratio of the greater to the smaller speed; infinite if one is 0."""
    smaller = min(before, after)
    return max(before, after) / smaller if smaller > 0 else math.inf


_MAX_BYTES_RATIO = 1.3
"""Greatest ratio of the most to the fewest bytes before a slow-down; a change is known only to a window of time."""


_FIRST_EPOCH_TOLERANCE = 0.1
"""Share of the first epoch's bytes by which the change may miss the epoch's end: a window, or a few batches."""


def find_first_touch(changes: Sequence[SpeedChange], gb_of_epochs: Sequence[float]) -> Finding | None:
    """Return how slow the first epoch was (of `gb_of_epochs`) if the only change is a rise at its end, else None.

    So is a volume on which the first read of a block is slow.
    """
    if len(gb_of_epochs) < 2 or len(changes) != 1 or changes[0].percent < 100:
        return None
    first, change = gb_of_epochs[0], changes[0]
    if abs(change.gb_before - first) > _FIRST_EPOCH_TOLERANCE * first:
        return None
    return not_steady(
        "first_touch",
        gb=first,
        mb_per_second_first=change.mb_per_second_before,
        mb_per_second_after=change.mb_per_second_after,
    )


def find_ran_out(changes: Sequence[SpeedChange]) -> Finding | None:
    """Return what ran out, a cache or burst credit: falls after about as many bytes each, with a rise between.

    `gb` is the mean of what came at the higher speed, `times` how often it ran out: once is a hint, more are a proof.
    """
    falls = [change for change in changes if change.percent < 100]
    rises = [change for change in changes if change.percent >= 100]
    if not falls or len(changes) != 2 * len(falls) - 1:
        return None
    if any(change.percent >= 100 for change in changes[::2]):
        return None
    since = [0.0, *(change.gb_before for change in rises)]
    fast_gb = [fall.gb_before - begin for fall, begin in zip(falls, since, strict=True)]
    if min(fast_gb) <= 0 or max(fast_gb) > _MAX_BYTES_RATIO * min(fast_gb):
        return None
    return not_steady(
        "ran_out",
        gb=sum(fast_gb) / len(fast_gb),
        times=len(falls),
        mb_per_second_before=falls[0].mb_per_second_before,
        mb_per_second_after=min(fall.mb_per_second_after for fall in falls),
    )

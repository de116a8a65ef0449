"""The sustained AU: what the storage would give in an endless epoch, estimated from short ones.

AU over counted steps includes steps whose batches the uncounted first step read. The supply, the rate of reading while
all readers are busy, can go on for ever (docs/metrics.md, section 2).

Its uncertainty has components (docs/uncertainty.md). As in the GUM (JCGM 100:2008), the standard uncertainties of
independent components are added in squares; the expanded uncertainty U is k = 2 times the result, a confidence of about
95 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dlemu.metrics.au import au_percent
from dlemu.metrics.loss import total_ns
from dlemu.metrics.rates import Floats, Intervals, Mean, known
from dlemu.metrics.rows import Ints, Rows, StepTable, cached, in_order, sum_of
from dlemu.metrics.t_interval import Values, estimate


@dataclass(frozen=True, kw_only=True)
class Supply:
    """The batches of an epoch read while its readers were busy, summed over the accelerators."""

    read_ns: float
    """Computation time of the batches read; of a batch half read, half of it."""
    time_ns: float
    """Time in which they were read, summed over the accelerators."""
    edge_ns: float = 0.0
    """Standard uncertainty of `read_ns`: how much was read of the batches under way at the end is unknown."""
    at_least: bool = False
    """All batches of the epoch were under way at once, so readers might have read more: this is a lower bound."""

    @property
    def percent(self) -> float:
        """Share of the time that the supply keeps accelerators busy; above 100 where it is faster than they are."""
        return 100.0 * self.read_ns / self.time_ns if self.time_ns > 0 else math.nan


@cached
def supplies_of(table: StepTable) -> list[Supply]:
    """Return the supply of each epoch, from the training rows of all ranks.

    It is measured from the start of the first batch until a rank starts its last one, without the time between blocks.
    In an epoch in which no batch is complete by then, it is measured until the first rank has all of them (`at_least`).
    """
    reads: dict[int, list[_Read]] = {epoch: [] for epoch in table.values("epoch")}
    for own in table.by_rank_and_epoch:
        start, started, finished = training_spans(own)[0].min(), own["started_ns"], own["finished_ns"]
        moments = started.min(), started.max(), finished.min(), finished.max()
        reads[own.values("epoch")[0]].append(_Read(*(int(moment - start) for moment in moments)))
    windows = {epoch: _window(ranks) for epoch, ranks in reads.items()}
    sums: dict[int, tuple[list[float], list[float], list[float]]] = {epoch: ([], [], []) for epoch in reads}
    for own in table.by_rank_and_epoch:
        (epoch,), start, batches = own.values("epoch"), int(training_spans(own)[0].min()), _Batches(own)
        (begin, end, _), (read_ns, time_ns, edges) = windows[epoch], sums[epoch]
        lows, highs = (moments - start for moments in training_spans(own))
        for low, high in _overlaps(lows, highs, begin, end):
            read_ns.append(batches.read_by(start + high) - batches.read_by(start + low))
            time_ns.append(high - low)
        edges.append(batches.under_way(start + end))
    # A share of which only the range 0 to 1 is known has a standard uncertainty of 1 / sqrt(12) (GUM, 4.3.7).
    return [
        Supply(
            read_ns=sum(read_ns, start=0.0),
            time_ns=sum(time_ns, start=0.0),
            edge_ns=math.sqrt(sum(edges) / 12),
            at_least=windows[epoch][2],
        )
        for epoch, (read_ns, time_ns, edges) in sums.items()
    ]


class _Read(NamedTuple):
    """When the first and last of a rank's batches in an epoch were started and finished, since the epoch's start."""

    first_started: int
    last_started: int
    first_finished: int
    last_finished: int


def _window(ranks: list[_Read]) -> tuple[int, int, bool]:
    """Return begin and end of the time in which an epoch's supply is measured, and whether it is a lower bound."""
    begin, end = min(read.first_started for read in ranks), min(read.last_started for read in ranks)
    if at_once := all(read.first_finished > end for read in ranks):
        end = min(read.last_finished for read in ranks)
    return begin, end, at_once


def training_spans(own: StepTable) -> tuple[Ints, Ints]:
    """Return when each block of a rank's steps began and ended: between blocks are checkpoints and evaluations."""
    _, first, last = own.ends("free_ns", "wait_ns", "compute_ns", "sync_ns")
    return first[0], sum(last[1:], start=last[0])


def _overlaps(lows: Ints, highs: Ints, begin: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of the spans that are between `begin` and `end`."""
    pairs = zip(np.maximum(begin, lows).tolist(), np.minimum(end, highs).tolist(), strict=True)
    return [(low, high) for low, high in pairs if high > low]


class _Batches:
    """One rank's batches, each taken to be read at a constant rate from `started_ns` to `finished_ns`."""

    def __init__(self, own: StepTable) -> None:
        self._started, self._compute = own["started_ns"], own["compute_ns"]
        self._finished = np.maximum(own["finished_ns"], self._started + 1)
        self._latest = np.maximum.accumulate(self._finished)
        self._earliest = np.minimum.accumulate(self._started[::-1])[::-1]
        self._before = np.cumsum(self._compute)

    def _maybe_under_way(self, moment: int) -> slice:
        """Return a range of batches: those before it are complete at that moment, those after it not started."""
        over = int(np.searchsorted(self._latest, moment, side="right"))
        begun = int(np.searchsorted(self._earliest, moment))
        return slice(over, max(over, begun))

    def read_by(self, moment: int) -> float:
        """Return the computation time of the batches read until a moment; of a batch half read, half of it."""
        part = self._maybe_under_way(moment)
        took = self._finished[part] - self._started[part]
        shares = np.clip((moment - self._started[part]) / took, 0, 1)
        before = float(self._before[part.start - 1]) if part.start else 0.0
        return before + float((self._compute[part] * shares).sum())

    def under_way(self, moment: int) -> float:
        """Return the sum of the squared computation times of the batches that are being read at a moment."""
        part = self._maybe_under_way(moment)
        reading = (self._started[part] < moment) & (self._finished[part] > moment)
        return float((self._compute[part][reading].astype(float) ** 2).sum())


def sustained_au(rows: Rows, kept: Rows) -> Mean:
    """Return the sustained AU, of all rows and of each epoch: the smaller of supply and AU of the kept steps."""
    epochs = in_order(rows).by_epoch
    supplies = supplies_of(rows)
    whole = Supply(
        read_ns=sum(supply.read_ns for supply in supplies), time_ns=sum(supply.time_ns for supply in supplies)
    )
    kept = in_order(kept)
    mean = _smaller(whole.percent, au_percent(kept))
    kept_by_epoch = [kept.of("epoch", epoch.values("epoch")) for epoch in epochs]
    return Mean(
        mean=mean,
        per_epoch=tuple(
            _smaller(supply.percent, au_percent(part)) for supply, part in zip(supplies, kept_by_epoch, strict=True)
        ),
    )


def is_supply_known(rows: Rows) -> bool:
    """Return whether the sustained AU of these rows is a measured value, not only a lower bound."""
    return not any(supply.at_least for supply in supplies_of(rows))


def prefetch_credit_percent(rows: Rows, kept: Rows) -> float | None:
    """Return the % of the kept steps' batches, by computation time, that was read before a block's first kept step."""
    total = float(sum_of(kept, "compute_ns"))
    if not total:
        return None
    ahead = 0.0
    for block in in_order(kept).by_block:
        _, (begin,), _ = block.ends("free_ns")
        early = np.flatnonzero(block["started_ns"] < begin[0])
        if len(early):  # batches after the last of them were started later
            ahead += _Batches(block[: int(early[-1]) + 1]).read_by(int(begin[0]))
    return known(100.0 * ahead / total)


def _smaller(*percents: float) -> float | None:
    """Return the smallest of the percents that are not NaN, at most 100; None if all are."""
    numbers = [percent for percent in percents if not math.isnan(percent)]
    return min(100.0, *numbers) if numbers else None


COVERAGE = 2.0
"""k, the factor from the combined standard uncertainty to U."""
_CONFIDENCE = 0.9545
"""Confidence of an interval of +- 2 standard deviations of a normal distribution."""
_WINDOW_SECONDS, _WINDOW_STEPS = 1.0, 2
"""Least length of a window of time in which the AU is computed, and in steps: long compared with a step, and with the
time slices in which drives, caches and throttles work."""
_MIN_WINDOWS = 6
"""Number of windows into which a run of less than _MIN_WINDOWS x _WINDOW_SECONDS is divided."""
_MIN_VALUES = 3
"""Fewest values (windows or epochs) for an interval: with two, Student's t is 14, and the interval of no use."""
_CLOCK_NS = 1_000
"""Assumed error of a stamp: a system call and a thread switch come between the event and its stamp."""


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """Uncertainty of AU of a run."""

    expanded_percent: float
    """U (k = 2), in points: the true value is within +- U in about 95 of 100 runs."""
    budget: dict[str, float]
    """Source -> the standard uncertainty of AU that it causes, in points. The spread between windows of time is of type
    A (GUM), from measured values; the others are of type B, from knowledge of the method."""


def uncertainty_of(rows: Rows, kept: Rows) -> Uncertainty | None:
    """Return the uncertainty of the sustained AU of the same rows; None when too little was measured."""
    if not len(kept):
        return None
    rows, kept = in_order(rows), in_order(kept)
    supplies = supplies_of(rows)
    read_ns, time_ns = sum(supply.read_ns for supply in supplies), sum(supply.time_ns for supply in supplies)
    supply_percent = 100 * read_ns / time_ns if time_ns > 0 else math.inf
    by_supply = supply_percent < au_percent(kept)
    values = np.concatenate([*_windows(rows if by_supply else kept, by_supply=by_supply), np.empty(0)])
    if len(values) < _MIN_VALUES:
        epochs = [supply.percent for supply in supplies] if by_supply else map(au_percent, kept.by_epoch)
        values = np.array(list(epochs))
    if len(values) < _MIN_VALUES:
        return None
    spread = estimate(np.minimum(values, 100.0) if not by_supply else values, _CONFIDENCE).half_width_percent / COVERAGE
    edge = math.sqrt(sum(supply.edge_ns**2 for supply in supplies)) if by_supply else 0.0
    all_ns = time_ns if by_supply else total_ns(kept)
    budget = {
        "spread between windows of time": spread,
        "batches half read where an epoch's window ends": 100 * edge / max(all_ns, 1.0),
        "clock and stamps": 100 * _CLOCK_NS * math.sqrt(len(rows)) / max(all_ns, 1.0),
    }
    combined = math.sqrt(sum(percent**2 for percent in budget.values()))
    return Uncertainty(expanded_percent=COVERAGE * combined, budget=budget)


def _windows(rows: StepTable, *, by_supply: bool) -> Iterator[Values]:
    """Yield for each epoch the supply of each window of time, or its AU if not `by_supply`, in percent."""
    ranks = max(1, len(rows.by_rank))
    extents: dict[int, list[_Extent]] = {epoch: [] for epoch in rows.values("epoch")}
    for own in rows.by_rank_and_epoch:
        begins, ends = _moments(own, by_supply=by_supply)
        first, last, end = _trained(own, np.array([begins.min(), begins.max(), ends.max()])).tolist()
        extents[own.values("epoch")[0]].append(_Extent(first, last, max(end, last + 1.0)))
    spans = {epoch: _span(parts, by_supply=by_supply) for epoch, parts in extents.items()}
    step_ns = sum_of(rows, "compute_ns") / max(1, len(rows))
    window_ns = min(_WINDOW_SECONDS * 1e9, sum(high - low for low, high in spans.values()) / _MIN_WINDOWS)
    window_ns = max(window_ns, _WINDOW_STEPS * step_ns)
    rates: dict[int, list[Floats]] = {epoch: [] for epoch in spans}
    for own in rows.by_rank_and_epoch:
        (epoch,) = own.values("epoch")
        low, high = spans[epoch]
        windows = int((high - low + 1.0) / window_ns)
        if windows:
            edges = np.linspace(low, high, windows + 1)  # a little longer: else the end of each epoch would be left out
            rates[epoch].append(_rates(own, edges, by_supply=by_supply))
    yield from (100 * np.sum(parts, axis=0) / ranks for parts in rates.values() if parts)


def _span(parts: Sequence[_Extent], *, by_supply: bool) -> tuple[float, float]:
    """Return begin and end of the time to divide into windows, in ns of training since the epoch's start."""
    if by_supply:
        return min(part.first_begin for part in parts), min(part.last_begin for part in parts)
    return 0.0, max(part.end for part in parts)


class _Extent(NamedTuple):
    """When a rank's batches in an epoch were read, or computed, in ns of training since the epoch's start."""

    first_begin: float
    last_begin: float
    end: float


def _rates(own: StepTable, edges: Floats, *, by_supply: bool) -> Floats:
    """Return a rank's computation time read, or computed, in training time, per ns between each two edges."""
    begins, ends = _moments(own, by_supply=by_supply)
    begun, ended = _trained(own, begins), _trained(own, ends)
    amounts = own["compute_ns"] * (ended - begun) / (ends - begins)
    return Intervals(begun, np.maximum(ended, begun + 1.0), edges).rates(amounts)


def _moments(own: StepTable, *, by_supply: bool) -> tuple[Ints, Ints]:
    """Return when the reading of each batch of one rank, or its computation, began and ended."""
    if by_supply:
        begins, ends = own["started_ns"], own["finished_ns"]
    else:
        begins = own["free_ns"] + own["wait_ns"]
        ends = begins + own["compute_ns"]
    return begins, np.maximum(ends, begins + 1)


def _trained(own: StepTable, moments: Ints) -> Floats:
    """Return the moments on the clock of the training time of one rank's epoch, which stops between blocks of steps."""
    lows, highs = training_spans(own)
    start = lows.min()
    real = np.stack([lows, highs], axis=1).ravel()
    trained = np.cumsum(np.stack([np.zeros(len(lows)), highs - lows], axis=1).ravel())
    return np.asarray(np.interp(moments - start, real - start, trained))

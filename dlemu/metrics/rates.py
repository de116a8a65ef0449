"""Metrics of a run and of its epochs, from step rows; and rates over time, from amounts in time intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datagen.quantiles import Percentiles
from dlemu.metrics.rows import Ints, Rows, StepTable, as_table, step_end_ns

Floats = NDArray[np.float64]
Moments = Floats | Ints


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A metric of the whole run, and of each epoch; None if there is no such number."""

    mean: float | None
    per_epoch: tuple[float | None, ...] = ()
    """In order. A last epoch that was stopped before a step of it counted has no value in figures of counted steps."""


def pooled(rows: Rows, measure: Callable[[StepTable], float]) -> Mean:
    """Return a measure of all rows together, in which longer epochs weigh more, and of each epoch; NaN becomes None."""
    table = as_table(rows)
    return Mean(mean=known(measure(table)), per_epoch=tuple(known(measure(epoch)) for epoch in table.by_epoch))


def over_epochs(per_epoch: Sequence[float]) -> Mean:
    """Return values per epoch and their unweighted mean, which DLIO reports."""
    return Mean(mean=known(float(np.mean(per_epoch))), per_epoch=tuple(map(known, per_epoch)))


def known(value: float) -> float | None:
    """Return the value, or None for NaN and infinity."""
    return float(value) if math.isfinite(value) else None


def training_ns(rows: Rows) -> int:
    """Return the training time, ns: the sum of the durations of all blocks, of the rank with the longest sum."""
    first, last = as_table(rows).block_ends
    return int(np.bincount(first["rank"], step_end_ns(last) - first["free_ns"]).max()) if len(first) else 0


def per_second(amount: float, rows: Rows) -> float:
    """Return `amount` per second of training time; NaN for no training time."""
    elapsed_ns = training_ns(rows)
    return amount * 1e9 / elapsed_ns if elapsed_ns else math.nan


def first_batch_seconds(rows: Rows) -> Mean:
    """Return the longest wait of any rank for the first batch of each epoch, s."""
    firsts = [epoch[epoch["step"] == epoch["step"].min()] for epoch in as_table(rows).by_epoch]
    return over_epochs([float(first["wait_ns"].max() / 1e9) for first in firsts])


def percentiles_ms(values_ns: Ints) -> Percentiles | None:
    """Return the percentiles, in ms, of durations in ns; None for no durations."""
    if not len(values_ns):
        return None
    p50, p90, p99, maximum = (np.percentile(values_ns, (50, 90, 99, 100)) / 1e6).tolist()
    return Percentiles(p50=p50, p90=p90, p99=p99, max=maximum)


class Intervals:
    """Spreads amounts evenly over time intervals, and adds them up between moments, the `edges`.

    Example: 100 bytes read from 0 to 4 s, edges at 1, 2 and 5 s. `cumulative` is 25, 50, 100; `rates` are 25 and 16.7.
    """

    def __init__(self, starts: Moments, ends: Moments, edges: Moments) -> None:
        """Take intervals (`ends` > `starts`) and ascending `edges`, in the same unit of time."""
        self._edges, self._starts, self._lengths = edges, starts, ends - starts
        self._first_inside, self._first_after = np.searchsorted(edges, starts), np.searchsorted(edges, ends)

    def cumulative(self, amounts: Floats) -> Floats:
        """Return the total of `amounts` (one per interval) before each edge."""
        count, inside, after = len(self._edges) + 1, self._first_inside, self._first_after
        # At an edge inside it, an interval has contributed rate x (edge - start): add up the rates, and rate x start.
        rates = np.where(inside < after, amounts / self._lengths, 0.0)
        slopes, shifts = (
            np.bincount(inside, values, count) - np.bincount(after, values, count)
            for values in (rates, rates * (self._starts - self._edges[0]))
        )
        sums = np.cumsum([np.bincount(after, amounts, count), slopes, shifts], axis=1)
        ended, slopes, shifts = sums[:, :-1]
        return np.asarray(ended + np.maximum(slopes * (self._edges - self._edges[0]) - shifts, 0.0))

    def rates(self, amounts: Floats) -> Floats:
        """Return the amount per unit of time between neighbouring edges, shape (edges - 1,)."""
        return np.asarray(np.diff(self.cumulative(amounts)) / np.diff(self._edges))


def under_way(begins: Floats, ends: Floats) -> tuple[Floats, Ints, Floats]:
    """Return the begins and ends of intervals, sorted; between neighbours, the number under way, and the time.

    Example: intervals 0 to 3 and 1 to 2 have begins and ends 0, 1, 2, 3; numbers under way 1, 2, 1; times 1, 1, 1.
    """
    moments = np.concatenate([begins, ends])
    order = np.argsort(moments, kind="stable")
    changes = np.repeat([1, -1], [len(begins), len(ends)])[order]
    edges = moments[order]
    return edges, np.cumsum(changes)[:-1], np.diff(edges)


def during(begins: Moments, ends: Moments, edges: Moments, amounts: Floats) -> Floats:
    """Return each interval's total of `amounts`; each amount is spread evenly between two neighbouring `edges`."""
    total = np.concatenate([[0.0], np.cumsum(amounts)])
    return np.asarray(np.interp(ends, edges, total) - np.interp(begins, edges, total))


def time_within(begins: Ints, ends: Ints, moments: Moments) -> Floats:
    """Return how much time of ascending spans lies before each moment, as on a clock that stops between the spans."""
    edges = np.maximum.accumulate(np.stack([begins, ends], axis=1).ravel() - begins[0])
    clock = np.cumsum(np.stack([np.zeros_like(begins), ends - begins], axis=1).ravel())
    return np.asarray(np.interp(moments - begins[0], edges, clock))


Window = tuple[int, int]
"""Begin and end, ns by the clock of the readings."""
Windows = Sequence[Window] | NDArray[np.int64]  # an array of shape (windows, 2)


def mean_within(time_ns: NDArray[np.int64], value: NDArray[np.float64], windows: Windows) -> float:
    """Return the mean of a rate over the parts of the windows that the readings cover; NaN if they cover none."""
    if len(time_ns) < 2 or not len(windows):
        return math.nan
    begins, ends = np.clip(np.asarray(windows, np.int64), time_ns[0], time_ns[-1]).T
    covered_ns = float((ends - begins).sum())
    amounts = during(begins, ends, time_ns, value[1:] * np.diff(time_ns))
    return float(amounts.sum()) / covered_ns if covered_ns > 0 else math.nan

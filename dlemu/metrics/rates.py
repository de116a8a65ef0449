"""Metrics of a run and of its epochs, from step rows, and rates over time, from amounts in time intervals.

A block is the steps between two checkpoints or evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datagen.quantiles import Percentiles
from dlemu.metrics.rows import Ints, Rows, StepTable, in_order

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A metric of the whole run, and of each epoch; None if there is no such number."""

    mean: float | None
    per_epoch: tuple[float | None, ...] = ()
    """In order. A last epoch that was stopped before a step of it counted has no value in figures of counted steps."""


Measure = Callable[[StepTable], float]
"""Computes a metric from some steps; NaN if there is none."""


def pooled(rows: Rows, measure: Measure) -> Mean:
    """Return the measure of all rows together (so longer epochs weigh more), and per epoch."""
    table = in_order(rows)
    return Mean(mean=known(measure(table)), per_epoch=all_known(map(measure, table.by_epoch)))


def over_epochs(per_epoch: Sequence[float]) -> Mean:
    """Return values per epoch with their unweighted mean, as DLIO reports it."""
    return Mean(mean=known(float(np.mean(per_epoch))), per_epoch=all_known(per_epoch))


def averaged(rows: Rows, measure: Measure) -> Mean:
    """Return the measure per epoch, and its unweighted mean."""
    return over_epochs(list(map(measure, in_order(rows).by_epoch)))


def known(value: float) -> float | None:
    """Return the value, or None for NaN and infinity: then there is no such number."""
    return float(value) if math.isfinite(value) else None


def all_known(values: Iterable[float]) -> tuple[float | None, ...]:
    """Return the values, with None for NaN and infinity."""
    return tuple(known(value) for value in values)


def training_ns(rows: Rows) -> int:
    """Return the training time: the sum of all blocks from start to end of the last step, the longest of any rank."""
    ranks, first, last = in_order(rows).ends("free_ns", "wait_ns", "compute_ns", "sync_ns")
    if not len(ranks):
        return 0
    block_ns = sum(last[1:], start=last[0]) - first[0]
    begins = np.flatnonzero(np.append(True, ranks[1:] != ranks[:-1]))
    return int(np.add.reduceat(block_ns, begins).max())


def per_second(amount: float, rows: Rows) -> float:
    """Return `amount` per second of training time; NaN if that is 0."""
    elapsed_ns = training_ns(rows)
    return amount * 1e9 / elapsed_ns if elapsed_ns else math.nan


def first_batch_seconds(rows: Rows) -> float:
    """Return how long the slowest rank waited for the first batch of the epoch."""
    _, (step, wait_ns), _ = in_order(rows).ends("step", "wait_ns")
    return float(wait_ns[step == step.min()].max() / 1e9)


def percentiles_ms(values_ns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Percentiles | None:
    """Return the percentiles, in ms, of durations in ns; None for no durations."""
    if not len(values_ns):
        return None
    p50, p90, p99, maximum = (np.percentile(values_ns, (50, 90, 99, 100)) / 1e6).tolist()
    return Percentiles(p50=p50, p90=p90, p99=p99, max=maximum)


class Intervals:
    """Spreads an amount per time interval evenly over it, on a grid of moments, `edges`.

    100 bytes read from 0 to 4 s, on edges at 1, 2 and 5 s: `cumulative` is 25, 50 and 100, `rates` are 25 and 16.7.
    """

    def __init__(self, starts: Floats, ends: Floats, edges: Floats) -> None:
        """Take intervals (`ends` > `starts`) and `edges`, which ascend."""
        self._edges = edges
        edge_after_start, self._edge_after_end = np.searchsorted(edges, starts), np.searchsorted(edges, ends)
        self._crossing = np.flatnonzero(self._edge_after_end > edge_after_start)
        """Indices of intervals with edges inside: edges `_first_inside` up to, not including, `_first_after`."""
        self._first_inside, self._first_after = edge_after_start[self._crossing], self._edge_after_end[self._crossing]
        self._starts = starts[self._crossing]
        self._lengths = ends[self._crossing] - self._starts

    def cumulative(self, amounts: Floats) -> Floats:
        """Return for each edge the part of `amounts` (one per interval) that lies before it."""
        count = len(self._edges)
        total: Floats = np.cumsum(np.bincount(self._edge_after_end, amounts, count + 1)[:count]).astype(np.float64)
        if not len(self._crossing):
            return total
        rates = amounts[self._crossing] / self._lengths
        # An interval adds rate x (edge - start) to an edge inside it: sum up the rates and the products rate x start.
        origin = float(self._starts.min())
        slopes, shifts = (
            np.cumsum(
                np.bincount(self._first_inside, values, count + 1) - np.bincount(self._first_after, values, count + 1)
            )[:count]
            for values in (rates, rates * (self._starts - origin))
        )
        total += np.maximum(slopes * (self._edges - origin) - shifts, 0.0)
        return total

    def rates(self, amounts: Floats) -> Floats:
        """Return the amount per unit of time between each two neighbouring edges."""
        rates: Floats = np.diff(self.cumulative(amounts)) / np.diff(self._edges)
        return rates


def under_way(begins: Floats, ends: Floats) -> tuple[Floats, Ints, Floats]:
    """Return the moments at which an interval began or ended; between each two, how many were under way, and how long.

    Intervals 0 to 3 and 1 to 2: moments 0, 1, 2, 3; 1, 2 and 1 were under way, for 1 each.
    """
    moments = np.concatenate([begins, ends])
    order = np.argsort(moments, kind="stable")
    changes = np.concatenate([np.ones(len(begins), int), -np.ones(len(ends), int)])[order]
    edges = moments[order]
    return edges, np.cumsum(changes)[:-1], np.diff(edges)


def during(begins: Floats, ends: Floats, edges: Floats, amounts: Floats) -> Floats:
    """Return for each interval the sum of `amounts` in it; each amount is spread between two neighbouring `edges`."""
    total = np.concatenate([[0.0], np.cumsum(amounts)])
    return np.asarray(np.interp(ends, edges, total) - np.interp(begins, edges, total))


Window = tuple[int, int]
"""Begin and end, in nanoseconds of the readings' clock."""
Windows = Sequence[Window] | NDArray[np.int64]
"""Several windows; an array of shape (windows, 2) when there are very many."""


def mean_within(time_ns: NDArray[np.int64], value: NDArray[np.float64], windows: Windows) -> float:
    """Return the mean of a rate over the windows, as far as there are readings in them; NaN if there are none."""
    if len(time_ns) < 2 or not len(windows):
        return math.nan
    integral = np.concatenate([[0.0], np.cumsum(value[1:] * np.diff(time_ns))])
    begins, ends = np.clip(np.asarray(windows, np.int64), time_ns[0], time_ns[-1]).T
    covered_ns = float((ends - begins).sum())
    amounts = np.interp(ends, time_ns, integral) - np.interp(begins, time_ns, integral)
    return float(amounts.sum()) / covered_ns if covered_ns > 0 else math.nan

"""Turns amounts over time intervals (as a read's bytes) into a rate over time, and recorded rates into means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Intervals:
    """Spreads an amount per time interval evenly over it, on a grid of moments, `edges`.

    An interval is divided at edges, so results of several sets of intervals may be summed.
    """

    def __init__(self, starts: Floats, ends: Floats, edges: Floats) -> None:
        """Take intervals (`ends` > `starts`) and `edges`, which ascend."""
        self._edges = edges
        edge_after_start, self._edge_after_end = np.searchsorted(edges, starts), np.searchsorted(edges, ends)
        self._crossing = np.flatnonzero(self._edge_after_end > edge_after_start)
        """Intervals with edges inside: those from `_first_inside` up to, not including, `_first_after`."""
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


def mean_rates(starts: Floats, ends: Floats, amounts: Floats, edges: Floats) -> Floats:
    """Return the amount per unit of time between each two neighbouring `edges`; see `Intervals`."""
    return Intervals(starts, ends, edges).rates(amounts)


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

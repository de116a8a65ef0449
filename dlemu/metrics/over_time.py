"""Rates over time: of intervals with an amount each (reads with their bytes), and the means of recorded rates.

A recorded rate is stored with the end of the interval it is for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Intervals:
    """Intervals of time, cut at the moments `edges`, for amounts that are spread evenly over their intervals.

    The amount of an interval that contains an edge is divided there, so nothing is counted twice. Results are additive:
    those of several sets of intervals with the same edges may be summed.
    """

    def __init__(self, starts: Floats, ends: Floats, edges: Floats) -> None:
        """Take intervals (`ends` > `starts`) and `edges` in rising order."""
        self._edges = edges
        first, behind = np.searchsorted(edges, starts), np.searchsorted(edges, ends)
        self._behind = behind
        self._under_way = np.flatnonzero(behind > first)
        """Intervals that contain an edge, from the edge `first` up to the one before `behind`."""
        self._first, self._last = first[self._under_way], behind[self._under_way]
        self._starts = starts[self._under_way]
        self._lengths = ends[self._under_way] - self._starts

    def passed(self, amounts: Floats) -> Floats:
        """Return how much of the amounts lies before each edge."""
        count = len(self._edges)
        over: Floats = np.cumsum(np.bincount(self._behind, amounts, count + 1)[:count]).astype(np.float64)
        if not len(self._under_way):
            return over
        rates = amounts[self._under_way] / self._lengths
        # An interval that contains an edge has passed rate x (edge - start) by then: sum rate and rate x start.
        origin = float(self._starts.min())
        slopes, shifts = (
            np.cumsum(np.bincount(self._first, values, count + 1) - np.bincount(self._last, values, count + 1))[:count]
            for values in (rates, rates * (self._starts - origin))
        )
        over += np.maximum(slopes * (self._edges - origin) - shifts, 0.0)
        return over

    def rates(self, amounts: Floats) -> Floats:
        """Return the amount per unit of time between each two neighbouring edges."""
        rates: Floats = np.diff(self.passed(amounts)) / np.diff(self._edges)
        return rates


def mean_rates(starts: Floats, ends: Floats, amounts: Floats, edges: Floats) -> Floats:
    """Return the amount per unit of time between each two neighbouring `edges`.

    Each amount is spread evenly over its own interval (`ends` > `starts`) and divided at the edges within it: over all
    time the rates add up to the amounts.
    """
    return Intervals(starts, ends, edges).rates(amounts)


Window = tuple[int, int]
"""Begin and end, in nanoseconds of the readings' clock."""
Windows = Sequence[Window] | NDArray[np.int64]
"""Several windows; an array of shape (windows, 2) when there are very many."""


def mean_within(time_ns: NDArray[np.int64], value: NDArray[np.float64], windows: Windows) -> float:
    """Return the mean of a rate over the parts of the windows that have readings; NaN when there are none."""
    if len(time_ns) < 2 or not len(windows):
        return math.nan
    total = np.concatenate([[0.0], np.cumsum(value[1:] * np.diff(time_ns))])
    ends = np.clip(np.asarray(windows, np.int64), time_ns[0], time_ns[-1])
    covered = float((ends[:, 1] - ends[:, 0]).sum())
    grown = np.interp(ends[:, 1], time_ns, total) - np.interp(ends[:, 0], time_ns, total)
    return float(grown.sum()) / covered if covered > 0 else math.nan

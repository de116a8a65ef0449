"""Turns intervals with an amount each (reads with their bytes) into a rate over time."""

from __future__ import annotations

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

"""From intervals with an amount each to a rate over time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Intervals:
    """Some intervals of time beside some moments, for amounts that are spread evenly over them.

    What was under way at a moment is shared, so nothing is counted twice. Amounts of other intervals may be added up:
    what `passed` and `rates` return is the sum of what each interval alone would give.
    """

    def __init__(self, starts: Floats, ends: Floats, edges: Floats) -> None:
        """Of intervals (`ends` > `starts`) and moments in rising order."""
        self._edges = edges
        first, behind = np.searchsorted(edges, starts), np.searchsorted(edges, ends)
        self._behind = behind
        self._under_way = np.flatnonzero(behind > first)
        """Those that are under way at some moment, from the edge `first` up to the one before `behind`."""
        self._first, self._last = first[self._under_way], behind[self._under_way]
        self._starts = starts[self._under_way]
        self._lengths = ends[self._under_way] - self._starts

    def passed(self, amounts: Floats) -> Floats:
        """Return how much of the amounts lies before each moment."""
        count = len(self._edges)
        over: Floats = np.cumsum(np.bincount(self._behind, amounts, count + 1)[:count]).astype(np.float64)
        if not len(self._under_way):
            return over
        rates = amounts[self._under_way] / self._lengths
        # What is under way at an edge has given rate x (edge - start) by then: the sums of rate and of rate x start.
        origin = float(self._starts.min())
        slopes, shifts = (
            np.cumsum(np.bincount(self._first, values, count + 1) - np.bincount(self._last, values, count + 1))[:count]
            for values in (rates, rates * (self._starts - origin))
        )
        over += np.maximum(slopes * (self._edges - origin) - shifts, 0.0)
        return over

    def rates(self, amounts: Floats) -> Floats:
        """Return the amount per unit of time between each two neighbouring moments."""
        rates: Floats = np.diff(self.passed(amounts)) / np.diff(self._edges)
        return rates


def mean_rates(starts: Floats, ends: Floats, amounts: Floats, edges: Floats) -> Floats:
    """Return the amount per unit of time between each two neighbouring `edges`.

    Each amount is spread evenly over its own interval (`ends` > `starts`), so what was under way at an edge is shared
    and nothing is counted twice: summed over all time the rates give the amounts.
    """
    return Intervals(starts, ends, edges).rates(amounts)

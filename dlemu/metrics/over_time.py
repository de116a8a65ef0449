"""From intervals with an amount each to a rate over time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def mean_rates(starts: Floats, ends: Floats, amounts: Floats, edges: Floats) -> Floats:
    """Return the amount per unit of time between each two neighbouring `edges`.

    Each amount is spread evenly over its own interval (`ends` > `starts`), so what was under way at an edge is shared
    and nothing is counted twice: summed over all time the rates give the amounts.
    """
    rates = amounts / (ends - starts)
    times = np.concatenate([starts, ends])
    order = np.argsort(times, kind="stable")
    times = times[order]
    slopes = np.cumsum(np.concatenate([rates, -rates])[order])
    totals = np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(times))])
    passed: Floats = np.interp(edges, times, totals, left=0.0, right=float(amounts.sum()))
    return np.diff(passed) / np.diff(edges)

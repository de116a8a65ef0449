"""Means of recorded rates over windows of time. Each rate has the time at which the interval that it is for ended."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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

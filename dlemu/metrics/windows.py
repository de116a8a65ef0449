"""Means of recorded rates over stretches of time. A rate is stored with the end of the interval it is for."""

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
    """Return the mean of a rate over the parts of the windows that have readings; NaN when there are none."""
    if len(time_ns) < 2 or not len(windows):
        return math.nan
    total = np.concatenate([[0.0], np.cumsum(value[1:] * np.diff(time_ns))])
    ends = np.clip(np.asarray(windows, np.int64), time_ns[0], time_ns[-1])
    covered = float((ends[:, 1] - ends[:, 0]).sum())
    grown = np.interp(ends[:, 1], time_ns, total) - np.interp(ends[:, 0], time_ns, total)
    return float(grown.sum()) / covered if covered > 0 else math.nan

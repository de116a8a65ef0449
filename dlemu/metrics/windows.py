"""Means of recorded rates over stretches of time. A rate stands at the end of its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Window = tuple[int, int]
"""Begin and end, in nanoseconds of the readings' clock."""
Windows = Sequence[Window] | NDArray[np.int64]
"""Some of them; as an array of shape (windows, 2) where there are very many."""


def mean_within(time_ns: NDArray[np.int64], value: NDArray[np.float64], windows: Windows) -> float:
    """Return the mean of a rate over the windows, as far as there were readings; NaN when there were none."""
    if len(time_ns) < 2 or not len(windows):
        return math.nan
    total = np.concatenate([[0.0], np.cumsum(value[1:] * np.diff(time_ns))])
    ends = np.clip(np.asarray(windows, np.int64), time_ns[0], time_ns[-1])
    covered = float((ends[:, 1] - ends[:, 0]).sum())
    grown = np.interp(ends[:, 1], time_ns, total) - np.interp(ends[:, 0], time_ns, total)
    return float(grown.sum()) / covered if covered > 0 else math.nan

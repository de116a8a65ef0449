"""Whether a drive's write speed has become steady: a fresh SSD is faster than a used one, until it has to erase.

The criterion is from SNIA's Solid State Storage Performance Test Specification (PTS) 2.0.2: in the last five rounds
the largest and the smallest rate differ by at most 20 % of the mean, and the ends of a fitted line by 10 %.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

WINDOW = 5
"""The number of last rounds that must be steady."""
MOST_ROUNDS = 25
"""Rounds after which the same specification stops waiting for a steady state."""
_RANGE, _SLOPE = 0.20, 0.10


def is_steady(rates: Sequence[float]) -> bool | None:
    """Return whether the last rounds' rates were steady; None for fewer than `WINDOW` rounds."""
    last = np.asarray(rates[-WINDOW:], float)
    if len(last) < WINDOW:
        return None
    mean = float(last.mean())
    slope = float(np.polyfit(np.arange(WINDOW), last, 1)[0])
    return float(np.ptp(last)) <= _RANGE * mean and abs(slope) * (WINDOW - 1) <= _SLOPE * mean

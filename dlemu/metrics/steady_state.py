"""Whether a drive writes as fast as it will go on to: a fresh SSD is faster than a used one, until it has to erase.

The criterion is that of SNIA's Solid State Storage Performance Test Specification (PTS) 2.0.2: of the last five
rounds the largest and the smallest differ by at most 20 % of the mean, and a straight line through them by 10 %.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

WINDOW = 5
"""Rounds that are looked at."""
MOST_ROUNDS = 25
"""After which the same specification gives up."""
_RANGE, _SLOPE = 0.20, 0.10


def is_steady(rates: Sequence[float]) -> bool | None:
    """Say whether the last rounds' rates were steady; None of fewer than `WINDOW`."""
    last = np.asarray(rates[-WINDOW:], float)
    if len(last) < WINDOW:
        return None
    mean = float(last.mean())
    slope = float(np.polyfit(np.arange(WINDOW), last, 1)[0])
    return float(np.ptp(last)) <= _RANGE * mean and abs(slope) * (WINDOW - 1) <= _SLOPE * mean

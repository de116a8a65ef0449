"""Random latencies of the latency model, in multiples of its nominal latency; the model itself needs mfusepy."""

from __future__ import annotations

import random

INDEX, CUT, SIGMA = 1.5, 25.0, 1.2
MEANS = {"steady": 1.0, "uniform": 1.0, "lognormal": 1.0, "pareto": 1 - 2 / (3 * CUT) ** 0.5 / 3}
"""Means of the draws. The last is the mean of min(X, 75) / 3, with P(X > x) = x**-1.5 from 1 on."""
SLOW_TIMES = 6.0
"""Latency of files in the slow folder, relative to others."""


def draw(jitter: str) -> float:
    """Return the random latency of a read, in multiples of the nominal latency."""
    if jitter == "lognormal":
        return random.lognormvariate(-(SIGMA**2) / 2, SIGMA)
    if jitter == "pareto":
        return min(random.paretovariate(INDEX) / 3, CUT)
    return random.uniform(0, 2) if jitter == "uniform" else 1.0

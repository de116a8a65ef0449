"""Confidence intervals of the mean of few values, a sequential test against a threshold, and a test for a steady state.

The intervals allow for correlated neighbours, the sequential test for repeated tests (docs/sizing.md, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

FEWEST = 8
"""Values that a useful interval needs. Schmeiser, "Batch size effects in the analysis of simulation output", Operations
Research 30 (1982), finds little gain beyond 10 to 30 windows, and poor intervals with very few."""
MAX_CORRELATION = 0.9  # limits (1 + r) / (1 - r), which is infinite for r = 1, to 19
TEST_SPACING = 1.25  # next test at 1.25 x the values: rarer tests decide later, more frequent ones widen intervals

Values = NDArray[np.float64]
"""One value per window, in percent of the window's time."""


def quantile(share: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution at `share` (0 to 1); infinite without degrees of freedom.

    For 1 and 2 degrees, it is exact. For more, it is 26.7.5 of Abramowitz and Stegun, Handbook of Mathematical
    Functions (1964), whose error is at most 2 % for 3 degrees and shares up to 0.995, and 0.3 % from 5 degrees on.
    """
    if degrees < 1:
        return math.inf
    if degrees == 1:
        return math.tan(math.pi * (share - 0.5))
    if degrees == 2:
        return (2 * share - 1) / math.sqrt(2 * share * (1 - share))
    z = NormalDist().inv_cdf(share)
    # Odd polynomials: the coefficients of z^3 and z, of z^5, z^3 and z, and so on, and their common divisor
    terms = ((1, 1), 4), ((5, 16, 3), 96), ((3, 19, 17, -15), 384), ((79, 776, 1482, -1920, -945), 92160)
    polynomials = [z * np.polyval(odd, z * z) / divisor for odd, divisor in terms]
    return float(z + sum(term / degrees**power for power, term in enumerate(polynomials, start=1)))


def half_width(std: float, count: int, confidence: float) -> float:
    """Return half the width of the two-sided t-interval of a mean of `count` independent values."""
    if count < 2:
        return math.inf
    return quantile((1 + confidence) / 2, count - 1) * std / math.sqrt(count)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean AU and the half width of its confidence interval (infinite with too few values), in percent."""

    au_percent: float
    half_width_percent: float

    def decides(self, threshold_percent: float) -> bool:
        """Return whether the threshold lies outside the interval."""
        return abs(self.au_percent - threshold_percent) > self.half_width_percent


def estimate(values: Values, confidence: float) -> Estimate:
    """Return the mean and the half width of its interval at a two-sided confidence (0 to 1).

    If neighbouring values have a positive correlation r, the variance is multiplied by (1 + r) / (1 - r) (von Storch
    and Zwiers, Statistical Analysis in Climate Research, 1999, section 6.6.8).
    """
    if len(values) < 2:
        return Estimate(au_percent=float(values[0]) if len(values) else math.nan, half_width_percent=math.inf)
    deviations = values - values.mean()
    total = float(deviations @ deviations)
    correlation = float(deviations[1:] @ deviations[:-1]) / total if total > 0 else 0.0
    correlation = min(max(correlation, 0.0), MAX_CORRELATION)
    spread = float(np.std(values, ddof=1)) * math.sqrt((1 + correlation) / (1 - correlation))
    return Estimate(au_percent=float(values.mean()), half_width_percent=half_width(spread, len(values), confidence))


class SequentialTest:
    """Tests repeatedly, while values are added, whether their mean is certainly on one side of a threshold.

    The i-th test may be wrong with the probability (1 - confidence) / (i (i + 1)). All tests together are wrong with at
    most 1 - confidence (union bound), because the shares 1 / (i (i + 1)) add up to 1.
    """

    def __init__(self, threshold_percent: float, confidence: float) -> None:
        self._threshold_percent, self._error = threshold_percent, 1 - confidence
        self._tests_done = 0
        self._next_test_at = FEWEST  # number of values

    def __call__(self, values: Values) -> bool:
        """Test the values if enough were added since the last test; return whether the verdict is decided."""
        if len(values) < self._next_test_at:
            return False
        self._tests_done += 1
        self._next_test_at = math.ceil(len(values) * TEST_SPACING)
        error = self._error / (self._tests_done * (self._tests_done + 1))
        return estimate(values, 1 - error).decides(self._threshold_percent)


def percent_interval(percent: float, half_width: float) -> tuple[float, float]:
    """Return the ends of `percent` +- `half_width`, clipped to 0-100 %; a percentage above 100 has no upper limit."""
    high = percent + half_width
    return max(0.0, percent - half_width), high if percent > 100 else min(100.0, high)


# The criteria of SNIA's Solid State Storage Performance Test Specification (PTS) 2.0.2
WINDOW = 5  # rounds in the measurement window, which ends with the last round
MAX_ROUNDS = 25  # without a steady state, the measurement ends after so many rounds
_MAX_RANGE = 0.20  # difference between the highest and the lowest rate in the window / mean rate
_MAX_SLOPE = 0.10  # rise or fall, within the window, of the line fitted to the rates / mean rate


def is_steady(rates: Sequence[float]) -> bool | None:
    """Return whether the rates of the last `WINDOW` rounds were steady; None for fewer rounds.

    Writing to a fresh SSD, for example, is not steady: it is fast until the SSD has to erase blocks.
    """
    window = np.asarray(rates[-WINDOW:], float)
    if len(window) < WINDOW:
        return None
    mean = float(window.mean())
    slope = float(np.polyfit(np.arange(WINDOW), window, 1)[0])
    return float(np.ptp(window)) <= _MAX_RANGE * mean and abs(slope) * (WINDOW - 1) <= _MAX_SLOPE * mean

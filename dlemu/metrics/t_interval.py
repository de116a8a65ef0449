"""Confidence intervals of the mean of few values, a sequential test against a threshold, and a test for a steady state.

Intervals are corrected for correlated neighbours, and for repeated tests of a growing series (docs/sizing.md, section
3). A drive's write speed is steady (a fresh SSD is faster than a used one, until it has to erase) by the criterion of
SNIA's Solid State Storage Performance Test Specification (PTS) 2.0.2: in the last five rounds the largest and the
smallest rate differ by at most 20 % of the mean, and the ends of a fitted line by 10 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

FEWEST = 8
"""Windows before the first test. Schmeiser, "Batch size effects in the analysis of simulation output", Operations
Research 30 (1982), finds little gain beyond 10 to 30 windows, and poor intervals with very few."""
GROWTH = 1.25  # tests at 1.25 x the windows of the previous test: fewer end a trial later, more widen each interval
MOST_CORRELATION = 0.9  # (1 + r) / (1 - r) is 19 here, infinite at 1

Values = NDArray[np.float64]
"""One value per window, in percent of the window's time."""


def quantile(share: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution at `share`; infinite without degrees of freedom.

    Closed forms for 1 and 2 degrees; above, 26.7.5 of Abramowitz and Stegun, Handbook of Mathematical Functions (1964):
    within 2 % for 3 degrees at shares up to 0.995, within 0.3 % from 5 on.
    """
    if degrees < 1:
        return math.inf
    if degrees == 1:
        return math.tan(math.pi * (share - 0.5))
    if degrees == 2:
        return (2 * share - 1) / math.sqrt(2 * share * (1 - share))
    z = NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / degrees**power for power, term in enumerate(terms, start=1)))


def half_width(std: float, count: int, confidence: float) -> float:
    """Return half the width of the two-sided t-interval of a mean of `count` independent values."""
    if count < 2:
        return math.inf
    return quantile((1 + confidence) / 2, count - 1) * std / math.sqrt(count)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean AU and the half width of its interval, in percent; the latter is infinite with too few values."""

    au_percent: float
    half_width_percent: float

    def decides(self, threshold_percent: float) -> bool:
        """Return whether the threshold lies outside the interval."""
        return abs(self.au_percent - threshold_percent) > self.half_width_percent


def estimate(values: Values, confidence: float) -> Estimate:
    """Return mean and half width at a two-sided confidence (0 to 1).

    The variance is multiplied by (1 + r) / (1 - r), with the lag-1 correlation r, if positive (von Storch and Zwiers,
    Statistical Analysis in Climate Research, 1999, section 6.6.8).
    """
    if len(values) < 2:
        return Estimate(au_percent=float(values[0]) if len(values) else math.nan, half_width_percent=math.inf)
    deviations = values - values.mean()
    total = float(deviations @ deviations)
    correlation = float(deviations[1:] @ deviations[:-1]) / total if total > 0 else 0.0
    correlation = min(max(correlation, 0.0), MOST_CORRELATION)
    spread = float(np.std(values, ddof=1)) * math.sqrt((1 + correlation) / (1 - correlation))
    return Estimate(au_percent=float(values.mean()), half_width_percent=half_width(spread, len(values), confidence))


class SequentialTest:
    """Tests a growing series repeatedly, until its mean is on one side of a threshold.

    The i-th test gets the share 1 / (i (i + 1)) of the error; the shares add up to one (union bound).
    """

    def __init__(self, threshold_percent: float, confidence: float) -> None:
        self._threshold_percent, self._error = threshold_percent, 1 - confidence
        self._tests = 0
        self._due = FEWEST  # number of values at which the next test is due

    def __call__(self, values: Values) -> bool:
        """Test the values if enough were added since the last test; return whether the verdict is decided."""
        if len(values) < self._due:
            return False
        self._tests += 1
        self._due = math.ceil(len(values) * GROWTH)
        error = self._error / (self._tests * (self._tests + 1))
        return estimate(values, 1 - error).decides(self._threshold_percent)


def percent_interval(percent: float, half_width: float) -> tuple[float, float]:
    """Return `percent` +- `half_width`, clipped to 0 and, for a percentage of up to 100, to 100."""
    high = percent + half_width
    return max(0.0, percent - half_width), high if percent > 100 else min(100.0, high)


WINDOW = 5  # number of rounds, the last ones, that must be steady
MOST_ROUNDS = 25  # rounds after which SNIA's specification stops waiting for a steady state
_RANGE, _SLOPE = 0.20, 0.10  # most that the rates of a steady window differ, and that their fitted line rises or falls


def is_steady(rates: Sequence[float]) -> bool | None:
    """Return whether the last rounds' rates were steady; None for fewer than `WINDOW` rounds."""
    last = np.asarray(rates[-WINDOW:], float)
    if len(last) < WINDOW:
        return None
    mean = float(last.mean())
    slope = float(np.polyfit(np.arange(WINDOW), last, 1)[0])
    return float(np.ptp(last)) <= _RANGE * mean and abs(slope) * (WINDOW - 1) <= _SLOPE * mean

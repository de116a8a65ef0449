"""When is a trial's verdict settled? Confidence intervals from stretch means, looked at again and again.

The values of neighbouring stretches are not independent and the interval is looked at many times; each is paid for:
batch means, an effective number of values, and an error that is spent over the looks (docs/sizing.md, section 3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dlemu.sizing.steady import Values
from dlemu.sizing.student import half_width

FEWEST = 8
"""Stretches before the first look; Schmeiser, "Batch size effects in the analysis of simulation output", Operations
Research 30 (1982), finds little gain beyond 10 to 30 and poor intervals with very few."""
GROWTH = 1.25
"""Each look waits for this many times the stretches of the one before."""
MOST_CORRELATION = 0.9


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean AU and how far the truth may be from it, in percent; the latter infinite when nothing can be said."""

    au_percent: float
    half_width_percent: float
    stretches: int

    def settled(self, threshold_percent: float) -> bool:
        """Say whether the threshold lies outside the interval."""
        return abs(self.au_percent - threshold_percent) > self.half_width_percent


def estimate(values: Values, confidence: float) -> Estimate:
    """Return mean and half width at the confidence given (a share, two-sided).

    Neighbours that are alike count for less: the variance of the mean is that of independent values times
    (1 + r) / (1 - r) with r their lag-1 correlation, if positive (von Storch and Zwiers, Statistical Analysis in
    Climate Research, 1999, section 6.6.8).
    """
    if len(values) < 2:
        mean = float(values.mean()) if len(values) else math.nan
        return Estimate(au_percent=mean, half_width_percent=math.inf, stretches=len(values))
    alike = min(max(_correlation(values), 0.0), MOST_CORRELATION)
    spread = float(np.std(values, ddof=1)) * math.sqrt((1 + alike) / (1 - alike))
    width = half_width(spread, len(values), confidence)
    return Estimate(au_percent=float(values.mean()), half_width_percent=width, stretches=len(values))


def _correlation(values: Values) -> float:
    deviations = values - values.mean()
    total = float(deviations @ deviations)
    return float(deviations[1:] @ deviations[:-1]) / total if total > 0 else 0.0


class Looks:
    """Looks at a growing series and says when its verdict is settled.

    The i-th look takes the share 1 / (i (i + 1)) of the error that the confidence leaves; the shares add up to one, so
    by the union bound all looks together err no more often than asked.
    """

    def __init__(self, threshold_percent: float, confidence: float) -> None:
        self._threshold, self._error = threshold_percent, 1 - confidence
        self._looks, self._due = 0, FEWEST

    def __call__(self, values: Values) -> bool:
        """Look, if there is enough new to see; return whether the verdict is settled."""
        if len(values) < self._due:
            return False
        self._looks += 1
        self._due = math.ceil(len(values) * GROWTH)
        error = self._error / (self._looks * (self._looks + 1))
        return estimate(values, 1 - error).settled(self._threshold)

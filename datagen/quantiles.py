"""A distribution given by its mean and its quantiles at equal steps of probability, from minimum to maximum.

Values between two quantiles are interpolated linearly, except between the last two, a and b. Recorded times and sizes
have rare, very large values, of which b shows only the maximum: a straight line up to it would give too large a mean.
There, values are `a + (b - a) * t ** k`, with the k that gives the mean. If no k does, all values are scaled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_QUANTILES = 1001  # steps of a thousandth: more would bloat files that people read
MAX_EXPONENT = 1e4  # limit of the exponent k and of 1 / k, at which the last interval is practically a step
_WEYL = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio, whose multiples modulo 2**64 fill the range evenly (Weyl; Knuth vol. 3, 6.4)."""


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """Percentiles of a time, in milliseconds."""

    p50: float
    p90: float
    p99: float
    max: float


def problems(quantiles: Sequence[float], mean: float, where: str, mean_at: str) -> Iterator[str]:
    """Yield a message if quantiles or their mean are invalid; `where` and `mean_at` are their keys in the settings."""
    if not 2 <= len(quantiles) <= MAX_QUANTILES:
        yield f"{where} has {len(quantiles)} values: wanted 2 to {MAX_QUANTILES} quantiles"
    elif not all(math.isfinite(value) and value >= 0 for value in quantiles):
        yield f"{where} has a value that is negative or not finite: wanted quantiles of 0 or more"
    elif any(above < below for below, above in pairwise(quantiles)):
        yield f"{where} is not ascending: wanted the quantiles from the smallest to the largest"
    elif not quantiles[0] <= mean <= quantiles[-1]:
        yield f"{mean_at} is {mean:g}, outside of {where}: wanted their mean, {quantiles[0]:g} to {quantiles[-1]:g}"


def values_at(quantiles: Sequence[float], mean: float, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values at these probabilities (0 to 1) of the distribution with these quantiles and this mean."""
    import numpy as np

    edges = np.asarray(quantiles, np.float64)
    intervals = len(edges) - 1
    earlier_means = float((edges[:-2] + edges[1:-1]).sum()) / 2  # sum of the means of all intervals but the last
    low, rise = float(edges[-2]), float(edges[-1] - edges[-2])
    # The mean of the last interval, low + rise / (exponent + 1), must complete the sum to mean * intervals
    mean_rise = mean * intervals - earlier_means - low
    exponent = 1.0
    if rise > 0:
        exponent = rise / mean_rise - 1 if mean_rise > 0 else MAX_EXPONENT
        exponent = min(MAX_EXPONENT, max(1 / MAX_EXPONENT, exponent))
    fitted_mean = (earlier_means + low + rise / (exponent + 1)) / intervals
    values = np.interp(probabilities, np.linspace(0, 1, len(edges)), edges)
    within = probabilities * intervals - (intervals - 1)  # position in the last interval, 0 to 1
    last = within > 0
    values[last] = low + rise * within[last] ** exponent
    return np.asarray(values * (mean / fitted_mean if fitted_mean > 0 else 1.0))


def low_discrepancy(start: int, stop: int) -> NDArray[np.float64]:
    """Return probabilities (0 to 1) for items `start` to `stop` - 1; those of any range of items are evenly spread.

    Even a few items have nearly the distribution's mean, and the value of an item does not depend on their number.
    """
    import numpy as np

    return np.asarray(np.arange(start + 1, stop + 1, dtype=np.uint64) * np.uint64(_WEYL) / 2.0**64)


def stratified(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Return `count` random probabilities, one in each of `count` equal parts of 0 to 1: their mean varies little."""
    import numpy as np

    return np.asarray((random.permutation(count) + random.random(count)) / max(1, count))

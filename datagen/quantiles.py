"""A distribution as its quantiles at equal steps of probability, from the least value to the largest, and its mean.

Between neighbours it is linear. Recorded times and sizes have rare, far larger values, of which so few quantiles see
only the largest: a straight line up to that would make the mean too large. So the last stretch is bent,
`a + (b - a) * t ** k`, until the mean is the stated one; what that can't bring about, a factor on all values does.
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

MOST_QUANTILES = 1001  # steps of a thousandth: more would bloat a file that people read
MOST_BEND = 1e4
"""Of the last stretch: all but none of it is above its beginning."""
_WEYL = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio: its multiples modulo 2**64 fill any range evenly (Weyl; Knuth vol. 3, 6.4)."""


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """Of a distribution, in milliseconds."""

    p50: float
    p90: float
    p99: float
    max: float


def problems(quantiles: Sequence[float], mean: float, where: str, mean_at: str) -> Iterator[str]:
    """Name what is wrong with quantiles that stand at one key, and their mean at another."""
    if not 2 <= len(quantiles) <= MOST_QUANTILES:
        yield f"{where} has {len(quantiles)} values: wanted 2 to {MOST_QUANTILES} quantiles"
    elif not all(math.isfinite(value) and value >= 0 for value in quantiles):
        yield f"{where} has a value that is negative or not finite: wanted quantiles of 0 or more"
    elif any(above < below for below, above in pairwise(quantiles)):
        yield f"{where} is not ascending: wanted the quantiles from the smallest to the largest"
    elif not quantiles[0] <= mean <= quantiles[-1]:
        yield f"{mean_at} is {mean:g}, outside of {where}: wanted their mean, {quantiles[0]:g} to {quantiles[-1]:g}"


def values_at(quantiles: Sequence[float], mean: float, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values below which these shares (0 to 1) of the distribution lie; its mean is exactly `mean`."""
    import numpy as np

    known = np.asarray(quantiles, np.float64)
    bend, factor = _fitted(known, mean)
    values = np.interp(shares, np.linspace(0, 1, len(known)), known)
    within = shares * (len(known) - 1) - (len(known) - 2)  # of the last stretch
    last = within > 0
    values[last] = known[-2] + (known[-1] - known[-2]) * within[last] ** bend
    return np.asarray(values * factor)


def _fitted(known: NDArray[np.float64], mean: float) -> tuple[float, float]:
    """Return the exponent of the last stretch, and the factor on all values."""
    stretches = len(known) - 1
    before = float((known[:-2] + known[1:-1]).sum()) / 2
    low, rise = float(known[-2]), float(known[-1] - known[-2])
    wanted = mean * stretches - before - low  # 0 to `rise`, where the bend can do it: rise / (bend + 1)
    bend = 1.0
    if rise > 0:
        bend = min(MOST_BEND, max(1 / MOST_BEND, rise / wanted - 1 if wanted > 0 else MOST_BEND))
    law = (before + low + rise / (bend + 1)) / stretches
    return bend, mean / law if law > 0 else 1.0


def even_shares(start: int, stop: int) -> NDArray[np.float64]:
    """Return the shares (0 to 1) that items `start` to `stop` - 1 of any number have: any run of them is spread evenly.

    So the mean of a few items is near that of the law, and an item's share does not depend on how many there are.
    """
    import numpy as np

    numbers = np.arange(start + 1, stop + 1, dtype=np.uint64) * np.uint64(_WEYL)
    return np.asarray(numbers / 2.0**64)


def drawn_shares(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Return so many random shares (0 to 1), one in each of as many equal parts.

    Their mean is hardly a matter of luck.
    """
    import numpy as np

    return np.asarray((random.permutation(count) + random.random(count)) / max(1, count))

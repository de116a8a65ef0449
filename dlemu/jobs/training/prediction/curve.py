"""What a storage gives to so many readers at a time: points that were measured, and what is between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

THRASHES = 0.3
"""Share by which more readers must get less for it to be the storage's and not chance."""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """What was measured with so many readers."""

    readers: int
    mb_per_second: float
    """1e6 bytes/s of all of them together."""


Curve = tuple[CurvePoint, ...]
"""By rising count of readers; at least one point."""


def rates(curve: Curve, most: int) -> Floats:
    """Return bytes/s that 0 to `most` readers get together, shape (most + 1,).

    Straight lines between the points. More readers than were tried get what the most of them got; fewer than were tried
    get as much as the fewest did, but none more than one reader of the fewest got alone times their number where that
    is known (a point at 1).
    """
    readers = np.array([point.readers for point in curve], float)
    given = np.array([point.mb_per_second for point in curve]) * 1e6
    wanted = np.arange(most + 1, dtype=float)
    filled: Floats = np.interp(wanted, readers, given)
    filled[0] = 0.0
    return filled


def most_mb_per_second(curve: Curve) -> float:
    """Return the most that the storage gave to any number of readers."""
    return max(point.mb_per_second for point in curve)


def flat(mb_per_second: float) -> Curve:
    """Return the curve of a storage that gives the same to any number of readers."""
    return (CurvePoint(readers=1, mb_per_second=mb_per_second),)


def straight_then_flat(one_mb_per_second: float, most_mb_per_second: float) -> Curve:
    """Return the curve of a storage whose readers do not meet until together they get all it has."""
    knee = max(1, round(most_mb_per_second / one_mb_per_second))
    if knee == 1:
        return flat(max(one_mb_per_second, most_mb_per_second))
    return (
        CurvePoint(readers=1, mb_per_second=one_mb_per_second),
        CurvePoint(readers=knee, mb_per_second=most_mb_per_second),
    )


def smoothed(curve: Curve, reads: Sequence[int]) -> Curve:
    """Return the curve without what chance made of it: a level's few reads of a storage whose latency varies.

    One more reader never makes a reader faster, so what each gets must not rise; nor does it make all of them slower,
    unless by more than `THRASHES`, as the heads of a disk do: from there on it is left as it is. Where a point breaks
    the rule it is pooled with its neighbour, weighed by `reads` (Barlow et al., Statistical Inference under Order
    Restrictions, 1972: pool adjacent violators).
    """
    each = [point.mb_per_second / point.readers for point in curve]
    each = _pooled([-value for value in each], reads)
    total = [-value * point.readers for value, point in zip(each, curve, strict=True)]
    falls = (place for place in range(1, len(total)) if total[place] < (1 - THRASHES) * max(total[:place]))
    thrashes = next(falls, len(total))
    kept = [*_pooled(total[:thrashes], reads[:thrashes]), *total[thrashes:]]
    return tuple(
        CurvePoint(readers=point.readers, mb_per_second=value) for point, value in zip(curve, kept, strict=True)
    )


def _pooled(values: Sequence[float], weights: Sequence[int]) -> list[float]:
    """Return the nearest values, by weighted least squares, that never fall."""
    blocks: list[tuple[float, float, int]] = []  # value, weight, how many values
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, float(weight), 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, wa, na), (b, wb, nb) = blocks[-2:]
            blocks[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    return [value for value, _, count in blocks for _ in range(count)]

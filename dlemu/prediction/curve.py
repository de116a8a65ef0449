"""What a storage gives to so many readers at a time: points that were measured, and what lies between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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


def scaled(curve: Curve, factor: float) -> Curve:
    """Return the curve of a storage that is so many times as fast."""
    return tuple(CurvePoint(readers=point.readers, mb_per_second=point.mb_per_second * factor) for point in curve)


def flat(mb_per_second: float) -> Curve:
    """Return the curve of a storage that gives the same to any number of readers."""
    return (CurvePoint(readers=1, mb_per_second=mb_per_second),)

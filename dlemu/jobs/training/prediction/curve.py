"""The throughput curve of a storage, C(n): bytes/s of n parallel readers together, from measured points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

THRASHING_SHARE = 0.3
"""A fall of the throughput by this share with more readers is taken for real; a smaller one for chance."""


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """The throughput with one number of readers."""

    readers: int
    mb_per_second: float
    """1e6 bytes/s of all readers together."""


Curve = tuple[CurvePoint, ...]
"""By rising number of readers; at least one point."""


def rates(curve: Curve, most: int) -> Floats:
    """Return the bytes/s that 0 to `most` readers get together, shape (most + 1,), interpolated between the points."""
    readers = np.array([point.readers for point in curve], float)
    bytes_per_second = np.array([point.mb_per_second for point in curve]) * 1e6
    interpolated: Floats = np.interp(np.arange(most + 1, dtype=float), readers, bytes_per_second)
    interpolated[0] = 0.0
    return interpolated


def most_mb_per_second(curve: Curve) -> float:
    """Return the highest throughput of the curve."""
    return max(point.mb_per_second for point in curve)


def scaled(curve: Curve, factor: float) -> Curve:
    """Return the curve of a storage that is `factor` times as fast."""
    return tuple(CurvePoint(readers=point.readers, mb_per_second=point.mb_per_second * factor) for point in curve)


def flat(mb_per_second: float) -> Curve:
    """Return the curve of a storage that gives any number of readers the same throughput."""
    return (CurvePoint(readers=1, mb_per_second=mb_per_second),)


def smoothed(curve: Curve, reads: Sequence[int]) -> Curve:
    """Return the curve without random violations of two rules, which levels of few reads of varying latency show.

    More readers must not make one faster, nor all together slower by up to `THRASHING_SHARE`. Violators are pooled,
    weighted by `reads` (Barlow et al., Statistical Inference under Order Restrictions, 1972).
    """
    per_reader = _never_falling([-point.mb_per_second / point.readers for point in curve], reads)
    total = [-value * point.readers for value, point in zip(per_reader, curve, strict=True)]
    falls = (place for place in range(1, len(total)) if total[place] < (1 - THRASHING_SHARE) * max(total[:place]))
    first_fall = next(falls, len(total))
    kept = [*_never_falling(total[:first_fall], reads[:first_fall]), *total[first_fall:]]
    return tuple(
        CurvePoint(readers=point.readers, mb_per_second=value) for point, value in zip(curve, kept, strict=True)
    )


def _never_falling(values: Sequence[float], weights: Sequence[int]) -> list[float]:
    """Return the nearest values, by weighted least squares, that never fall (isotonic regression)."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, number of values
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, float(weight), 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, wa, na), (b, wb, nb) = blocks[-2:]
            blocks[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    return [value for value, _, count in blocks for _ in range(count)]

"""`Calibration`: what a prediction knows of a storage and its host; the curve C(n): the throughput of n readers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dlemu.jobs.training.prediction.event_model import HostCosts
from dlemu.metrics.rates import Floats

WAITING_SHARE = 0.02
"""The storage gave all it could if accelerators waited for data at least this share of the time, or if readers waited
less than this share for room in their queues."""
MIN_DECODE_SHARE = 0.05
"""Share of a worker's time below which its work after reading is counted as reading."""
CONFIDENCE, MAX_HALF_WIDTH_PERCENT = 0.95, 50.0  # a storage slower by 100 %, at an interval's end, would stand still


@dataclass(frozen=True)
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
    return max(point.mb_per_second for point in curve)


def flat(mb_per_second: float) -> Curve:
    """Return the curve of a storage that gives any number of readers the same throughput."""
    return (CurvePoint(1, mb_per_second),)


def smoothed(curve: Curve, reads: Sequence[int]) -> Curve:
    """Return the curve without random violations of two rules, which levels of few reads of varying latency show.

    More readers must not make one reader faster, nor all together slower, unless by 30 %, which is no chance. Violators
    are pooled, weighted by `reads` (Barlow et al., Statistical Inference under Order Restrictions, 1972).
    """
    readers = [point.readers for point in curve]
    slowness = _never_falling([-point.mb_per_second / point.readers for point in curve], reads)
    totals = [-value * number for value, number in zip(slowness, readers, strict=True)]
    fall = 1
    while fall < len(totals) and totals[fall] >= 0.7 * max(totals[:fall]):
        fall += 1
    pooled = [*_never_falling(totals[:fall], reads[:fall]), *totals[fall:]]
    return tuple(map(CurvePoint, readers, pooled))


def _never_falling(values: Sequence[float], weights: Sequence[int]) -> list[float]:
    """Return the nearest values, by weighted least squares, that never fall: 1 3 2 4 -> 1 2.5 2.5 4."""
    pools: list[tuple[float, int, int]] = []  # of neighbours: their weighted mean, their weight, their number
    for mean, weight in zip(values, weights, strict=True):
        size = 1
        while pools and pools[-1][0] > mean:
            left, left_weight, left_size = pools.pop()
            mean = (left * left_weight + mean * weight) / (left_weight + weight)
            weight, size = left_weight + weight, left_size + size
        pools.append((mean, weight, size))
    return [mean for mean, _, size in pools for _ in range(size)]


@dataclass(frozen=True, kw_only=True)
class FirstStep:
    """A storage as fast as in the first step of the epochs, and a host that delays each later step."""

    mb_per_second: float
    readers: int
    """The number of readers that got it together; more readers may get more, in proportion at most."""
    step_share: float
    """See `Calibration.step_share`."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The speed of one storage and one host with one access pattern; `Prediction` explains the keys that both have."""

    source: str
    curve: Curve
    saturated: bool = True
    half_width_percent: float = 0.0
    work: tuple[float, ...] = (1.0,)
    """Quantiles, rising, of the work of reads: what a read takes of the storage, relative to the mean of its size."""
    samples_per_read: int = 1
    """Samples per read in the measurement of `work`."""
    sample_bytes: float = 0.0
    """Mean bytes read for a sample; 0 where not known."""
    bytes_factor: float = 1.0
    """Bytes really read / the bytes that follow from the settings of the dataset."""
    decode_seconds_per_sample: float = 0.0
    """Time of a core, after reading; 0 where it is counted as reading."""
    cores: float | None = 1.0
    """Cores of one host; None where not known: then no reader waits for a core."""
    busy_cores: float = 0.0
    """Cores kept busy during the measurement by anything but the readers; 0 where not known."""
    costs: HostCosts = field(default_factory=HostCosts)
    first_step: FirstStep | None = None
    """The other explanation of a run's times, which holds for other accelerators, too; None where there is none."""
    step_share: float = 0.0
    """Delay of the host after each step, beside that of `costs`, as a share of the accelerator's computation."""
    others_mb_per_second: float = 0.0

    @property
    def cores_to_share(self) -> float:
        """The cores of one host; infinity where they are not known."""
        return math.inf if self.cores is None else self.cores

    def left_mb_per_second(self, speed: float = 1.0) -> float:
        """Return the highest throughput that other jobs leave, of a storage that is `speed` times as fast."""
        total = speed * most_mb_per_second(self.curve)
        return max(total - self.others_mb_per_second, 0.001 * total)  # with none, this job would never end


def given_speed(mb_per_second: float, *, cores: float | None, bytes_factor: float = 1.0) -> Calibration:
    """Return the calibration of a storage with a given throughput."""
    return Calibration(
        source=f"{mb_per_second:g} MB/s as given, whatever the number of readers",
        curve=flat(mb_per_second),
        bytes_factor=bytes_factor,
        cores=cores,
    )

"""One trial of a count of accelerators, and what all trials of a count say together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlemu.sizing.settled import Estimate, estimate
from dlemu.sizing.student import half_width


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What one run of a count of accelerators showed. AU is the sustained one (docs/sizing.md), in percent."""

    accelerators: int
    folder: str
    """The run's folder, in the folder of the search."""
    au_percent: float
    half_width_percent: float
    settled: bool
    """It could end before its last step because the verdict was clear at the confidence asked for."""
    stretch_au_percent: tuple[float, ...]
    """The series behind it: one value for each `stretch_seconds`."""
    seconds: float
    """Wall-clock time, start of the processes included."""
    au_headline_percent: float | None
    """`au_percent` of the run's own summary, and further metrics of it."""
    au_rules_percent: float | None
    ceiling_au_percent: float | None
    samples_per_second: float
    app_mb_per_second: float
    device_mb_per_second: float | None
    device_bytes_percent_of_app: float | None
    mb_per_accelerator: float
    """MB/s that one accelerator of this run asks for when it never waits: from the bytes really read."""
    training_seconds: float
    limited_by: dict[str, Any] | None
    """As the run's summary says."""
    page_cache_warning: str | None
    """What the run's summary says when storage was not, or only in part, what was read."""


@dataclass(frozen=True, kw_only=True)
class Count:
    """All trials of one count of accelerators together."""

    accelerators: int
    trials: int
    au_percent: float
    half_width_percent: float
    threshold_percent: float
    ceiling_au_percent: float | None

    @property
    def settled(self) -> bool:
        """Whether the interval leaves the threshold out."""
        return abs(self.au_percent - self.threshold_percent) > self.half_width_percent

    @property
    def passes(self) -> bool:
        """Whether the mean is at least the threshold."""
        return self.au_percent >= self.threshold_percent

    @property
    def held_back(self) -> bool:
        """Whether it fails on this host even without any storage."""
        ceiling = self.ceiling_au_percent
        return not self.passes and ceiling is not None and ceiling < self.threshold_percent


def together(trials: Iterable[Trial], threshold_percent: float, confidence: float) -> list[Count]:
    """Return one entry for each count that was tried, smallest first."""
    by_count: dict[int, list[Trial]] = {}
    for trial in trials:
        by_count.setdefault(trial.accelerators, []).append(trial)
    return [_count(by_count[number], threshold_percent, confidence) for number in sorted(by_count)]


def _count(trials: list[Trial], threshold_percent: float, confidence: float) -> Count:
    pooled = _pooled([np.array(trial.stretch_au_percent) for trial in trials], confidence)
    ceilings = [trial.ceiling_au_percent for trial in trials if trial.ceiling_au_percent is not None]
    return Count(
        accelerators=trials[0].accelerators,
        trials=len(trials),
        au_percent=pooled.au_percent,
        half_width_percent=pooled.half_width_percent,
        threshold_percent=threshold_percent,
        ceiling_au_percent=max(ceilings, default=None),
    )


def _pooled(runs: list[np.ndarray[Any, np.dtype[np.float64]]], confidence: float) -> Estimate:
    """Return the mean over runs, with the wider of two half widths: from stretches within runs, and between runs.

    Runs weigh alike. Within: independent estimates of k runs, so the root of the sum of squares / k. Between: half the
    difference of two runs, Student's interval of three or more.
    """
    parts = [estimate(values, confidence) for values in runs]
    means = np.array([part.au_percent for part in parts])
    within = math.sqrt(sum(part.half_width_percent**2 for part in parts)) / len(parts)
    return Estimate(
        au_percent=float(means.mean()),
        half_width_percent=max(within, _between(means, confidence)),
        stretches=sum(part.stretches for part in parts),
    )


def _between(means: np.ndarray[Any, np.dtype[np.float64]], confidence: float) -> float:
    if len(means) < 3:
        return float(np.ptp(means)) / 2
    return half_width(float(np.std(means, ddof=1)), len(means), confidence)

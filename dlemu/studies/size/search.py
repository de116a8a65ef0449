"""Chooses the count of accelerators to try next: guess, bracket, narrow down, repeat both counts at the edge. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dlemu.metrics.t_interval import estimate, half_width
from dlemu.studies.answers import CountResult, Trial

REPEATS = 2
"""Trials, at least, of each count at the edge: the largest that passes and the smallest that fails."""
MOST_REPEATS = 5
"""Trials of a count after which a verdict that is still open stays open: MLPerf Storage's number of runs."""
GUESSES = 4
"""After this many counts the search halves the bracket instead of guessing from the AU of a failed count."""


@dataclass(frozen=True, kw_only=True)
class Count:
    """All trials with one number of accelerators together."""

    result: CountResult
    """What size.json has of it."""
    threshold_percent: float
    ceiling_au_percent: float | None

    @property
    def accelerators(self) -> int:
        """How many they were."""
        return self.result.accelerators

    @property
    def passes(self) -> bool:
        """Whether the mean is at least the threshold."""
        return self.result.au_sustained_percent >= self.threshold_percent

    @property
    def held_back(self) -> bool:
        """Whether it fails on this host even without any storage, by a ceiling that no trial contradicts."""
        ceiling, least = self.ceiling_au_percent, self.result.au_sustained_percent - self.result.half_width_percent
        return not self.passes and ceiling is not None and least <= ceiling < self.threshold_percent


def pool(trials: Iterable[Trial], threshold_percent: float, confidence: float) -> list[Count]:
    """Combine trials of equal counts; return the counts, smallest first."""
    by_count: dict[int, list[Trial]] = {}
    for trial in trials:
        by_count.setdefault(trial.accelerators, []).append(trial)
    return [_count(by_count[number], threshold_percent, confidence) for number in sorted(by_count)]


def _count(trials: Sequence[Trial], threshold_percent: float, confidence: float) -> Count:
    """Return the mean over trials, with the wider of two half widths: from windows within trials, and between trials.

    Trials have equal weight. Within: the k trials are independent, so the root of the sum of squares, / k. Between:
    half the difference of two trials, the t-interval of three or more.
    """
    parts = [estimate(np.array(trial.stretch_au_percent), confidence) for trial in trials]
    means = np.array([part.au_percent for part in parts])
    within = math.sqrt(sum(part.half_width_percent**2 for part in parts)) / len(parts)
    if len(means) < 3:
        between = float(np.ptp(means)) / 2
    else:
        between = half_width(float(np.std(means, ddof=1)), len(means), confidence)
    au_percent, width = float(means.mean()), max(within, between)
    settled = abs(au_percent - threshold_percent) > width
    result = CountResult(
        accelerators=trials[0].accelerators,
        au_sustained_percent=au_percent,
        half_width_percent=width,
        passed=au_percent >= threshold_percent if settled else None,
        trials=len(trials),
    )
    ceilings = [trial.ceiling_au_percent for trial in trials if trial.ceiling_au_percent is not None]
    return Count(result=result, threshold_percent=threshold_percent, ceiling_au_percent=max(ceilings, default=None))


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the search may try."""

    first: int
    """The count to begin with."""
    most: int
    """The largest count that can be tried."""


def next_count(counts: Sequence[Count], limits: Limits) -> int | None:
    """Return the count of accelerators to try next, None when the edge is found and decided.

    AU falls as the count rises. If n accelerators fail with AU a, the storage feeds a x n fully busy ones, so the next
    guess is a x n / threshold.
    """
    if not counts:
        return max(1, min(limits.first, limits.most))
    low, high = edge(counts)
    inner = _between(counts, low, high, limits)
    if inner is not None:
        return inner
    undecided = [count for count in counts if count.accelerators in (low, high) and _wants_more(count)]
    if undecided:
        return min(undecided, key=lambda count: count.result.trials).accelerators
    return _below(counts, low)


def edge(counts: Sequence[Count]) -> tuple[int, int | None]:
    """Return the largest count that passes below the smallest that fails (0 if none), and the latter (None if none)."""
    high = min((count.accelerators for count in counts if not count.passes), default=None)
    passing = (count.accelerators for count in counts if count.passes)
    low = max((number for number in passing if high is None or number < high), default=0)
    return low, high


def _between(counts: Sequence[Count], low: int, high: int | None, limits: Limits) -> int | None:
    """Return a count strictly between the two, None when they are neighbours or nothing larger can be tried."""
    if high is None:
        if low >= limits.most:
            return None
        passed = sum(count.passes and count.accelerators >= limits.first for count in counts)
        return min(limits.most, low + int(2 ** max(0, passed - 1)))
    if high - low <= 1:
        return None
    if len(counts) > GUESSES:
        return (low + high) // 2
    failed = next(count for count in counts if count.accelerators == high)
    fed = int(failed.result.au_sustained_percent * high / failed.threshold_percent)
    return max(low + 1, min(high - 1, fed))


def _below(counts: Sequence[Count], low: int) -> int | None:
    """Return a smaller count to try if `low` stays too close to call; None if one is shown to pass, or none is left."""
    tried = {count.accelerators: count for count in counts}
    for number in range(low, 0, -1):
        count = tried.get(number)
        if count is None or _wants_more(count):
            return number
        if count.result.passed is not None:
            return None
    return None


def _wants_more(count: Count) -> bool:
    if count.held_back:
        return False  # its limit is the host: more trials would not change that
    return count.result.trials < REPEATS or (count.result.passed is None and count.result.trials < MOST_REPEATS)

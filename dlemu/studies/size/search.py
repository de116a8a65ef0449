"""Chooses the next count to try: guesses, brackets the edge, narrows it down, repeats both counts at it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from dlemu.metrics.t_interval import half_width
from dlemu.results.figures import CONFIDENCE
from dlemu.studies.answers import CountResult, Question, Trial, edge

REPEATS = 2  # minimum of trials with each count at the edge: the largest that passes and the smallest that fails
MOST_REPEATS = 5  # trials after which an undecided count stays undecided: MLPerf Storage's number of runs
GUESSES = 4  # counts, after which the search halves the bracket instead of guessing from the AU of a failed count


def pool(trials: Iterable[Trial], threshold_percent: float) -> list[CountResult]:
    """Combine trials of equal counts; return the counts, smallest first."""
    by_count: dict[int, list[Trial]] = {}
    for trial in trials:
        by_count.setdefault(trial.accelerators, []).append(trial)
    return [_count(by_count[accelerators], threshold_percent) for accelerators in sorted(by_count)]


def _count(trials: Sequence[Trial], threshold_percent: float) -> CountResult:
    """Return the mean AU over trials of equal weight, with the larger of two half widths, within and between trials.

    Within: of k independent trials, the root of the sum of squares, / k. Between: half the difference of two trials, or
    the t-interval of three or more.
    """
    estimates = [trial.sustained for trial in trials]
    means = np.array([estimate.au_percent for estimate in estimates])
    within = math.sqrt(sum(estimate.half_width_percent**2 for estimate in estimates)) / len(estimates)
    if len(means) < 3:
        between = float(np.ptp(means)) / 2
    else:
        between = half_width(float(np.std(means, ddof=1)), len(means), CONFIDENCE)
    au_percent, width = float(means.mean()), max(within, between)
    settled = abs(au_percent - threshold_percent) > width
    ceilings = [trial.figures.mean("ceiling_au_percent") for trial in trials]
    return CountResult(
        accelerators=trials[0].accelerators,
        au_sustained_percent=au_percent,
        half_width_percent=width,
        passed=au_percent >= threshold_percent if settled else None,
        trials=len(trials),
        ceiling_au_percent=max((ceiling for ceiling in ceilings if ceiling is not None), default=None),
    )


def is_held_back(count: CountResult, threshold_percent: float) -> bool:
    """Return whether a count fails on this host even without storage, by a ceiling that the trials don't exceed."""
    ceiling, least = count.ceiling_au_percent, count.au_sustained_percent - count.half_width_percent
    fails = count.au_sustained_percent < threshold_percent
    return fails and ceiling is not None and least <= ceiling < threshold_percent


def next_count(trials: Sequence[Trial], question: Question, first: int, most: int) -> int | None:
    """Return the count of accelerators to try next; None if the edge is found and decided.

    `first` is the count to begin with, `most` the largest that can be tried. AU falls as the count rises. If n
    accelerators fail with AU a, the storage feeds a x n that never wait, so the next guess is a x n / threshold: where
    10 reach 45 %, it feeds 4.5 at 100 %, or 5 at 90 %.
    """
    threshold = question.threshold_percent
    counts = pool(trials, threshold)
    if not counts:
        return max(1, min(first, most))
    low, failed = edge((count, count.au_sustained_percent >= threshold) for count in counts)
    passed = low.accelerators if low else 0
    if failed is None and passed < most:
        larger = sum(count.accelerators >= first for count in counts)
        return min(most, passed + int(2 ** max(0, larger - 1)))
    if failed is not None and failed.accelerators - passed > 1:
        high = failed.accelerators
        if len(counts) > GUESSES:
            return (passed + high) // 2
        return max(passed + 1, min(high - 1, int(failed.au_sustained_percent * high / threshold)))
    undecided = [count for count in (low, failed) if count is not None and _needs_trials(count, threshold)]
    if undecided:
        return min(undecided, key=lambda count: count.trials).accelerators
    # If the largest passing count stays too close to call, decide the next smaller ones until one is shown to pass.
    by_accelerators = {count.accelerators: count for count in counts}
    for accelerators in range(passed, 0, -1):
        count = by_accelerators.get(accelerators)
        if count is None or _needs_trials(count, threshold):
            return accelerators
        if count.passed is not None:
            return None
    return None


def _needs_trials(count: CountResult, threshold_percent: float) -> bool:
    if is_held_back(count, threshold_percent):
        return False  # more trials would not change that the host is the limit
    return count.trials < REPEATS or (count.passed is None and count.trials < MOST_REPEATS)

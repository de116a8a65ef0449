"""Chooses the next count to try: brackets the edge between passing and failing counts, narrows it, repeats both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from dlemu.metrics.t_interval import half_width
from dlemu.results.figures import CONFIDENCE
from dlemu.studies.answers import CountResult, Question, Trial, edge

MIN_REPEATS = 2  # trials with each count at the edge: the largest that passes and the smallest that fails
MAX_REPEATS = 5  # trials after which an undecided count stays undecided: MLPerf Storage's number of runs
MAX_ESTIMATES = 4  # with more counts tried, halve the bracket; up to then, estimate from the AU of the failed one


def pool(trials: Iterable[Trial], threshold_percent: float) -> list[CountResult]:
    """Return the combined result of the trials with each count, the smallest count first."""
    by_count: dict[int, list[Trial]] = {}
    for trial in trials:
        by_count.setdefault(trial.accelerators, []).append(trial)
    return [_count(by_count[accelerators], threshold_percent) for accelerators in sorted(by_count)]


def _count(trials: Sequence[Trial], threshold_percent: float) -> CountResult:
    """Return the result of all trials with one count: the mean AU, and the larger of two half widths for it."""
    estimates = [trial.sustained for trial in trials]
    means = np.array([estimate.au_percent for estimate in estimates])
    # The error of the mean of k independent trials is the root of the sum of their squared errors, divided by k.
    within = math.sqrt(sum(estimate.half_width_percent**2 for estimate in estimates)) / len(estimates)
    between = float(np.ptp(means)) / 2  # half the difference of two trials
    if len(means) >= 3:
        between = half_width(float(np.std(means, ddof=1)), len(means), CONFIDENCE)
    au_percent, width = float(means.mean()), max(within, between)
    is_decided = abs(au_percent - threshold_percent) > width
    return CountResult(
        accelerators=trials[0].accelerators,
        au_sustained_percent=au_percent,
        half_width_percent=width,
        passed=au_percent >= threshold_percent if is_decided else None,
        trials=len(trials),
    )


def ceiling_below(count: CountResult, trials: Iterable[Trial], threshold_percent: float) -> float:
    """Return the AU (%) that this host reaches without storage, if that explains why the count fails; else 0."""
    ceiling = max(
        trial.figures.mean("ceiling_au_percent") or 0.0 for trial in trials if trial.accelerators == count.accelerators
    )
    # An AU that exceeds the ceiling by more than its error shows that the ceiling was measured too low.
    is_reached = count.au_sustained_percent - count.half_width_percent <= ceiling < threshold_percent
    return ceiling if is_reached and count.au_sustained_percent < threshold_percent else 0.0


def next_count(trials: Sequence[Trial], question: Question, first: int, max_count: int) -> int | None:
    """Return the count of accelerators to try next; None if the edge is found and decided.

    `first` is the count to begin with, `max_count` the largest that can be tried. AU falls as the count rises. If n
    accelerators fail with AU a, the storage feeds a x n that never wait, and a x n / threshold that pass: if 10 reach
    45 %, it feeds 4.5 at an AU of 100 %, or 5 at 90 %, so 5 is next.
    """
    threshold = question.threshold_percent
    counts = pool(trials, threshold)
    if not counts:
        return max(1, min(first, max_count))
    low, failed = edge((count, count.au_sustained_percent >= threshold) for count in counts)
    passed = low.accelerators if low else 0
    if failed is None and passed < max_count:  # go up in steps of 1, 2, 4, ... from the first count
        tried = sum(count.accelerators >= first for count in counts)
        return min(max_count, passed + (1 << max(0, tried - 1)))
    if failed is not None and failed.accelerators - passed > 1:
        if len(counts) > MAX_ESTIMATES:
            return (passed + failed.accelerators) // 2
        estimated = int(failed.au_sustained_percent * failed.accelerators / threshold)
        return max(passed + 1, min(failed.accelerators - 1, estimated))
    if undecided := [count for count in (low, failed) if count is not None and _needs_trials(count, trials, threshold)]:
        return min(undecided, key=lambda count: count.trials).accelerators
    # If the largest passing count stays too close to call, decide the next smaller ones until one is shown to pass.
    by_accelerators = {count.accelerators: count for count in counts}
    for accelerators in range(passed, 0, -1):
        count = by_accelerators.get(accelerators)
        if count is None or _needs_trials(count, trials, threshold):
            return accelerators
        if count.passed is not None:
            return None
    return None


def _needs_trials(count: CountResult, trials: Sequence[Trial], threshold_percent: float) -> bool:
    if ceiling_below(count, trials, threshold_percent):
        return False  # more trials would not change that the host is the limit
    return count.trials < MIN_REPEATS or (count.passed is None and count.trials < MAX_REPEATS)

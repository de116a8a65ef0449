"""Chooses the count of accelerators to try next: guess, bracket, narrow down, repeat both counts at the edge. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from dlemu.metrics.t_interval import half_width
from dlemu.results.figures import CONFIDENCE
from dlemu.studies.answers import CountResult, Question, Trial, edge

REPEATS = 2  # trials, at least, of each count at the edge: the largest that passes and the smallest that fails
MOST_REPEATS = 5  # trials after which an open verdict of a count stays open: MLPerf Storage's number of runs
GUESSES = 4  # after this many counts the search halves the bracket, instead of guessing from the AU of a failed count


def pool(trials: Iterable[Trial], threshold_percent: float) -> list[CountResult]:
    """Combine trials of equal counts; return the counts, smallest first."""
    by_count: dict[int, list[Trial]] = {}
    for trial in trials:
        by_count.setdefault(trial.accelerators, []).append(trial)
    return [_count(by_count[accelerators], threshold_percent) for accelerators in sorted(by_count)]


def _count(trials: Sequence[Trial], threshold_percent: float) -> CountResult:
    """Return the mean over trials, with the wider of two half widths: from windows within trials, and between trials.

    Trials have equal weight. Within: the k trials are independent, so the root of the sum of squares, / k. Between:
    half the difference of two trials, the t-interval of three or more.
    """
    parts = [trial.sustained for trial in trials]
    means = np.array([part.au_percent for part in parts])
    within = math.sqrt(sum(part.half_width_percent**2 for part in parts)) / len(parts)
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
    """Return whether a count fails on this host even without storage, by a ceiling that no trial contradicts."""
    ceiling, least = count.ceiling_au_percent, count.au_sustained_percent - count.half_width_percent
    fails = count.au_sustained_percent < threshold_percent
    return fails and ceiling is not None and least <= ceiling < threshold_percent


def next_count(trials: Sequence[Trial], question: Question, first: int, most: int) -> int | None:
    """Return the count of accelerators to try next, None when the edge is found and decided.

    `first` is the count to begin with, `most` the largest that can be tried. AU falls as the count rises. If n
    accelerators fail with AU a, the storage feeds a x n that never wait, so the next guess is a x n / threshold: 10 at
    an AU of 45 % feed 4.5, or 5 at an AU of 90 %.
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
    undecided = [count for count in (low, failed) if count is not None and _wants_more(count, threshold)]
    if undecided:
        return min(undecided, key=lambda count: count.trials).accelerators
    # If the largest passing count stays too close to call, decide the next smaller counts, until one is shown to pass.
    by_accelerators = {count.accelerators: count for count in counts}
    for accelerators in range(passed, 0, -1):
        count = by_accelerators.get(accelerators)
        if count is None or _wants_more(count, threshold):
            return accelerators
        if count.passed is not None:
            return None
    return None


def _wants_more(count: CountResult, threshold_percent: float) -> bool:
    if is_held_back(count, threshold_percent):
        return False  # its limit is the host: more trials would not change that
    return count.trials < REPEATS or (count.passed is None and count.trials < MOST_REPEATS)

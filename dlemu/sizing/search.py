"""Which count to try next: estimate, bracket, close in, then repeat the two counts at the edge. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlemu.sizing.trial import Count

REPEATS = 2
"""Trials that each of the two counts at the edge gets at least."""
MOST_REPEATS = 5
"""Trials of a count after which a verdict that is still open stays open: MLPerf Storage's number of runs."""
GUESSES = 4
"""Counts after which the search no longer trusts the arithmetic from a failed trial, and halves the bracket."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the search may try."""

    first: int
    """The count to begin with."""
    most: int
    """The largest count that can be tried."""
    repeats: int = REPEATS
    most_repeats: int = MOST_REPEATS


def next_count(counts: Sequence[Count], limits: Limits) -> int | None:
    """Return the count of accelerators to try next, None when the edge is found and settled.

    AU falls as the count rises. A trial that failed with AU a at n says what the storage gives: a x n accelerators'
    worth, so a x n / threshold is the next guess.
    """
    if not counts:
        return max(1, min(limits.first, limits.most))
    low, high = edge(counts)
    inner = _between(counts, low, high, limits)
    if inner is not None:
        return inner
    open_ones = [count for count in counts if count.accelerators in (low, high) and _wants_more(count, limits)]
    if open_ones:
        return min(open_ones, key=lambda count: count.trials).accelerators
    return _below(counts, low, limits)


def edge(counts: Sequence[Count]) -> tuple[int, int | None]:
    """Return the largest count that passes below the smallest that fails (0 for none), and the latter (None)."""
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
    fed = int(failed.au_percent * high / failed.threshold_percent)
    return max(low + 1, min(high - 1, fed))


def _below(counts: Sequence[Count], low: int, limits: Limits) -> int | None:
    """Return the count to try where the largest that passes stays too close to tell: the largest that is shown to pass
    is still wanted. None when there is one, or none below.
    """
    tried = {count.accelerators: count for count in counts}
    for number in range(low, 0, -1):
        count = tried.get(number)
        if count is None or _wants_more(count, limits):
            return number
        if count.settled:
            return None
    return None


def _wants_more(count: Count, limits: Limits) -> bool:
    if count.held_back:
        return False  # more trials would only measure the host again
    return count.trials < limits.repeats or (not count.settled and count.trials < limits.most_repeats)

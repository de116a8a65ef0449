"""Changes of speed that come after a number of bytes: a cache or burst credit that ran out, or a slow first read.

A drive's cache, or a cloud volume's burst credit, lasts for a number of bytes: the storage is fast from the first byte,
slows down after them, and recovers in a pause. Repeated slow-downs after about the same number of bytes prove it; a
single one is a hint, because other load that starts then looks the same.

A volume that loads each block at its first read (as one restored from a snapshot) is slow for the first epoch only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlemu.metrics.changes import SpeedChange

_MAX_BYTES_RATIO = 1.3
"""Greatest ratio of the most to the fewest bytes before a slow-down; a change is known only to a window of time."""


@dataclass(frozen=True, kw_only=True)
class RanOut:
    """A cache or burst credit that ran out."""

    gb: float
    """GB read at the higher speed until it ran out; mean over the times."""
    times: int
    """How often it ran out: once is a hint, more are a proof."""
    mb_per_second_before: float
    mb_per_second_after: float
    """The speed that lasts: the lowest after it ran out."""


@dataclass(frozen=True, kw_only=True)
class FirstTouch:
    """A storage that was slow in the first epoch, when each byte was read for the first time, and fast afterwards."""

    gb: float
    """GB read in the first epoch."""
    mb_per_second_first: float
    mb_per_second_after: float


_FIRST_EPOCH_TOLERANCE = 0.1
"""Share of the first epoch's bytes by which the change may miss the epoch's end: a window, or a few batches."""


def find_first_touch(changes: Sequence[SpeedChange], gb_of_epochs: Sequence[float]) -> FirstTouch | None:
    """Return how slow the first epoch was if the only change of speed is a rise at its end, else None.

    `gb_of_epochs` are the GB read in each epoch.
    """
    if len(gb_of_epochs) < 2 or len(changes) != 1 or changes[0].percent < 100:
        return None
    first, change = gb_of_epochs[0], changes[0]
    if abs(change.gb_before - first) > _FIRST_EPOCH_TOLERANCE * first:
        return None
    return FirstTouch(
        gb=first, mb_per_second_first=change.mb_per_second_before, mb_per_second_after=change.mb_per_second_after
    )


def find_ran_out(changes: Sequence[SpeedChange]) -> RanOut | None:
    """Return what ran out, or None if the changes of a run's speed have another pattern.

    The pattern is slow-downs with a rise between each two, starting fast and ending slow, each slow-down after about
    the same number of bytes since the start or the last rise.
    """
    falls = [change for change in changes if change.percent < 100]
    rises = [change for change in changes if change.percent >= 100]
    if not falls or len(changes) != 2 * len(falls) - 1:
        return None
    if any(change.percent >= 100 for change in changes[::2]):
        return None
    since = [0.0, *(change.gb_before for change in rises)]
    fast_gb = [fall.gb_before - begin for fall, begin in zip(falls, since, strict=True)]
    if min(fast_gb) <= 0 or max(fast_gb) > _MAX_BYTES_RATIO * min(fast_gb):
        return None
    return RanOut(
        gb=sum(fast_gb) / len(fast_gb),
        times=len(falls),
        mb_per_second_before=falls[0].mb_per_second_before,
        mb_per_second_after=min(fall.mb_per_second_after for fall in falls),
    )

"""A storage that is fast for so many bytes, or slow for the first: such a change of speed follows bytes, not time.

What a cache holds, and what a credit allows, is a number of bytes: the storage is fast from the first byte on, and slow
from a certain byte on until it was left alone for a while. Where that happens again and again at about the same number
of bytes, nothing else explains it. Once is a hint: a neighbour that began to read just then looks the same.

A volume that is slow when a block is read for the first time is fast from the second epoch on, to the byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlemu.metrics.changes import SpeedChange

ALIKE = 1.3
"""How many times the least the most of the bytes may be for them to be the same: a change is known to a window."""


@dataclass(frozen=True, kw_only=True)
class RanOut:
    """What was fast."""

    gb: float
    """Read at the higher speed each time, mean."""
    times: int
    """How often it ran out; once is a hint, more are a proof."""
    mb_per_second_before: float
    mb_per_second_after: float
    """What lasts: the lowest of the levels after it."""


@dataclass(frozen=True, kw_only=True)
class FirstTouch:
    """A storage that was slow in the first epoch, when all was read for the first time, and fast from then on."""

    gb: float
    """Of the first epoch."""
    mb_per_second_first: float
    mb_per_second_after: float


FIRST_EPOCH = 0.1
"""Share of the first epoch's bytes by which the change may miss its end: a window, or a few batches."""


def find_first_touch(changes: Sequence[SpeedChange], gb_of_epochs: Sequence[float]) -> FirstTouch | None:
    """Return that the first epoch alone was slow, where the one change of speed is a rise at its end.

    `gb_of_epochs`: what was read in each.
    """
    if len(gb_of_epochs) < 2 or len(changes) != 1 or changes[0].percent < 100:
        return None
    first, change = gb_of_epochs[0], changes[0]
    if abs(change.gb_before - first) > FIRST_EPOCH * first:
        return None
    return FirstTouch(
        gb=first, mb_per_second_first=change.mb_per_second_before, mb_per_second_after=change.mb_per_second_after
    )


def find_ran_out(changes: Sequence[SpeedChange]) -> RanOut | None:
    """Return what ran out, if the changes of a run's speed are of that kind: fast first, then slow to the end.

    Of several, each but the first follows a moment from which on the storage was fast again, and all came after about
    the same number of bytes.
    """
    falls = [change for change in changes if change.percent < 100]
    rises = [change for change in changes if change.percent >= 100]
    if not falls or len(changes) != 2 * len(falls) - 1:
        return None
    if any(change.percent >= 100 for change in changes[::2]):
        return None
    since = [0.0, *(change.gb_before for change in rises)]
    given = [fall.gb_before - begin for fall, begin in zip(falls, since, strict=True)]
    if min(given) <= 0 or max(given) > ALIKE * min(given):
        return None
    return RanOut(
        gb=sum(given) / len(given),
        times=len(falls),
        mb_per_second_before=falls[0].mb_per_second_before,
        mb_per_second_after=min(fall.mb_per_second_after for fall in falls),
    )

"""How far a run is: one form for the run's own terminal, for `dlemu watch` and for callers of the Python API.

A kind of job reads it, with its part `follow`, from the rows that its ranks write into live/ of the run's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Figure:
    """A number of a run in progress, with its unit."""

    name: str
    value: float
    unit: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:,.4g} {self.unit}".rstrip()


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is, or the making of a dataset."""

    at: str
    """The current position as text: `epoch 2/5, step 3/20`."""
    done: int = 0
    """Steps, checkpoints or bytes done, by the slowest rank."""
    total: int = 0
    """Of so many; 0 where that is not known."""
    au_percent: float | None = None
    """Accelerator utilisation of the epoch so far; None while no step counts, and for what has none."""
    mb_per_second: float | None = None
    """1e6 bytes/s that all ranks read or write now."""
    seconds_left: float | None = None
    figures: tuple[Figure, ...] = ()
    """What else the job measures."""
    ranks: Mapping[int, Progress] = field(default_factory=dict)
    """Rank -> its own numbers, for ranks that have begun; not reported by the run itself."""

    @property
    def is_over(self) -> bool:
        return 0 < self.total <= self.done

    def __str__(self) -> str:
        text = f"{min(100.0, 100 * self.done / self.total):3.0f} % {self.at}" if self.total else self.at
        if self.au_percent is not None:
            text += f"  AU {self.au_percent:.1f} %".replace(".0 %", " %")
        if self.mb_per_second is not None:
            text += f"  {self.mb_per_second:,.0f} MB/s"
        if self.seconds_left is not None and not self.is_over:
            left = round(self.seconds_left)
            text += f"  {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
        return text


def seconds_left(seconds: float, done: float, total: float) -> float | None:
    """Return how long the rest takes at the speed so far; None where there is none."""
    return seconds * max(0, total - done) / done if done > 0 and seconds > 0 else None


class Follower(Protocol):
    """Follows the ranks of one run."""

    def look(self) -> Progress | None:
        """Return how far the run is now, None while no rank has begun. Raises OSError where the files are gone."""
        ...

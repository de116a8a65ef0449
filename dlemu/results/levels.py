"""What is known of a storage: reads by rising numbers of readers, reads and writes by size and depth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

READ_DTYPE = np.dtype(
    [(name, np.int64) for name in ("begin_ns", "end_ns", "app_bytes", "samples", "decode_ns", "cpu_ns", "reader")]
)


ReadRows = NDArray[np.void]
"""Reads, one row each, shape (reads,)."""


@dataclass(frozen=True, eq=False)
class Level:
    """What so many readers got."""

    readers: int
    seconds: float
    """In which it was measured."""
    rows: ReadRows
    """All reads, also those before."""
    mb_per_second: float
    half_width_percent: float
    """Of the 95 % interval of its speed, by windows of its time."""
    cpu_seconds_per_gb: float
    short: bool
    """The dataset was read to its end before the time was over."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What a storage gives to requests of one size, so many of them in flight."""

    size_bytes: int
    depth: int
    per_second: float
    """Requests."""


@dataclass(frozen=True)
class Rates:
    """What a storage gives by size and depth."""

    source: str
    """In words."""
    rates: tuple[Rate, ...]
    """Of reads."""
    writes: tuple[Rate, ...] = ()
    """At least one of both."""

"""Measured speeds of a storage: by number of readers, and by request size and queue depth."""

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
    """What was measured with one number of readers."""

    readers: int
    seconds: float
    """Duration of the measurement."""
    rows: ReadRows
    """All reads, including those before the measurement."""
    mb_per_second: float
    half_width_percent: float
    """Half width of the 95 % interval of `mb_per_second`, from windows of time."""
    cpu_seconds_per_gb: float
    short: bool
    """The dataset was read completely before the time was over."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A storage's rate for requests of one size, with `depth` of them in flight."""

    size_bytes: int
    depth: int
    per_second: float
    """Requests/s."""


@dataclass(frozen=True)
class Rates:
    """A storage's rates by size and depth; at least one, of reads or writes."""

    source: str
    """Where they are from, as a phrase."""
    rates: tuple[Rate, ...]
    """Rates of reads."""
    writes: tuple[Rate, ...] = ()

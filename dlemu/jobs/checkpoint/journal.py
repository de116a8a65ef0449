"""The journal that rank 0 saves while checkpoints are written and read, so that even a killed run has a result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dlemu.results.journal import RunJournal


@dataclass(frozen=True, kw_only=True)
class UnderWay:
    """A checkpoint that has begun and not ended."""

    phase: Literal["write", "read"]
    checkpoint: int


@dataclass(frozen=True, kw_only=True)
class CheckpointJournal(RunJournal):
    """Everything that a checkpoint result needs besides the ranks' rows."""

    clock_offsets_ns: tuple[int, ...] = ()
    """What to add to each host's CLOCK_MONOTONIC to get the first host's, in node order; empty for one host."""
    ceiling_gb_per_second: float | None = None
    """Rate at which all ranks together generate content without writing it, 1e9 bytes/s."""
    under_way: UnderWay | None = None
    """The checkpoint that the ranks are writing or reading; None between two checkpoints."""
    complete: tuple[int, ...] = ()
    """Checkpoints that all ranks have written."""
    removed: tuple[int, ...] = ()
    """Those of `complete` that were deleted again under `checkpoint.keep_last`."""
    eviction_seconds: float | None = None
    """Time to evict the files to be read from the page cache."""
    peak_memory_bytes: tuple[int, ...] = ()
    """Each rank's maximum private memory, sampled at the end of each checkpoint."""

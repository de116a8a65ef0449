"""What rank 0 notes while checkpoints are written and read, so that a run that is cut short still shows what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dlemu.results.journal import RunJournal


@dataclass(frozen=True, kw_only=True)
class UnderWay:
    """A checkpoint that was begun."""

    phase: Literal["write", "read"]
    checkpoint: int


@dataclass(frozen=True, kw_only=True)
class CheckpointJournal(RunJournal):
    """Everything that a result of checkpoints needs besides the ranks' rows."""

    clock_offsets_ns: tuple[int, ...] = ()
    """What to add to each host's CLOCK_MONOTONIC to get the first host's, in node order; empty for one host."""
    ceiling_gb_per_second: float | None = None
    """1e9 bytes/s of all ranks that content is made at, without writing it to storage."""
    under_way: UnderWay | None = None
    """What the ranks were at; None between two checkpoints."""
    complete: tuple[int, ...] = ()
    """Checkpoints that were written by all ranks."""
    removed: tuple[int, ...] = ()
    """Of these, those that `checkpoint.keep_last` let go."""
    eviction_seconds: float | None = None
    """How long it took to drop from memory what would be read."""
    peak_memory_bytes: tuple[int, ...] = ()
    """Most memory that each rank had for itself (private pages) at the end of a checkpoint."""

"""What one rank measured of one checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["write", "read"]


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    """One rank's part of one checkpoint, written or read."""

    phase: Phase
    checkpoint: int
    """Its number, from 1."""
    rank: int
    """Of the run."""
    start_ns: int
    """On rank 0's monotonic clock, over which those of other hosts are laid: when the ranks had met."""
    end_ns: int
    """When the rank was done, or with `checkpoint.rank_sync` the last one."""
    bytes: int
    """Of its files, all that they hold."""
    fsync_ns: int = 0
    """Of that time, spent in fsync."""
    files: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) / 1e9

"""What rank 0 notes of a checkpoint inside training; light, for every run has a list of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """One checkpoint as rank 0 saw it, from the first byte to the last rank's sync."""

    epoch: int
    block: int
    bytes: int
    """Bytes of all ranks."""
    started_ns: int
    ended_ns: int
    released_ns: int | None = None
    """When training went on, of an asynchronous one; None: when it had ended."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended_ns - self.started_ns) / 1e9

    @property
    def stall_seconds(self) -> float:
        """How long training stalled for it."""
        return ((self.released_ns or self.ended_ns) - self.started_ns) / 1e9

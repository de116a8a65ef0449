"""The record of a checkpoint inside training. Its own module, as every result imports it: it imports nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """One checkpoint as rank 0 recorded it, from its start until the last rank's fsync."""

    epoch: int
    block: int
    bytes: int
    """Bytes written by all ranks."""
    started_ns: int
    ended_ns: int
    released_ns: int | None = None
    """When training went on, if the checkpoint was asynchronous; None: at `ended_ns`."""

    @property
    def seconds(self) -> float:
        """Duration of the checkpoint."""
        return (self.ended_ns - self.started_ns) / 1e9

    @property
    def writing_seconds(self) -> float:
        """Duration without an asynchronous checkpoint's snapshot, which is no time of the storage."""
        return (self.ended_ns - (self.released_ns or self.started_ns)) / 1e9

    @property
    def stall_seconds(self) -> float:
        """How long training stalled for the checkpoint."""
        return ((self.released_ns or self.ended_ns) - self.started_ns) / 1e9

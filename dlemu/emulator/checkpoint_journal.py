"""What rank 0 notes while checkpoints are written and read, so that a run that is cut short still tells what it did."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from datagen.atomic import write_text
from dlemu.emulator.environment import HostFacts, StorageFacts
from dlemu.emulator.journal import ADVICE

_FILE = "checkpoint_journal.json"


@dataclass(frozen=True, kw_only=True)
class UnderWay:
    """A checkpoint that was begun."""

    phase: Literal["write", "read"]
    checkpoint: int


@dataclass(frozen=True, kw_only=True)
class CheckpointJournal:
    """Everything a result needs besides the ranks' rows."""

    wall_clock_offset_ns: int
    """What to add to rank 0's CLOCK_MONOTONIC to get nanoseconds since 1970 (UTC)."""
    started_ns: int
    """CLOCK_MONOTONIC of rank 0 when the ranks were up."""
    ended_ns: int | None = None
    hosts: tuple[HostFacts, ...] = ()
    """Of each node, in node order."""
    rank_nodes: tuple[int, ...] = ()
    """Index in `hosts` of each rank's node."""
    storage: StorageFacts | None = None
    """Where the checkpoints lie."""
    clock_offsets_ns: tuple[int, ...] = ()
    """What to add to each host's CLOCK_MONOTONIC to get the first host's, in node order; empty for one host."""
    ceiling_gb_per_second: float | None = None
    """1e9 bytes/s of all ranks that content is made at, with nothing to write it to."""
    under_way: UnderWay | None = None
    """What the ranks were at; None between two checkpoints."""
    complete: tuple[int, ...] = ()
    """Checkpoints that were written by all ranks."""
    removed: tuple[int, ...] = ()
    """Of these, those that `checkpoint.keep_last` let go."""
    eviction_seconds: float | None = None
    """How long it took to drop from memory what would be read."""
    requests: tuple[int, ...] = ()
    """What all ranks' requests to an object store came to (`RequestCounts.values`); empty where none were made."""
    peak_memory_bytes: tuple[int, ...] = ()
    """Most memory that each rank had for itself (private pages) at the end of a checkpoint."""
    cpu_seconds: tuple[float, ...] = ()
    """CPU time of each rank in the whole run."""

    def noting(self, **changes: Any) -> CheckpointJournal:
        """Return the journal with something noted."""
        return replace(self, **changes)

    def save(self, folder: str) -> None:
        """Write it by rename; raises SpaceError."""
        write_text(folder, _FILE, msgspec.json.encode(self).decode(), advice=ADVICE)


def read_checkpoint_journal(folder: str) -> CheckpointJournal | None:
    """Return what a run noted before it ended, None if it never came so far."""
    try:
        with open(os.path.join(folder, _FILE), "rb") as lines:
            return msgspec.json.decode(lines.read(), type=CheckpointJournal)
    except (FileNotFoundError, NotADirectoryError):
        return None

"""What rank 0 notes while a run goes on, so that a run that is cut short still tells what it did."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from datagen.atomic import write_text
from dlemu.checkpoints.save import SavedCheckpoint
from dlemu.emulator.environment import HostFacts, StorageFacts
from dlemu.metrics.limit import Scaling

_FILE = "journal.json"
ADVICE = "set output.folder to a folder you may write; the step logs are kept in live/ of the run's folder"
"""What to do when a file of a run can't be written."""


@dataclass(frozen=True, kw_only=True)
class StoppedEarly:
    """Of a run that was asked to end early."""

    steps: int
    """Training steps that each rank took."""
    planned_steps: int


@dataclass(frozen=True, kw_only=True)
class Journal:
    """Everything a result needs besides the step logs."""

    wall_clock_offset_ns: int
    """What to add to rank 0's CLOCK_MONOTONIC to get nanoseconds since 1970 (UTC)."""
    started_ns: int
    """CLOCK_MONOTONIC of rank 0 when the ranks were up and the first epoch had not begun."""
    hosts: tuple[HostFacts, ...] = ()
    """Of each node, in node order."""
    rank_nodes: tuple[int, ...] = ()
    """Index in `hosts` of each rank's node."""
    storage: StorageFacts | None = None
    """Where the dataset lies."""
    ceiling_au_percent: float | None = None
    checkpoints: tuple[SavedCheckpoint, ...] = ()
    eviction_seconds: tuple[float, ...] = ()
    """How long dropping the dataset's pages took, each time."""
    stopped_early: StoppedEarly | None = None
    """None for a run that was not asked to end early."""
    ended_ns: int | None = None
    scaling: Scaling | None = None
    """What more readers got after the run, where that was asked."""
    requests: tuple[int, ...] = ()
    """What all ranks' requests to an object store came to (`RequestCounts.values`); empty where none were made."""
    clock_offsets_ns: tuple[tuple[int, ...], ...] = ()
    """At the start of each epoch: what to add to each host's CLOCK_MONOTONIC to get the first host's, in node order."""
    cpu_seconds: tuple[float, ...] = ()
    """CPU time of each rank with its workers, from the first epoch's start to the end of the last."""

    def noting(self, **changes: Any) -> Journal:
        """Return the journal with something noted."""
        return replace(self, **changes)

    def save(self, folder: str) -> None:
        """Write it by rename; raises SpaceError."""
        write_text(folder, _FILE, msgspec.json.encode(self).decode(), advice=ADVICE)


def read_journal(folder: str) -> Journal | None:
    """Return what a run noted before it ended, None if it never came so far."""
    try:
        with open(os.path.join(folder, _FILE), "rb") as lines:
            return msgspec.json.decode(lines.read(), type=Journal)
    except (FileNotFoundError, NotADirectoryError):
        return None

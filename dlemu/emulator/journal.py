"""What rank 0 notes while a run goes on, so that a run that is cut short still tells what it did."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Self, TypeVar

import msgspec

from datagen.atomic import write_text
from datagen.regular import read_regular
from dlemu.checkpoints.save import SavedCheckpoint
from dlemu.emulator.environment import HostFacts, StorageFacts
from dlemu.metrics.limit import Scaling

ADVICE = "set output.folder to a folder you may write; the step logs are kept in live/ of the run's folder"
"""What to do when a file of a run can't be written."""


@dataclass(frozen=True, kw_only=True)
class StoppedEarly:
    """Of a run that was asked to end early."""

    steps: int
    """Training steps that each rank took."""
    planned_steps: int


@dataclass(frozen=True, kw_only=True)
class RunJournal:
    """What is noted of any run."""

    FILE: ClassVar[str]

    wall_clock_offset_ns: int
    """What to add to rank 0's CLOCK_MONOTONIC to get nanoseconds since 1970 (UTC)."""
    started_ns: int
    """CLOCK_MONOTONIC of rank 0 when the ranks were up and nothing had begun."""
    ended_ns: int | None = None
    hosts: tuple[HostFacts, ...] = ()
    """Of each node, in node order."""
    rank_nodes: tuple[int, ...] = ()
    """Index in `hosts` of each rank's node."""
    storage: StorageFacts | None = None
    """Where the dataset, or the checkpoints, lie."""
    requests: tuple[int, ...] = ()
    """What all ranks' requests to an object store came to (`RequestCounts.values`); empty where none were made."""
    cpu_seconds: tuple[float, ...] = ()
    """CPU time of each rank, with its workers: from the first epoch's start to the end of the last, or in all."""

    @property
    def ended_at(self) -> str | None:
        """When it ended, ISO 8601 with zone."""
        if self.ended_ns is None:
            return None
        seconds = (self.ended_ns + self.wall_clock_offset_ns) / 1e9
        return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(timespec="milliseconds")

    def noting(self, **changes: Any) -> Self:
        """Return the journal with something noted."""
        return replace(self, **changes)

    def save(self, folder: str) -> None:
        """Write it by rename; raises SpaceError."""
        write_text(folder, self.FILE, msgspec.json.encode(self).decode(), advice=ADVICE)


J = TypeVar("J", bound=RunJournal)


def read_journal(folder: str, kind: type[J]) -> J | None:
    """Return what a run noted before it ended, None if it never came so far. Raises OSError, ValueError."""
    try:
        return msgspec.json.decode(read_regular(os.path.join(folder, kind.FILE)), type=kind)
    except (FileNotFoundError, NotADirectoryError):
        return None


@dataclass(frozen=True, kw_only=True)
class CpuApart:
    """CPU seconds of a rank, with its workers, that no reading took."""

    start: float = 0.0
    """Until its loader had started: imports, processes, plans."""
    trials: float = 0.0
    """In the ceiling before the first epoch and in the trial of more readers after the last."""
    checkpoints: float = 0.0
    """Of the threads that made and wrote checkpoints; the only part that `cpu_seconds` has, too."""


@dataclass(frozen=True, kw_only=True)
class Journal(RunJournal):
    """Everything that a result of training needs besides the step logs."""

    FILE = "journal.json"

    ceiling_au_percent: float | None = None
    cpu_apart: tuple[CpuApart, ...] = ()
    """Of each rank."""
    lost_recorders: tuple[int, ...] = ()
    """Nodes whose recorder was gone before its last reading."""
    checkpoints: tuple[SavedCheckpoint, ...] = ()
    eviction_seconds: tuple[float, ...] = ()
    """How long dropping the dataset's pages took, each time."""
    stopped_early: StoppedEarly | None = None
    """None for a run that was not asked to end early."""
    scaling: Scaling | None = None
    """What more readers got after the run, where that was asked."""
    clock_offsets_ns: tuple[tuple[int, ...], ...] = ()
    """At the start of each epoch: what to add to each host's CLOCK_MONOTONIC to get the first host's, in node order."""

"""The journal: what rank 0 notes while a run goes on, so that it is known even if the run is killed."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

import msgspec

from datagen.atomic import write_text
from datagen.regular import read_regular
from dlemu.comm.environment import HostFacts, StorageFacts
from dlemu.results.tables import ADVICE

JOURNAL = "journal.json"


@dataclass(frozen=True, kw_only=True)
class RunJournal:
    """What every kind of run notes."""

    wall_clock_offset_ns: int
    """What to add to rank 0's CLOCK_MONOTONIC to get nanoseconds since 1970 (UTC)."""
    started_ns: int
    """CLOCK_MONOTONIC of rank 0 when all ranks had started, before any work."""
    ended_ns: int | None = None
    hosts: tuple[HostFacts, ...] = ()
    """One per node, in node order."""
    rank_nodes: tuple[int, ...] = ()
    """Index in `hosts` of each rank's node."""
    storage: StorageFacts | None = None
    """Storage of the dataset or of the checkpoints."""
    requests: tuple[int, ...] = ()
    """Counters of all ranks' requests to an object store (`RequestCounts.values`); empty where there were none."""
    lost_recorders: tuple[int, ...] = ()
    """Nodes whose recorder died before its last reading."""
    cpu_seconds: tuple[float, ...] = ()
    """CPU time of each rank with its workers: from the start of the first epoch to the end of the last, or in total."""

    @property
    def ended_at(self) -> str | None:
        """End of the run, ISO 8601 with zone; None before it."""
        if self.ended_ns is None:
            return None
        seconds = (self.ended_ns + self.wall_clock_offset_ns) / 1e9
        return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(timespec="milliseconds")

    def noting(self, **changes: Any) -> Self:
        """Return the journal with these fields set."""
        return replace(self, **changes)

    def save(self, folder: str) -> None:
        """Write it atomically (by rename); raises SpaceError."""
        write_text(folder, JOURNAL, msgspec.json.encode(self).decode(), advice=ADVICE)


J = TypeVar("J", bound=RunJournal)


def read_journal(folder: str, kind: type[J]) -> J | None:
    """Return the journal in a live folder, None if the run had not written one yet. Raises OSError, ValueError."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return msgspec.json.decode(read_regular(os.path.join(folder, JOURNAL)), type=kind)
    return None


def holds_journal(folder: str) -> bool:
    """Return whether a folder has the journal of a run of any kind. Raises OSError; ValueError for a damaged one."""
    return read_journal(folder, RunJournal) is not None

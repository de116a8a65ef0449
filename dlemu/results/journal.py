"""What rank 0 notes while a run goes on, so that a run that is cut short still shows what it did."""

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
OLDER_JOURNALS = ("checkpoint_journal.json",)
"""Names in live folders of older versions."""


@dataclass(frozen=True, kw_only=True)
class RunJournal:
    """What is noted of any run."""

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
    lost_recorders: tuple[int, ...] = ()
    """Nodes whose recorder was gone before its last reading."""
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
        write_text(folder, JOURNAL, msgspec.json.encode(self).decode(), advice=ADVICE)


J = TypeVar("J", bound=RunJournal)


def read_journal(folder: str, kind: type[J]) -> J | None:
    """Return what a run noted before it ended, None if it never came so far. Raises OSError, ValueError."""
    for name in (JOURNAL, *OLDER_JOURNALS):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return msgspec.json.decode(read_regular(os.path.join(folder, name)), type=kind)
    return None


def holds_journal(folder: str) -> bool:
    """Return whether a run of any kind has left a journal. Raises OSError, and ValueError for a damaged one."""
    return read_journal(folder, RunJournal) is not None

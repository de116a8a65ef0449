"""The folder `live/` of a run that is not saved yet, from which the run can be read even if it was killed.

The facts are written before the first step, the journal and the step logs while the run goes on. A run in progress
holds a lock: its folder is not a result yet. `Progress` is how far a run is, for the run's own terminal, for `dlemu
watch` and for callers of the Python API.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

import msgspec

from datagen.atomic import write_text
from datagen.errors import UserError
from datagen.owned import held, is_held
from datagen.regular import read_regular
from dlemu.machine.cgroup_limits import host_memory
from dlemu.machine.environment import HostFacts, StorageFacts
from dlemu.results import ADVICE, FACTS, LIVE, README

T = TypeVar("T")

LOCK = "lock"
"""File that is locked while the run goes on."""


def write_live_facts(folder: str, facts: object, *, advice: str) -> None:
    """Write what is known of a run before its ranks start; raises SpaceError, whose message ends with `advice`."""
    live, command = os.path.join(folder, LIVE), report_command(folder)
    write_text(live, FACTS, msgspec.json.encode(facts).decode(), advice=advice)
    text = f"A run in progress, or one that was killed; then this shows what it had measured:\n{command}\n"
    write_text(live, README, text, advice=advice)


def report_command(folder: str) -> str:
    return f"dlemu report {shlex.quote(os.path.abspath(folder))}"


def going_on(folder: str) -> AbstractContextManager[None]:
    """Mark the run as in progress until this process and all that it forks inside have ended."""
    return held(os.path.join(folder, LIVE, LOCK))


def goes_on(folder: str) -> bool:
    """Return whether the run in the folder is in progress, as far as this host can tell."""
    return is_held(os.path.join(folder, LIVE, LOCK))


def salvaged(folder: str, salvage: Callable[[str], T]) -> T:
    """Return what `salvage` reads from a run's live folder.

    Raises UserError when the run is still in progress, and for a folder that is damaged, or larger than memory.
    """
    if goes_on(folder):
        raise UserError(f"the run in {folder} is still running: wait for it to end, or stop it with Ctrl-C")
    live = os.path.join(folder, LIVE)
    try:
        statuses = [os.stat(os.path.join(live, name)) for name in os.listdir(live)]
    except OSError as error:
        raise UserError(f"{live} can't be read: {error.strerror}; copy the folder again") from error
    try:
        if not all(stat.S_ISREG(status.st_mode) for status in statuses):
            raise UserError(f"{live} holds something that is not a file, and not dlemu's: remove it")
        needed = 2 * sum(status.st_size for status in statuses)  # the logs, and a copy of them in one table
        if needed > host_memory().available_bytes:
            raise UserError(
                f"{live} needs {needed / 2**30:.1f} GiB of memory, more than is free: read it on another host"
            )
        return salvage(live)
    except (LookupError, OSError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise UserError(f"{live} is damaged ({error}): copy the folder again") from error


JOURNAL = "journal.json"


@dataclass(frozen=True, kw_only=True)
class RunJournal:
    """What rank 0 of every kind of run notes while the run goes on."""

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
        return replace(self, **changes)

    def save(self, folder: str) -> None:
        """Write it atomically (by rename); raises SpaceError."""
        write_text(folder, JOURNAL, msgspec.json.encode(self).decode(), advice=ADVICE)


J = TypeVar("J", bound=RunJournal)


def read_journal(folder: str, journal_type: type[J]) -> J | None:
    """Return the journal in a live folder, None if the run has not written it yet. Raises OSError, ValueError."""
    try:
        return msgspec.json.decode(read_regular(os.path.join(folder, JOURNAL)), type=journal_type)
    except (FileNotFoundError, NotADirectoryError):
        return None


@dataclass(frozen=True)
class Figure:
    """A number of a run in progress, with its unit."""

    name: str
    value: float
    unit: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:,.4g} {self.unit}".rstrip()


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is, or the making of a dataset."""

    at: str
    """The current position as text: `epoch 2/5, step 3/20`."""
    done: int = 0
    """Steps, checkpoints or bytes done, by the slowest rank."""
    total: int = 0
    """Steps, checkpoints or bytes of the whole run; 0 where that is not known."""
    au_percent: float | None = None
    """Accelerator utilisation of the epoch so far; None while no step counts, and for jobs without accelerators."""
    mb_per_second: float | None = None
    """1e6 bytes/s that all ranks read or write now."""
    seconds_left: float | None = None
    figures: tuple[Figure, ...] = ()
    """What else the job measures."""

    @property
    def is_over(self) -> bool:
        return 0 < self.total <= self.done

    def __str__(self) -> str:
        text = f"{min(100.0, 100 * self.done / self.total):3.0f} % {self.at}" if self.total else self.at
        if self.au_percent is not None:
            text += f"  AU {self.au_percent:.1f} %".replace(".0 %", " %")
        if self.mb_per_second is not None:
            text += f"  {self.mb_per_second:,.0f} MB/s"
        if self.seconds_left is not None and not self.is_over:
            left = round(self.seconds_left)
            text += f"  {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left"
        return text


def seconds_left(seconds: float, done: float, total: float) -> float | None:
    """Return how long the rest takes at the speed so far; None before there is a speed."""
    return seconds * max(0, total - done) / done if done > 0 and seconds > 0 else None


Follower = Callable[[], Progress | None]
"""Returns how far a run is now, None while no rank has begun; raises OSError where its files are gone."""

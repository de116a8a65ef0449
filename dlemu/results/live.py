"""The folder `live/` of a run that is not saved yet, from which the run can be read even if it was killed.

The facts are written before the first step, the journal (`RunJournal`) and the step logs during the run. A run in
progress holds a lock, and its folder is not a result yet. `Progress` is what a terminal, `dlemu watch` and callers of
the Python API are shown of a run in progress.
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

LOCK = "lock"  # file in live/ that is locked while the run is in progress
JOURNAL = "journal.json"  # file in live/ with the journal

T = TypeVar("T")


def write_live_facts(folder: str, facts: object, *, advice: str) -> None:
    """Write the facts of a run before its ranks start; raises SpaceError, whose message ends with `advice`."""
    live = os.path.join(folder, LIVE)
    write_text(live, FACTS, msgspec.json.encode(facts).decode(), advice=advice)
    text = "A run in progress, or one that was killed; then this shows what it had measured:\n"
    write_text(live, README, f"{text}{report_command(folder)}\n", advice=advice)


def report_command(folder: str) -> str:
    return f"dlemu report {shlex.quote(os.path.abspath(folder))}"


def mark_in_progress(folder: str) -> AbstractContextManager[None]:
    """Mark the run in a folder as in progress, until this process and those that it forks in the context have ended."""
    return held(os.path.join(folder, LIVE, LOCK))


def is_in_progress(folder: str) -> bool:
    """Return whether the run in a folder is in progress; always False for another host's run if locks aren't shared."""
    return is_held(os.path.join(folder, LIVE, LOCK))


def read_live(folder: str, read: Callable[[str], T]) -> T:
    """Return what `read` makes of the live folder of a run that is not saved.

    Raises UserError if the run is still in progress, or if its live folder is damaged or larger than memory.
    """
    if is_in_progress(folder):
        raise UserError(f"the run in {folder} is still running: wait for it to end, or stop it with Ctrl-C")
    live = os.path.join(folder, LIVE)
    try:
        statuses = [os.stat(os.path.join(live, name)) for name in os.listdir(live)]
    except OSError as error:
        raise UserError(f"{live} can't be read: {error.strerror}; copy the folder again") from error
    try:
        if {stat.S_IFMT(status.st_mode) for status in statuses} - {stat.S_IFREG, stat.S_IFDIR}:
            raise UserError(f"{live} holds something that is neither a file nor a folder, and not dlemu's: remove it")
        needed_bytes = 2 * sum(status.st_size for status in statuses)  # the logs, and a copy of them in one table
        if needed_bytes > host_memory().available_bytes:
            raise UserError(
                f"{live} needs {needed_bytes / 2**30:.1f} GiB of memory, more than is free: read it on another host"
            )
        return read(live)
    except (LookupError, OSError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise UserError(f"{live} is damaged ({error}): copy the folder again") from error


@dataclass(frozen=True, kw_only=True)
class RunJournal:
    """Notes of rank 0 during any kind of run. Times are nanoseconds of its CLOCK_MONOTONIC."""

    wall_clock_offset_ns: int
    """Nanoseconds since 1970 (UTC), less rank 0's CLOCK_MONOTONIC."""
    started_ns: int
    """When all ranks had started, before any work."""
    ended_ns: int | None = None
    hosts: tuple[HostFacts, ...] = ()
    """One per node, in node order."""
    rank_nodes: tuple[int, ...] = ()
    """Index in `hosts` of each rank's node."""
    storage: StorageFacts | None = None
    """Storage of the dataset or of the checkpoints."""
    requests: tuple[int, ...] = ()
    """Counters of all ranks' requests to an object store (`RequestCounts.values`); empty without such requests."""
    lost_recorders: tuple[int, ...] = ()
    """Nodes whose recorder died before its last reading."""
    cpu_seconds: tuple[float, ...] = ()
    """CPU time of each rank and its workers, from the start of the first epoch to the end of the last, or in total."""

    @property
    def ended_at(self) -> str | None:
        """End of the run, ISO 8601 with zone; None while it is in progress, and for a killed run."""
        if self.ended_ns is None:
            return None
        seconds = (self.ended_ns + self.wall_clock_offset_ns) / 1e9
        return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(timespec="milliseconds")

    def noting(self, **changes: Any) -> Self:
        return replace(self, **changes)

    def save(self, folder: str) -> None:
        """Write the journal atomically (by rename); raises SpaceError."""
        write_text(folder, JOURNAL, msgspec.json.encode(self).decode(), advice=ADVICE)


J = TypeVar("J", bound=RunJournal)


def read_journal(folder: str, journal_type: type[J]) -> J | None:
    """Return the journal in a live folder, None if the run has not written one yet. Raises OSError, ValueError."""
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
    """The progress of a run, or of the generation of a dataset."""

    at: str
    """The current position as text: `epoch 2/5, step 3/20`."""
    done: int = 0
    """Steps, checkpoints or bytes that the slowest rank has completed."""
    total: int = 0
    """Steps, checkpoints or bytes of the whole run; 0 if unknown."""
    au_percent: float | None = None
    """Accelerator utilisation of the epoch so far; None before a step counts, and for jobs without accelerators."""
    mb_per_second: float | None = None
    """Current rate of all ranks together, reading or writing, 1e6 bytes/s."""
    seconds_left: float | None = None
    figures: tuple[Figure, ...] = ()
    """Further numbers of the kind of job."""

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
            seconds = round(self.seconds_left)
            text += f"  {seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"
        return text


def seconds_left(seconds: float, done: float, total: float) -> float | None:
    """Return the remaining time at the mean speed so far; None before anything is done."""
    return seconds * max(0, total - done) / done if done > 0 and seconds > 0 else None


Follower = Callable[[], Progress | None]
"""A function that returns a run's progress, or None before its first rank begins; OSError if its files are gone."""

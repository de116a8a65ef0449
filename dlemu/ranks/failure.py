"""How ranks and other worker processes end, and which of several failures is the cause to show to the user."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from datagen.errors import DlemuError, UserError, host_failure
from dlemu.machine.cgroup_limits import out_of_memory_hint
from dlemu.ranks.comm import PeerLostError
from dlemu.ranks.process_control import Interrupted, stands_still


@dataclass(frozen=True)
class Role:
    """How messages name a kind of process: ranks, or a job's workers."""

    name: str  # noun, before the process's number: 'rank'
    remedy: str
    """What to do when memory ran out: 'use fewer ...'."""


LATE = "Late"  # `Failure.kind` of a process that still runs after the time it was given
INTERRUPTED = Interrupted.__name__  # `Failure.kind` of a process that a signal has asked to stop
RANK = Role("rank", "use fewer ranks, workers or prefetches")


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a rank or a worker failed."""

    rank: int
    """The process's number among those of its role."""
    kind: str
    """The exception's class name (`Interrupted`, ...), or `Exit`, `Signal`, `Stopped`, `Late`, `Stuck` without one."""
    message: str
    status: int
    """The exit status that a run which failed for this reason should end with."""
    at_ns: int
    """CLOCK_MONOTONIC when the failure was noticed."""
    echo: bool = False
    """Whether this failure only reports that another rank was lost."""
    traceback: str = ""


@dataclass(frozen=True)
class RankEnd:
    """How one rank's process ended."""

    rank: int
    status: int  # exit status; 128 + signal if a signal ended the process
    failure: Failure | None
    result: Any = None  # what its function returned


def first_failure(ends: Iterable[RankEnd]) -> Failure | None:
    """Return the cause of a failed run: the earliest failure that echoes no other, else the earliest, else None."""
    failures = [end.failure for end in ends if end.failure is not None]
    return min(failures, key=lambda failure: (failure.echo, failure.at_ns), default=None)


def describe(rank: int, error: BaseException, role: Role = RANK) -> Failure:
    who = f"{role.name} {rank}"
    text = ""
    if isinstance(error, DlemuError):
        message, status = str(error), error.exit_status
    elif failed := host_failure(error):
        message, status = f"{who}: {failed}", UserError.exit_status
    elif isinstance(error, Interrupted):
        message = f"{who} was interrupted by {signal.Signals(error.signal_number).name}"
        status = error.exit_status
    elif isinstance(error, SystemExit) and isinstance(error.code, int):
        message, status = f"{who} ended with exit status {error.code}", error.code
    else:
        message, status = f"{who}: {type(error).__name__}: {error}", DlemuError.exit_status
        text = "".join(traceback.format_exception(error))
    return Failure(
        rank=rank,
        kind=type(error).__name__,
        message=message,
        status=status,
        at_ns=time.monotonic_ns(),
        echo=isinstance(error, PeerLostError),
        traceback=text,
    )


def killed_by(who: str, pid: int, signal_number: int, remedy: str) -> str:
    """Return the sentence on a process that a signal ended before the process could report a failure itself."""
    hint = ""
    if signal_number == signal.SIGKILL:
        hint = f"; {out_of_memory_hint()}, or {remedy}"
    elif signal_number == signal.SIGBUS:
        hint = "; a full /dev/shm does this (see `df /dev/shm`), or a mapped file of the dataset that was truncated"
    return f"{who} (process {pid}) was killed by {signal.Signals(signal_number).name}{hint}"


def overdue(who: str, pid: int, seconds: float, *, stopped: bool = False) -> str:
    """Return the sentence on a process that did not end in time, or was `stopped` for too long."""
    if stopped or stands_still(pid):
        return (
            f"{who} (process {pid}) was stopped from outside (SIGSTOP, a debugger, a batch system that suspends "
            f"jobs) and did not continue within {seconds:g} s"
        )
    return (
        f"{who} (process {pid}) did not end within {seconds:g} s: check the storage (`dmesg`, mount state), and "
        "what else runs on this host (`top`)"
    )

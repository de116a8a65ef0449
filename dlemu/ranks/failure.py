"""How ranks and workers end: describes failures, chooses the one to show as the cause, and ends the other processes."""

from __future__ import annotations

import math
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from datagen.errors import DlemuError, UserError, host_failure
from dlemu.machine.cgroup_limits import out_of_memory_hint
from dlemu.ranks.comm import PeerLostError
from dlemu.ranks.process_control import Interrupted, is_stopped


@dataclass(frozen=True)
class Role:
    """The words by which messages name a kind of process, such as ranks or a job's workers."""

    name: str  # noun before the process's number, such as 'rank'
    remedy: str  # advice when memory ran out: 'use fewer ...'


LATE = "Late"  # `Failure.kind` of a process that still runs after its time limit
INTERRUPTED = Interrupted.__name__  # `Failure.kind` of a process that was interrupted by a signal
RANK = Role("rank", "use fewer ranks, workers or prefetches")
_KILLED = 128 + signal.SIGKILL  # exit status
_NOTICE_SHARE = 0.2  # share of the grace in which ranks may notice a failure by themselves, before they get SIGTERM
_GIVE_UP = 0  # in `Ending._due`: key for the step after SIGKILL; the other keys are signal numbers
_NO_RANK = -1  # in `Ending.failures`: key for an interruption of the process that started the ranks


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a rank or a worker failed."""

    rank: int  # the process's number among those of its role
    kind: str  # name of the exception's class; without an exception: `Exit`, `Signal`, `Stopped`, `Late` or `Stuck`
    message: str
    status: int  # exit status of the run if this is the cause
    at_ns: int  # CLOCK_MONOTONIC when the failure was noticed
    echo: bool = False  # whether it only follows from the failure of another rank
    traceback: str = ""


@dataclass(frozen=True)
class RankEnd:
    """How one rank's process ended."""

    rank: int
    status: int  # exit status; 128 + signal if a signal ended the process
    failure: Failure | None
    result: Any = None  # return value of the rank's function


def first_failure(ends: Iterable[RankEnd]) -> Failure | None:
    """Return the cause of a failed run: the earliest failure, echoes last; None if no rank failed."""
    failures = [end.failure for end in ends if end.failure is not None]
    return min(failures, key=lambda failure: (failure.echo, failure.at_ns), default=None)


def describe(rank: int, error: BaseException, role: Role = RANK) -> Failure:
    """Return the failure of a process that an exception ended."""
    name = f"{role.name} {rank}"
    traceback_text = ""
    if isinstance(error, DlemuError):
        message, status = str(error), error.exit_status
    elif reason := host_failure(error):
        message, status = f"{name}: {reason}", UserError.exit_status
    elif isinstance(error, Interrupted):
        message, status = f"{name} was {error}", error.exit_status
    elif isinstance(error, SystemExit) and isinstance(error.code, int):
        message, status = f"{name} ended with exit status {error.code}", error.code
    else:
        message, status = f"{name}: {type(error).__name__}: {error}", DlemuError.exit_status
        traceback_text = "".join(traceback.format_exception(error))
    return Failure(
        rank=rank,
        kind=type(error).__name__,
        message=message,
        status=status,
        at_ns=time.monotonic_ns(),
        echo=isinstance(error, PeerLostError),
        traceback=traceback_text,
    )


def killed_by(name: str, pid: int, signal_number: int, remedy: str) -> str:
    """Return the message about a process that a signal killed before it could report a failure itself."""
    hint = ""
    if signal_number == signal.SIGKILL:
        hint = f"; {out_of_memory_hint()}, or {remedy}"
    elif signal_number == signal.SIGBUS:
        hint = "; a full /dev/shm does this (see `df /dev/shm`), or a mapped file of the dataset that was truncated"
    return f"{name} (process {pid}) was killed by {signal.Signals(signal_number).name}{hint}"


def overdue(name: str, pid: int, seconds: float, *, stopped: bool = False) -> str:
    """Return the message about a process that did not end in time, or that was `stopped` for too long."""
    if stopped or is_stopped(pid):
        return (
            f"{name} (process {pid}) was stopped from outside (SIGSTOP, a debugger, a batch system that suspends "
            f"jobs) and did not continue within {seconds:g} s"
        )
    return (
        f"{name} (process {pid}) did not end within {seconds:g} s: check the storage (`dmesg`, mount state), and "
        "what else runs on this host (`top`)"
    )


@dataclass(kw_only=True)
class Ending:
    """Decides when ranks get SIGTERM and SIGKILL, and records how each ended. The caller passes in events and the time.

    With a grace of 5 s, this happens to the ranks that still run, in seconds after the first failure:
    0 s: they may notice the failure by themselves; after an interruption, they get SIGTERM at once
    1 s: they get SIGTERM
    5 s: they get SIGKILL
    10 s: they are blocked in the kernel, and are given up
    A rank that is stopped (SIGSTOP) for `timeout_seconds`, or that still runs after `most_seconds`, has failed.
    """

    give_up_seconds: ClassVar[float] = 5.0  # freeing a killed rank's memory takes the kernel a while
    grace_seconds: float
    timeout_seconds: float = math.inf
    most_seconds: float = math.inf
    begin_ns: int = field(default_factory=time.monotonic_ns)
    role: Role = RANK
    success_statuses: Sequence[int] = ()  # of processes that execute another program; empty for forked ranks, with 0
    running: dict[int, int] = field(default_factory=dict)  # process id -> rank
    ends: dict[int, RankEnd] = field(default_factory=dict)  # by rank
    failures: dict[int, Failure] = field(default_factory=dict)  # by rank; after the first, all ranks are being ended
    _stopped: dict[int, float] = field(default_factory=dict)  # id of a stopped process -> its deadline to continue, ns
    _due: dict[int, float] = field(default_factory=dict)  # signal to send, or _GIVE_UP -> time, ns
    _signalled: set[tuple[int, int]] = field(default_factory=set)  # (process id, signal that was sent)

    @property
    def due_ns(self) -> float:
        """Time to call `step` next, in ns; infinite while nothing is due."""
        return min(self.begin_ns + self.most_seconds * 1e9, *self._due.values(), *self._stopped.values(), math.inf)

    def record_failure(self, failure: Failure, now_ns: int) -> None:
        """Record a rank's failure, and begin to end all ranks. Of a rank's failures, only the first counts."""
        if not self.failures:
            self._due[signal.SIGTERM] = now_ns + _NOTICE_SHARE * self.grace_seconds * 1e9
            self._due[signal.SIGKILL] = now_ns + self.grace_seconds * 1e9
        self.failures.setdefault(failure.rank, failure)

    def record_interruption(self, signal_number: int, now_ns: int) -> None:
        """Record a signal that requests the end of the run; a second one makes SIGKILL due at once."""
        if _NO_RANK not in self.failures:
            self.record_failure(_interrupted(_NO_RANK, signal_number, now_ns, echo=bool(self.failures)), now_ns)
            self._due[signal.SIGTERM] = now_ns
        elif signal.SIGKILL in self._due:
            self._due[signal.SIGKILL] = now_ns

    def record_stop(self, process: int, now_ns: int) -> None:
        self._stopped.setdefault(process, now_ns + self.timeout_seconds * 1e9)

    def record_continuation(self, process: int) -> None:
        self._stopped.pop(process, None)

    def record_end(self, process: int, code: int, now_ns: int) -> None:
        """Record that a process ended; `code` is its exit status, or minus the signal that ended it."""
        self._stopped.pop(process, None)
        failure = self._explain(process, code, now_ns)
        rank = self.running.pop(process)
        if failure is not None:
            self.record_failure(failure, now_ns)
        self.ends[rank] = RankEnd(rank=rank, status=0 if failure is None else failure.status, failure=failure)

    def step(self, now_ns: int, send: Callable[[int, int], bool]) -> None:
        """Do what is due by now; `send(process, signal)` sends a signal, and returns whether the process existed."""
        for process in [process for process, due_ns in self._stopped.items() if now_ns >= due_ns]:
            del self._stopped[process]
            message = overdue(self._name(process), process, self.timeout_seconds, stopped=True)
            self.record_failure(self._failure(process, "Stopped", message, now_ns), now_ns)
        if now_ns >= self.begin_ns + self.most_seconds * 1e9:
            for process in self.running:
                message = overdue(self._name(process), process, self.most_seconds)
                self.record_failure(self._failure(process, LATE, message, now_ns), now_ns)
            self.most_seconds = math.inf
        for number in [number for number, due_ns in self._due.items() if now_ns >= due_ns]:
            del self._due[number]
            if number == _GIVE_UP:
                self._give_up(now_ns)
            else:
                self._signalled |= {(process, number) for process in self.running if send(process, number)}
            if number == signal.SIGKILL:
                self._due[_GIVE_UP] = now_ns + self.give_up_seconds * 1e9

    def _give_up(self, now_ns: int) -> None:
        for process, rank in self.running.items():
            message = (
                f"{self._name(process)} (process {process}) was killed but does not end: it is blocked in the kernel, "
                "as in a read from hung storage; see `dmesg` and the state of the file system"
            )
            failure = self.failures.get(rank) or self._failure(process, "Stuck", message, now_ns, _KILLED)
            self.ends[rank] = RankEnd(rank=rank, status=failure.status, failure=failure)
        self.running.clear()

    def _explain(self, process: int, code: int, now_ns: int) -> Failure | None:
        """Return why a process failed, None if it succeeded. It is an echo if the process only obeyed our SIGTERM."""
        rank = self.running[process]
        name = self._name(process)
        reported = self.failures.get(rank)
        # Whether the process may have ended because of our SIGTERM, rather than by a failure of its own.
        may_obey = code in (0, -signal.SIGTERM) if reported is None else reported.echo or reported.kind == INTERRUPTED
        was_killed = (process, signal.SIGKILL) in self._signalled
        interruption = self.failures.get(_NO_RANK)
        if interruption is not None:
            has_own_status = self.success_statuses and code >= 0  # another program, which has handled the signal
            if may_obey or has_own_status or was_killed:
                return replace(interruption, rank=rank)
        obeyed = may_obey and (process, signal.SIGTERM) in self._signalled
        if reported is not None:
            return replace(reported, echo=reported.echo or obeyed)
        if was_killed:
            message = f"{name} (process {process}) did not stop within {self.grace_seconds:g} s and was killed"
            return self._failure(process, "Stuck", message, now_ns, _KILLED)
        if code < 0:
            if obeyed:
                return _interrupted(rank, signal.SIGTERM, now_ns, echo=True)
            message = killed_by(name, process, -code, self.role.remedy)
            return self._failure(process, "Signal", message, now_ns, 128 - code)
        if code in (self.success_statuses or (0,)):
            return None
        return self._failure(process, "Exit", f"{name} ended with exit status {code}", now_ns, code)

    def _name(self, process: int) -> str:
        return f"{self.role.name} {self.running[process]}"

    def _failure(self, pid: int, kind: str, message: str, now_ns: int, status: int = DlemuError.exit_status) -> Failure:
        """Return the failure of a process that can't report it itself; "Stuck" is an echo of another rank's failure."""
        rank = self.running[pid]
        return Failure(rank=rank, kind=kind, message=message, status=status, at_ns=now_ns, echo=kind == "Stuck")


def _interrupted(rank: int, signal_number: int, at_ns: int, *, echo: bool) -> Failure:
    name = "Ctrl-C (SIGINT)" if signal_number == signal.SIGINT else signal.Signals(signal_number).name
    message = f"interrupted by {name}"
    return Failure(rank=rank, kind=INTERRUPTED, message=message, status=128 + signal_number, at_ns=at_ns, echo=echo)

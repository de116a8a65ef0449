"""The parent's side: wait for forked ranks without polling, and bring all of them to an end when one fails.

Nothing may outlive a run: what ended ranks left behind is found and ended too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import select
import signal
import socket
import time

import psutil

from dlemu.comm.comm_base import Interrupted
from dlemu.comm.failure import Failure, RankEnd, exited, interrupted, killed, stuck, unkillable

_NOTICE_SHARE = 0.2  # of the grace: ranks first get the time to notice the loss by themselves, then SIGTERM
_LONGEST_REPORT_BYTES = 1 << 20
_LEAST_GIVE_UP_SECONDS = 2.0
_LOOK_AGAIN_MILLISECONDS = 50  # a process further down is adopted only after the one above it has ended


class Supervisor:
    """Waits for the ranks of one run.

    `reports` delivers one `Failure` in JSON per datagram; `wakeups` a byte for each signal this process got
    (signal.set_wakeup_fd), SIGCHLD among them.
    """

    def __init__(self, reports: socket.socket, wakeups: socket.socket, grace_seconds: float) -> None:
        self._running: dict[int, int] = {}
        self._processes: dict[int, int] = {}
        self._reports, self._wakeups = reports, wakeups
        self._grace_seconds = grace_seconds
        self._ends: dict[int, RankEnd] = {}
        self._failures: dict[int, Failure] = {}
        self._interruption: Failure | None = None
        self._terminated: set[int] = set()
        self._killed: set[int] = set()
        self._ending = False
        self._terminate_seconds = self._kill_seconds = self._give_up_seconds = math.inf

    def add(self, process: int, rank: int) -> None:
        """Take charge of a process that was just forked."""
        self._running[process] = rank
        self._processes[rank] = process

    def wait(self) -> list[RankEnd]:
        """Return how each rank ended, in rank order, once all of them have."""
        poll = select.poll()
        poll.register(self._reports, select.POLLIN)
        poll.register(self._wakeups, select.POLLIN)
        while self._running:
            poll.poll(self._milliseconds_to_next_step())
            self._take_signals()
            self._take_reports()
            self._reap()
            self._step()
        return [self._ends[rank] for rank in sorted(self._ends)]

    def end(self) -> None:
        """Kill and reap every rank that still runs: the way out when this process itself failed."""
        for process in self._running:
            _send(process, signal.SIGKILL)
        for process in self._running:
            os.waitpid(process, 0)
        self._running.clear()

    def _take_reports(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                text = self._reports.recv(_LONGEST_REPORT_BYTES, socket.MSG_DONTWAIT)
                failure = Failure.from_json(text.decode())
                self._failures[failure.rank] = failure
                self._start_ending()

    def _take_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in self._wakeups.recv(4096, socket.MSG_DONTWAIT):
                if number != signal.SIGCHLD:
                    self._interrupt(number)

    def _interrupt(self, signal_number: int) -> None:
        now = time.monotonic()
        if self._interruption is not None:
            self._kill_seconds = min(self._kill_seconds, now)  # asked a second time: no more grace
            return
        self._interruption = interrupted(-1, signal_number, time.monotonic_ns(), echo=self._ending)
        self._start_ending()
        self._terminate_seconds = min(self._terminate_seconds, now)

    def _start_ending(self) -> None:
        if not self._ending:
            self._ending = True
            now = time.monotonic()
            self._terminate_seconds = now + _NOTICE_SHARE * self._grace_seconds
            self._kill_seconds = now + self._grace_seconds

    def _reap(self) -> None:
        ended = {}
        for process in list(self._running):
            waited, wait_status = os.waitpid(process, os.WNOHANG)
            if waited == process:
                ended[self._running.pop(process)] = os.waitstatus_to_exitcode(wait_status)
        if ended:
            self._take_reports()  # what a rank said before it ended is in the queue now
        for rank, code in ended.items():
            self._note_end(rank, code)

    def _note_end(self, rank: int, code: int) -> None:
        """Note how a rank ended; `code` is its exit status, or minus the signal that ended it."""
        failure = self._explain(rank, code)
        status = 128 - code if code < 0 else code
        if failure is not None:
            status = failure.status
            self._start_ending()
        self._ends[rank] = RankEnd(rank=rank, status=status, signal=max(-code, 0), failure=failure)

    def _explain(self, rank: int, code: int) -> Failure | None:
        own = self._failures.get(rank)
        stopped = code in (0, -signal.SIGTERM) if own is None else own.echo or own.kind == Interrupted.__name__
        process, now_ns = self._processes[rank], time.monotonic_ns()
        if self._interruption is not None and (stopped or process in self._killed):
            return dataclasses.replace(self._interruption, rank=rank)
        if own is not None:
            return dataclasses.replace(own, echo=own.echo or (stopped and process in self._terminated))
        if process in self._killed:
            return stuck(rank, process, self._grace_seconds, now_ns)
        if process in self._terminated and code == -signal.SIGTERM:
            return interrupted(rank, signal.SIGTERM, now_ns, echo=True)
        if code < 0:
            return killed(rank, process, -code, now_ns)
        return exited(rank, code, now_ns) if code > 0 else None

    def _step(self) -> None:
        """Take the steps of the end that are due."""
        now = time.monotonic()
        if now >= self._terminate_seconds:
            self._terminate_seconds = math.inf
            self._terminated |= self._signal_all(signal.SIGTERM)
        if now >= self._kill_seconds:
            self._kill_seconds = math.inf
            self._give_up_seconds = now + give_up_seconds(self._grace_seconds)
            self._killed |= self._signal_all(signal.SIGKILL)
        if now >= self._give_up_seconds:
            self._give_up()

    def _give_up(self) -> None:
        for process, rank in self._running.items():
            failure = self._failures.get(rank, unkillable(rank, process, time.monotonic_ns()))
            self._ends[rank] = RankEnd(rank=rank, status=failure.status, signal=signal.SIGKILL, failure=failure)
        self._running.clear()

    def _signal_all(self, signal_number: int) -> set[int]:
        return {process for process in self._running if _send(process, signal_number)}

    def _milliseconds_to_next_step(self) -> int | None:
        due = min(self._terminate_seconds, self._kill_seconds, self._give_up_seconds)
        return None if due == math.inf else max(math.ceil((due - time.monotonic()) * 1000), 0)


def _send(process: int, signal_number: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal_number)
        return True
    return False


def children_of_this_process() -> frozenset[int]:
    """Return the process ids of the direct children."""
    return frozenset(child.pid for child in psutil.Process().children())


def end_adopted(known: frozenset[int], wakeups: socket.socket, grace_seconds: float) -> int:
    """End every descendant of this process that does not descend from `known`; return how many there were.

    They get SIGTERM, and SIGKILL after the grace; those that are about to end by themselves (a resource tracker
    that cleans up when its last user is gone ignores SIGTERM) have that time to do so. `wakeups` gets a byte for each
    SIGCHLD. This process must be the one that adopts orphans (`adopt_orphans`).
    """
    kill_seconds = time.monotonic() + grace_seconds
    signalled: set[int] = set()
    while adopted := [child for child in psutil.Process().children() if child.pid not in known]:
        for process in [*adopted, *_below(adopted)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                if time.monotonic() >= kill_seconds:
                    process.send_signal(signal.SIGKILL)
                elif process.pid not in signalled:
                    process.send_signal(signal.SIGTERM)
            signalled.add(process.pid)
        reaped = [child for child in adopted if _reap(child)]
        if not reaped and time.monotonic() >= kill_seconds + give_up_seconds(grace_seconds):
            break
        if not reaped:
            select.select([wakeups], [], [], _LOOK_AGAIN_MILLISECONDS / 1000)
            with contextlib.suppress(BlockingIOError):
                wakeups.recv(4096, socket.MSG_DONTWAIT)
    return len(signalled)


def give_up_seconds(grace_seconds: float) -> float:
    """Return how long to wait for the end of a killed process.

    A process that waits in the kernel for a storage that hangs cannot be killed, and must not hold the rest.
    """
    return max(grace_seconds, _LEAST_GIVE_UP_SECONDS)


def _below(processes: list[psutil.Process]) -> list[psutil.Process]:
    descendants = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants += process.children(recursive=True)
    return descendants


def _reap(child: psutil.Process) -> bool:
    """Reap a child if it has ended; what it leaves is adopted by then, so the next look finds it."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(child.pid, os.WNOHANG)[0] != 0
    return True

"""The parent's side: wait for forked ranks without polling, and bring all of them to an end when one fails."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import select
import signal
import socket
import time

from dlemu.comm.comm_base import Interrupted
from dlemu.comm.descendants import give_up_seconds
from dlemu.comm.failure import Failure, RankEnd, exited, interrupted, killed, stuck, unkillable

_NOTICE_SHARE = 0.2  # of the grace: ranks first get the time to notice the loss by themselves, then SIGTERM
_LONGEST_REPORT_BYTES = 1 << 20


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
        self._told: set[int] = set()
        self._killed: set[int] = set()
        self._ending = False
        self._tell_seconds = self._kill_seconds = self._give_up_seconds = math.inf

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
            self._hear_signals()
            self._hear_reports()
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

    def _hear_reports(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                text = self._reports.recv(_LONGEST_REPORT_BYTES, socket.MSG_DONTWAIT)
                failure = Failure.from_json(text.decode())
                self._failures[failure.rank] = failure
                self._begin_the_end()

    def _hear_signals(self) -> None:
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
        self._begin_the_end()
        self._tell_seconds = min(self._tell_seconds, now)

    def _begin_the_end(self) -> None:
        if not self._ending:
            self._ending = True
            now = time.monotonic()
            self._tell_seconds = now + _NOTICE_SHARE * self._grace_seconds
            self._kill_seconds = now + self._grace_seconds

    def _reap(self) -> None:
        ended = {}
        for process in list(self._running):
            found, wait_status = os.waitpid(process, os.WNOHANG)
            if found == process:
                ended[self._running.pop(process)] = os.waitstatus_to_exitcode(wait_status)
        if ended:
            self._hear_reports()  # what a rank said before it ended is in the queue now
        for rank, code in ended.items():
            self._judge(rank, code)

    def _judge(self, rank: int, code: int) -> None:
        """Note how a rank ended; `code` is its exit status, or minus the signal that ended it."""
        failure = self._explain(rank, code)
        status = 128 - code if code < 0 else code
        if failure is not None:
            status = failure.status
            self._begin_the_end()
        self._ends[rank] = RankEnd(rank=rank, status=status, signal=max(-code, 0), failure=failure)

    def _explain(self, rank: int, code: int) -> Failure | None:
        own = self._failures.get(rank)
        stopped = code in (0, -signal.SIGTERM) if own is None else own.echo or own.kind == Interrupted.__name__
        process, now_ns = self._processes[rank], time.monotonic_ns()
        if self._interruption is not None and (stopped or process in self._killed):
            return dataclasses.replace(self._interruption, rank=rank)
        if own is not None:
            return dataclasses.replace(own, echo=own.echo or (stopped and process in self._told))
        if process in self._killed:
            return stuck(rank, process, self._grace_seconds, now_ns)
        if process in self._told and code == -signal.SIGTERM:
            return interrupted(rank, signal.SIGTERM, now_ns, echo=True)
        if code < 0:
            return killed(rank, process, -code, now_ns)
        return exited(rank, code, now_ns) if code > 0 else None

    def _step(self) -> None:
        """Take the steps of the end that are due."""
        now = time.monotonic()
        if now >= self._tell_seconds:
            self._tell_seconds = math.inf
            self._told |= self._signal_all(signal.SIGTERM)
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
        due = min(self._tell_seconds, self._kill_seconds, self._give_up_seconds)
        return None if due == math.inf else max(math.ceil((due - time.monotonic()) * 1000), 0)


def _send(process: int, signal_number: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal_number)
        return True
    return False

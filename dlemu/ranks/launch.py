"""Forks ranks or workers, and waits until they and all their descendants have ended.

The parent waits without polling. When a rank fails, the parent ends the others, and all processes that ranks have left.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import pickle
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any, TypeVar

import psutil

from datagen.errors import DlemuError, SpaceError, UserError
from dlemu.ranks import process_control
from dlemu.ranks.comm import Comm, Connection, HostRanks, PeerLostError, connected
from dlemu.ranks.failure import INTERRUPTED, RANK, Ending, Failure, RankEnd, Role, describe, first_failure
from dlemu.ranks.launcher import LedRanks
from dlemu.ranks.process_control import Interrupted, die_with_parent

_ADOPTED_POLL_SECONDS = 0.02  # interval of looking for adopted children: no signal tells that an orphan was adopted
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TICK_SECONDS = 0.5  # interval of calls of `on_tick`: often enough for a progress line

Order = TypeVar("Order")
Result = TypeVar("Result")


def run_ranks(
    ranks: int | HostRanks,
    main: Callable[[Comm], object],
    *,
    role: Role = RANK,
    timeout_seconds: float,
    grace_seconds: float = 5.0,  # time after a failure for the other ranks to notice it and clean up, before SIGKILL
    most_seconds: float = math.inf,
    success_statuses: Sequence[int] = (),
    on_tick: Callable[[], object] = lambda: None,
) -> list[RankEnd]:
    """Run `main(comm)` in `ranks` forked processes and return how each of them ended, in rank order.

    The `result` of an end is the pickled return value of `main`. An exception or a signal is a failure, and ends the
    other ranks as `Ending` describes (SIGTERM raises `Interrupted` in them once). Ctrl-C, SIGTERM and SIGHUP to this
    process stop the ranks and are failures of kind `Interrupted` with status 130, 143 or 129. `first_failure(ends)`
    picks the cause. If `main` executes another program, `success_statuses` are the exit statuses that mean success.
    `on_tick` is called every TICK_SECONDS; its exceptions end the ranks and are raised here.

    Call this from the main thread, after the imports that ranks share. No child that appears meanwhile outlives the
    call. Raises SpaceError if the system can't start that many processes.
    """
    ranks = HostRanks(members=range(ranks), size=ranks) if isinstance(ranks, int) else ranks
    ending = Ending(
        grace_seconds=grace_seconds,
        timeout_seconds=timeout_seconds,
        most_seconds=most_seconds,
        role=role,
        success_statuses=success_statuses,
    )
    earlier_children = _children()
    with contextlib.ExitStack() as stack:  # `callback(change, change(new))` changes now, and back when the stack exits
        reports, sender = map(stack.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        reports.setblocking(False)
        wakeups, waker = map(stack.enter_context, socket.socketpair())
        waker.setblocking(False)
        for number in (*_STOP_SIGNALS, signal.SIGCHLD):
            if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGCHLD:  # `nohup` ignores SIGHUP
                stack.callback(signal.signal, number, signal.signal(number, process_control.ignore))
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False))
        stack.callback(process_control.adopt_orphans, process_control.adopt_orphans(True))
        stack.callback(end_adopted, earlier_children, grace_seconds)
        supervisor = _Supervisor(main, ranks, ending, reports, sender, wakeups, waker)
        stack.callback(supervisor.end)
        supervisor.start(stack)
        return supervisor.wait(on_tick)


def run_crew(
    work: Callable[[Comm, Order], Result],
    orders: Sequence[Order],
    role: Role,
    *,
    timeout_seconds: float,
    most_seconds: float = math.inf,
) -> list[Result]:
    """Run `work(comm, order)` in a forked worker per order; return the results in order, or raise the first failure."""
    parent = os.getpid()

    def run(comm: Comm) -> Result:
        die_with_parent(parent)  # by SIGKILL, which ends even a stopped process: workers have nothing to save
        process_control.name_process(f"dlemu-{role.name}")
        return work(comm, orders[comm.rank])

    ends = run_ranks(
        len(orders), run, role=role, timeout_seconds=timeout_seconds, grace_seconds=2.0, most_seconds=most_seconds
    )
    failure = first_failure(ends)
    if failure is None:
        return [end.result for end in ends]
    if failure.kind == INTERRUPTED:
        raise Interrupted(failure.status - 128)
    error = (UserError if failure.status == UserError.exit_status else DlemuError)(failure.message)
    if failure.traceback:
        error.add_note(failure.traceback.rstrip())
    raise error


@dataclass
class _Supervisor:
    """Forks the ranks of one run, waits for them without polling, and passes events to an `Ending`."""

    main: Callable[[Comm], object]
    ranks: HostRanks
    ending: Ending
    reports: socket.socket  # receives from `sender`
    sender: socket.socket  # sends memory files (datagrams are too small) with a pickled Failure, or (rank, result)
    wakeups: socket.socket  # receives from `waker`
    waker: socket.socket  # the interpreter writes the number of each signal to this process there
    process: int = field(default_factory=os.getpid)
    results: dict[int, Any] = field(default_factory=dict)  # by rank
    link: Connection | None = None  # to the first rank, for which the leader calls the other hosts

    def __post_init__(self) -> None:
        self.launcher = self.ranks.launcher if isinstance(self.ranks, LedRanks) else None

    def start(self, stack: contextlib.ExitStack) -> None:
        """Fork all ranks, with signals blocked until each has its handlers. `stack` cleans up. Raises SpaceError."""
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOP_SIGNALS, signal.SIGCHLD))
        was_frozen = gc.get_freeze_count() > 0
        gc.freeze()  # forked processes share pages, to which the collector would write
        comms: list[Comm] = []
        try:
            process_control.flush_output(0.0)  # else the forked processes would print the buffered output again
            comms, self.link = connected(self.ranks, self.ending.timeout_seconds)
            if self.link is not None and self.launcher is not None:
                stack.callback(self.link.close)
                stack.callback(setattr, self.launcher, "pause", self.launcher.pause)
                self.launcher.pause = self.pause
            for local_rank, rank in enumerate(self.ranks.members):
                process = process_control.fork_process(partial(self._run, comms, local_rank, rank))
                self.ending.running[process] = rank
        except OSError as error:
            raise SpaceError(
                f"not every {self.ending.role.name} could be started ({error}): {self.ending.role.remedy}, or raise "
                "the limits on processes and files (`ulimit -u`, `ulimit -n`) or memory"
            ) from error
        finally:
            for comm in comms:
                comm.close()
            if not was_frozen:
                gc.unfreeze()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def wait(self, on_tick: Callable[[], object]) -> list[RankEnd]:
        """Wait until all ranks have ended, and return how, in rank order. Meanwhile call `on_tick` each half second."""
        tick_ns = time.monotonic_ns() + TICK_SECONDS * 1e9
        while self.ending.running:
            self._wait_once(tick_ns)
            if time.monotonic_ns() >= tick_ns:
                on_tick()
                tick_ns = time.monotonic_ns() + TICK_SECONDS * 1e9
        return [replace(self.ending.ends[rank], result=self.results.get(rank)) for rank in sorted(self.ending.ends)]

    def pause(self, seconds: float) -> None:
        """Sleep, and then handle events. Raises PeerLostError when the ranks are being ended."""
        time.sleep(seconds)
        self._handle_events()
        if self.ending.failures or not self.ending.running:
            raise PeerLostError("the ranks of this host are being ended")

    def end(self) -> None:
        for process in self.ending.running:
            _send(process, signal.SIGKILL)
        for process in self.ending.running:
            os.waitpid(process, 0)

    def _wait_once(self, until_ns: float) -> None:
        """Wait for a signal, a report or a call of the first rank, at most until `until_ns`, and handle it."""
        poll = select.poll()
        for source in (self.reports, self.wakeups, self.link):
            if source is not None:
                poll.register(source, select.POLLIN)
        due_ns = min(self.ending.due_ns, until_ns)
        ready = dict(poll.poll(max(math.ceil((due_ns - time.monotonic_ns()) / 1e6), 0)))
        self._handle_events()
        if self.link is None or self.launcher is None:
            return
        try:
            if self.link.fileno() in ready and not self.launcher.answer(self.link):
                self.link = None
            self.launcher.check_other_hosts()
        except PeerLostError as error:
            self.ending.record_failure(describe(self.ranks.members[0], error), time.monotonic_ns())
            self.link = None

    def _handle_events(self) -> None:
        """Pass signals, ended processes and reports to `ending`, and do what is due."""
        with contextlib.suppress(BlockingIOError):
            for number in self.wakeups.recv(4096, socket.MSG_DONTWAIT):
                if number != signal.SIGCHLD:
                    self.ending.record_interruption(number, time.monotonic_ns())
            self._reap()
        self._take_reports()
        self.ending.step(time.monotonic_ns(), _send)

    def _take_reports(self) -> None:
        while True:
            try:
                _, files, _, _ = socket.recv_fds(self.reports, 1, 1)
            except BlockingIOError:
                return
            with os.fdopen(files[0], "rb") as file:
                file.seek(0)
                report = pickle.load(file)
            if isinstance(report, Failure):
                self.ending.record_failure(report, time.monotonic_ns())
            else:
                rank, self.results[rank] = report

    def _reap(self) -> None:
        """Tell `ending` which processes have ended, were stopped or continued."""
        codes: dict[int, int] = {}
        for process in self.ending.running:
            waited, wait_status = os.waitpid(process, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if waited != process:
                continue
            if os.WIFSTOPPED(wait_status):
                self.ending.record_stop(process, time.monotonic_ns())
            elif os.WIFCONTINUED(wait_status):
                self.ending.record_continuation(process)
            else:
                codes[process] = os.waitstatus_to_exitcode(wait_status)
        if codes:
            self._take_reports()  # a rank sends its report before it ends
        for process, code in codes.items():
            self.ending.record_end(process, code, time.monotonic_ns())

    def _run(self, comms: Sequence[Comm], local_rank: int, rank: int) -> int:
        """Run a rank in its forked process; return its exit status."""
        try:
            comm = comms[local_rank]
            self._set_up(comm)
            for other in (self.link, *comms):
                if other is not None and other is not comm:
                    other.close()
            if isinstance(self.ranks, LedRanks):
                self.ranks.on_start(local_rank)
            result = self.main(comm)
            comm.close()
            if result is not None:
                self._report((rank, result))
            return 0
        except BaseException as error:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if isinstance(error, SystemExit) and not error.code:
                return 0
            failure = describe(rank, error, self.ending.role)
            with contextlib.suppress(OSError):
                self._report(failure)
            return failure.status

    def _report(self, report: object) -> None:
        with os.fdopen(os.memfd_create("dlemu-report"), "wb") as file:
            pickle.dump(report, file)
            file.flush()
            socket.send_fds(self.sender, [b"."], [file.fileno()])

    def _set_up(self, comm: Comm) -> None:
        """Set the signal handlers of a rank's process and close the supervisor's sockets."""
        signal.set_wakeup_fd(-1)
        for end in (self.reports, self.wakeups, self.waker):
            end.close()
        for number in (signal.SIGINT, signal.SIGHUP):  # the supervisor passes on Ctrl-C, which all get
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        interrupt = process_control.interrupt_once()

        def terminate(signal_number: int, frame: FrameType | None) -> None:
            if os.getppid() != self.process:  # the supervisor is dead: SIGALRM ends this rank after the grace
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, max(self.ending.grace_seconds, 0.001))
            interrupt(signal_number, frame)

        def detach_child() -> None:
            """In a rank's own forked children: let SIGTERM end them, and close the rank's connections."""
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.sender.close()
            comm.close()

        signal.signal(signal.SIGTERM, terminate)
        os.register_at_fork(after_in_child=detach_child)
        die_with_parent(self.process, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_STOP_SIGNALS, signal.SIGCHLD))


def _send(process: int, signal_number: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal_number)
        return True
    return False


def end_adopted(earlier_children: frozenset[int], grace_seconds: float) -> None:
    """End every child of this process, which adopts orphans, except `earlier_children`.

    A process that ignores SIGTERM, such as multiprocessing's resource tracker, may end by itself within the grace.
    """
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, Ending.give_up_seconds)):
        signalled: set[int] = set()
        deadline_seconds = time.monotonic() + seconds
        while (adopted := _children() - earlier_children) and time.monotonic() < deadline_seconds:
            for process in adopted - signalled:
                _send(process, number)
            signalled |= adopted
            for process in adopted:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process, os.WNOHANG)
            time.sleep(_ADOPTED_POLL_SECONDS)


def _children() -> frozenset[int]:
    return frozenset(child.pid for child in psutil.Process().children())

"""Fork ranks or workers from this process, and stay until all of them and all they started have ended."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from datagen.errors import SpaceError
from dlemu.comm.comm_base import Comm
from dlemu.comm.failure import LONE_RANK, RANK, RankEnd, Role, describe
from dlemu.comm.local import LocalComm
from dlemu.comm.process_control import Handler, adopt_orphans, die_with_parent, forking, ignore, interrupt_once
from dlemu.comm.supervise import Ending, Supervisor, children_of_this_process, end_adopted

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_SECONDS = 0.5  # between two calls of `on_look`: often enough for a progress line


@dataclass(frozen=True)
class ReportChannel:
    """A forked process's channel to the process that forked it; its own children don't inherit it."""

    number: int
    role: Role
    reports: socket.socket

    def send(self, message: object) -> None:
        """Send a message that can be pickled into 100 kB; any thread may call this."""
        self.reports.send(pickle.dumps((self.number, message)))

    def report(self, error: BaseException) -> int:
        """Tell the parent why this process ends; return the exit status."""
        failure = describe(self.number, error, self.role)
        with contextlib.suppress(OSError):
            self.reports.send(pickle.dumps(failure))
        return failure.status

    def fail(self, error: BaseException) -> NoReturn:
        """Report the error and end this process at once; any thread may call this."""
        os._exit(self.report(error))


def _nothing(*_: object) -> None:
    pass


def run_ranks(
    ranks: int,
    main: Callable[[Comm], int],
    *,
    timeout_seconds: float,
    grace_seconds: float = 5.0,  # after a failure, for the other ranks to notice it and clean up, before SIGKILL
    most_seconds: float = math.inf,
    on_start: Callable[[Sequence[int]], None] = _nothing,
    on_look: Callable[[], None] | None = None,
) -> list[RankEnd]:
    """Run `main(comm)` in `ranks` forked processes and return how each of them ended, in rank order.

    `main` returns its rank's exit status; anything but 0 counts as a failure, as does an exception or a signal. After
    the first failure the other ranks have `grace_seconds`: a fifth of it to notice by themselves, then they get
    SIGTERM (`Interrupted` is raised in them once), at the end SIGKILL. A rank that is stopped (SIGSTOP) for longer than
    `timeout_seconds` has failed, as have those that still run after `most_seconds`. Ctrl-C, SIGTERM and SIGHUP to
    this process make the ranks stop at once and show as failures of kind `Interrupted` with status 130, 143 or 129.
    `first_failure(ends)` picks the cause. `on_start` gets the ranks' process ids once all have been forked; `on_look`
    is called every LOOK_SECONDS, and what it raises ends all ranks and is raised here.

    Call it from the main thread, after the imports that ranks share. While it runs, this process adopts the orphans
    of its descendants: no child that appears meanwhile outlives the call.

    Raises SpaceError when the system has no room for that many processes.
    """
    token = secrets.token_hex(16)

    def work(channel: ReportChannel) -> int:
        comm = LocalComm(channel.number, ranks, token=token, timeout_seconds=timeout_seconds)
        try:
            status = main(comm)
        except BaseException as error:
            comm.abort(describe(channel.number, error).status)
            raise
        comm.close()
        return status

    return run_processes(
        ranks,
        work,
        LONE_RANK if ranks == 1 else RANK,
        timeout_seconds=timeout_seconds,
        grace_seconds=grace_seconds,
        most_seconds=most_seconds,
        on_start=on_start,
        on_look=on_look,
    )


def run_processes(
    count: int,
    work: Callable[[ReportChannel], int],
    role: Role = RANK,
    *,
    timeout_seconds: float,
    grace_seconds: float,
    most_seconds: float = math.inf,
    on_start: Callable[[Sequence[int]], None] = _nothing,
    on_message: Callable[[int, object], None] = _nothing,
    on_look: Callable[[], None] | None = None,
) -> list[RankEnd]:
    """Run `work(channel)` in `count` forked processes; otherwise the same as `run_ranks`.

    `on_message` gets the number of a process and a message that it sent; `on_look` is called every
    LOOK_SECONDS. What either of them raises ends all processes and is raised here.
    """
    known = children_of_this_process()
    receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.ExitStack() as stack:
        stack.enter_context(receiver)
        stack.enter_context(sender)
        wakeups, waker = stack.enter_context(_signals_as_bytes())
        stack.callback(adopt_orphans, adopt_orphans(True))
        stack.callback(end_adopted, known, wakeups, grace_seconds)
        task = _Task(
            work=work,
            count=count,
            role=role,
            grace_seconds=grace_seconds,
            supervisor=os.getpid(),
            reports=sender,
            parents_only=(receiver, wakeups, waker),
        )
        ending = Ending(grace_seconds, timeout_seconds, most_seconds, time.monotonic_ns(), role)
        supervisor = Supervisor(receiver, wakeups, ending, on_message)
        stack.callback(supervisor.end)
        with forking():
            processes = _fork_all(task, supervisor)
        on_start(processes)
        return supervisor.wait(on_look, LOOK_SECONDS if on_look is not None else math.inf)


def _fork_all(task: _Task, supervisor: Supervisor) -> list[int]:
    """Fork the processes and return their process ids."""
    processes: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOP_SIGNALS, signal.SIGCHLD))
    try:
        for number in range(task.count):
            process = os.fork()
            if process == 0:
                _run_and_exit(task, number, mask)
            supervisor.add(process, number)
            processes.append(process)
    except OSError as error:
        raise SpaceError(
            f"{task.role.name} {len(processes)} of {task.count} could not be started ({error}): {task.role.remedy}, or "
            "raise the limit on processes (`ulimit -u`) or memory"
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return processes


@contextlib.contextmanager
def _signals_as_bytes() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Turn the stop signals and SIGCHLD into bytes on the first socket of the pair; restore the handlers at the end.

    A stop signal that this process ignores (nohup, a background job of a script) stays ignored.
    """
    wakeups, waker = socket.socketpair()
    waker.setblocking(False)
    numbers = [number for number in _STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, ignore) for number in [*numbers, signal.SIGCHLD]}
    fd_before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    try:
        yield wakeups, waker
    finally:
        signal.set_wakeup_fd(fd_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        wakeups.close()
        waker.close()


@dataclass(frozen=True)
class _Task:
    """What every forked process gets; all of it was made before the fork."""

    work: Callable[[ReportChannel], int]
    count: int
    role: Role
    grace_seconds: float
    supervisor: int
    """Process id."""
    reports: socket.socket
    """Where a failure or a message goes, one datagram each."""
    parents_only: tuple[socket.socket, ...]
    """The parent's sockets, which each forked process closes first."""


def _run_and_exit(task: _Task, number: int, signal_mask: set[int | signal.Signals]) -> NoReturn:
    """Run a forked process to its end; `signal_mask` is set once its signal handlers are."""
    status = 128 + signal.SIGTERM
    try:
        status = _run(task, ReportChannel(number, task.role, task.reports), signal_mask)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    finally:
        os._exit(status)  # whatever happened, the caller's stack is not ours to return into


def _run(task: _Task, channel: ReportChannel, signal_mask: set[int | signal.Signals]) -> int:
    try:
        _set_up_process(task, signal_mask)
        return task.work(channel)
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if isinstance(error, SystemExit) and not error.code:
            return 0
        return channel.report(error)


def _set_up_process(task: _Task, signal_mask: set[int | signal.Signals]) -> None:
    signal.set_wakeup_fd(-1)
    for end in task.parents_only:
        end.close()
    for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C reaches the whole group; the supervisor passes it on
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _until_orphaned(interrupt_once(), task.supervisor, task.grace_seconds))
    os.register_at_fork(after_in_child=lambda: _forget(task))
    die_with_parent(task.supervisor, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)


def _until_orphaned(handler: Handler, supervisor: int, grace_seconds: float) -> Handler:
    """Wrap a handler so that the kernel kills a rank which outlives its supervisor by more than the grace."""

    def handle(signal_number: int, frame: FrameType | None) -> None:
        if os.getppid() != supervisor:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, max(grace_seconds, 0.001))
        handler(signal_number, frame)

    return handle


def _forget(task: _Task) -> None:
    """In a rank's own forked children (a loader's workers): SIGTERM simply ends them, and they must not report."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    task.reports.close()

"""Fork ranks or workers from this process, and stay until all of them and all they started have ended.

The parent waits without polling, and ends all of them when one fails. No process may outlive a run: those that ended
ranks left behind are found and ended too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pickle
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

from datagen.errors import DlemuError, SpaceError, UserError
from dlemu.ranks.comm_base import Comm, Interrupted, PeerLostError
from dlemu.ranks.failure import (
    LATE,
    LONE_RANK,
    RANK,
    Failure,
    RankEnd,
    Role,
    describe,
    first_failure,
    killed_by,
    overdue,
    stopped_for,
)
from dlemu.ranks.local import HostPlace, LocalComm
from dlemu.ranks.process_control import (
    Handler,
    adopt_orphans,
    die_with_parent,
    fork_process,
    forking,
    ignore,
    interrupt_once,
    name_process,
)
from dlemu.ranks.tree import TreeSockets

if TYPE_CHECKING:  # most runs are on one host
    from dlemu.ranks.leaders import Leaders, Relay

_KILLED = 128 + signal.SIGKILL  # exit status
_NOTICE_SHARE = 0.2  # share of the grace in which ranks may notice the failure by themselves; then they get SIGTERM
_LEAST_GIVE_UP_SECONDS = 2.0  # freeing a killed rank's memory takes the kernel a while
_LOOK_AGAIN_SECONDS = 0.05  # no signal says when this process adopts a grandchild, whose parent has ended
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_CREW_GRACE_SECONDS = 2.0  # workers have nothing to save
LOOK_SECONDS = 0.5  # between two calls of `on_look`: often enough for a progress line

Order = TypeVar("Order")
Result = TypeVar("Result")


def _nothing(*_: object) -> None:
    pass


class Ending:
    """Decides when a run's ranks get SIGTERM and SIGKILL, and notes how each ended. IO and time are passed in.

    After the first failure the ranks have a fifth of the grace to notice it by themselves, then they get SIGTERM, and
    SIGKILL at the end of the grace; a rank that survives it is given up. An interruption sends SIGTERM at once. A rank
    that is stopped (SIGSTOP) for `timeout_seconds`, or still runs after `most_seconds`, has failed.
    """

    def __init__(
        self,
        grace_seconds: float,
        timeout_seconds: float = math.inf,
        most_seconds: float = math.inf,
        begin_ns: int = 0,
        role: Role = RANK,
        done: Sequence[int] | None = None,
    ) -> None:
        """`done`, given of processes that become other programs, are the exit statuses that are no failure."""
        self.running: dict[int, int] = {}
        self._ranks: dict[int, int] = {}
        self._grace_seconds, self._timeout_seconds, self._most_seconds = grace_seconds, timeout_seconds, most_seconds
        self._role, self._done = role, done
        self._stopped: dict[int, float] = {}
        """Process id -> when that stopped process must have continued, in ns."""
        self._ends: dict[int, RankEnd] = {}
        self._failures: dict[int, Failure] = {}
        self._interruption: Failure | None = None
        self._terminated: set[int] = set()
        self._killed: set[int] = set()
        self._ending = False
        self._terminate_ns = self._kill_ns = self._give_up_ns = math.inf
        self._late_ns = begin_ns + most_seconds * 1e9

    @property
    def ends(self) -> list[RankEnd]:
        return [self._ends[rank] for rank in sorted(self._ends)]

    @property
    def began(self) -> bool:
        """Whether the ranks are being ended, or have ended."""
        return self._ending or not self.running

    @property
    def due_ns(self) -> float:
        """When to call `step` next, in ns; infinite while nothing is due."""
        return min(self._late_ns, self._terminate_ns, self._kill_ns, self._give_up_ns, *self._stopped.values())

    def started(self, process: int, rank: int) -> None:
        self.running[process] = rank
        self._ranks[process] = rank

    def reported(self, failure: Failure, now_ns: int) -> None:
        """Note a rank's failure; only the first one of each rank counts, as later ones follow from it."""
        self._failures.setdefault(failure.rank, failure)
        self._start_grace(now_ns)

    def interrupted(self, signal_number: int, now_ns: int) -> None:
        """Note a signal that requests the end of the run; a second one makes SIGKILL due at once."""
        if self._interruption is not None:
            self._kill_ns = min(self._kill_ns, now_ns)
            return
        self._interruption = _interrupted(-1, signal_number, now_ns, echo=self._ending)  # `_explain` sets the rank
        self._start_grace(now_ns)
        self._terminate_ns = min(self._terminate_ns, now_ns)

    def stopped(self, process: int, now_ns: int) -> None:
        self._stopped.setdefault(process, now_ns + self._timeout_seconds * 1e9)

    def continued(self, process: int) -> None:
        self._stopped.pop(process, None)

    def ended(self, process: int, code: int, now_ns: int) -> None:
        """Note how a process ended; `code` is its exit status, or minus the signal that ended it."""
        self.running.pop(process, None)
        self._stopped.pop(process, None)
        rank, failure = self._ranks[process], self._explain(process, code, now_ns)
        if failure is not None:
            self._start_grace(now_ns)
        status = 0 if failure is None else failure.status
        self._ends[rank] = RankEnd(rank=rank, status=status, failure=failure)

    def step(self, now_ns: int, send: Callable[[int, int], bool]) -> None:
        """Do what is due; `send(process, signal)` returns whether the process still existed."""
        for process in [process for process, due_ns in self._stopped.items() if now_ns >= due_ns]:
            del self._stopped[process]
            message = stopped_for(self._name(process), process, self._timeout_seconds)
            self.reported(self._failure(process, "Stopped", message, now_ns), now_ns)
        if now_ns >= self._late_ns:
            self._late_ns = math.inf
            for process in self.running:
                message = overdue(self._name(process), process, self._most_seconds)
                self.reported(self._failure(process, LATE, message, now_ns), now_ns)
        if now_ns >= self._terminate_ns:
            self._terminate_ns = math.inf
            self._terminated |= {process for process in self.running if send(process, signal.SIGTERM)}
        if now_ns >= self._kill_ns:
            self._kill_ns = math.inf
            self._give_up_ns = now_ns + give_up_seconds(self._grace_seconds) * 1e9
            self._killed |= {process for process in self.running if send(process, signal.SIGKILL)}
        if now_ns >= self._give_up_ns:
            self._give_up_ns = math.inf
            for process, rank in self.running.items():
                message = (
                    f"{self._name(process)} (process {process}) was killed but does not end: it is blocked in the "
                    "kernel, as in a read from hung storage; see `dmesg` and the state of the file system"
                )
                failure = self._failures.get(rank) or self._failure(process, "Stuck", message, now_ns, _KILLED)
                self._ends[rank] = RankEnd(rank=rank, status=failure.status, failure=failure)
            self.running.clear()

    def _start_grace(self, now_ns: int) -> None:
        if not self._ending:
            self._ending = True
            self._terminate_ns = now_ns + _NOTICE_SHARE * self._grace_seconds * 1e9
            self._kill_ns = now_ns + self._grace_seconds * 1e9

    def _explain(self, process: int, code: int, now_ns: int) -> Failure | None:
        """Return why a process failed, or None; an echo if it only obeyed the signal that ends the others."""
        rank = self._ranks[process]
        own = self._failures.get(rank)
        ended_on_request = code in (0, -signal.SIGTERM) if own is None else own.echo or own.kind == Interrupted.__name__
        exited = self._done is not None and code >= 0  # a program that caught the signal ends by a status of its own
        if self._interruption is not None and (ended_on_request or exited or process in self._killed):
            return dataclasses.replace(self._interruption, rank=rank)
        if own is not None:
            return dataclasses.replace(own, echo=own.echo or (ended_on_request and process in self._terminated))
        name = self._name(process)
        if process in self._killed:
            message = f"{name} (process {process}) did not stop within {self._grace_seconds:g} s and was killed"
            return self._failure(process, "Stuck", message, now_ns, _KILLED)
        if process in self._terminated and code == -signal.SIGTERM:
            return _interrupted(rank, signal.SIGTERM, now_ns, echo=True)
        if code < 0:
            message = killed_by(name, process, -code, self._role.remedy)
            return self._failure(process, "Signal", message, now_ns, 128 - code)
        if code in (self._done or (0,)):
            return None
        return self._failure(process, "Exit", f"{name} ended with exit status {code}", now_ns, code)

    def _name(self, process: int) -> str:
        return f"{self._role.name} {self._ranks[process]}"

    def _failure(
        self, process: int, kind: str, message: str, now_ns: int, status: int = DlemuError.exit_status
    ) -> Failure:
        """Return the failure of a process that can't report itself; that it had to be killed follows from another."""
        rank, echo = self._ranks[process], kind == "Stuck"
        return Failure(rank=rank, kind=kind, message=message, status=status, at_ns=now_ns, echo=echo)


def _interrupted(rank: int, signal_number: int, at_ns: int, *, echo: bool) -> Failure:
    name = "Ctrl-C (SIGINT)" if signal_number == signal.SIGINT else signal.Signals(signal_number).name
    message, status = f"interrupted by {name}", 128 + signal_number
    return Failure(rank=rank, kind="Interrupted", message=message, status=status, at_ns=at_ns, echo=echo)


class Supervisor:
    """Waits for the ranks of one run without polling, and passes what happens to them to an `Ending`.

    `reports` delivers files in memory, each a pickled `Failure`, or a rank and its result: datagrams are too small.
    `wakeups` delivers a byte for each signal that this process got (signal.set_wakeup_fd), SIGCHLD among them.
    """

    def __init__(self, reports: socket.socket, wakeups: socket.socket, ending: Ending) -> None:
        self._reports, self._wakeups, self._ending = reports, wakeups, ending
        self.relay: Relay | None = None
        """Answers the ranks' questions to other hosts."""
        self._results: dict[int, Any] = {}

    def add(self, process: int, rank: int) -> None:
        self._ending.started(process, rank)

    def wait(self, on_look: Callable[[], None] = _nothing) -> list[RankEnd]:
        """Return how each rank ended, in rank order, once all have; call `on_look` every half second meanwhile."""
        look_ns = time.monotonic_ns() + LOOK_SECONDS * 1e9
        while self._ending.running:
            self._turn(look_ns)
            if time.monotonic_ns() >= look_ns:
                on_look()
                look_ns = time.monotonic_ns() + LOOK_SECONDS * 1e9
        return [dataclasses.replace(end, result=self._results.get(end.rank)) for end in self._ending.ends]

    def pause(self, seconds: float) -> None:
        """Sleep, and handle what happened meanwhile. Raises PeerLostError when the ranks are being ended."""
        time.sleep(seconds)
        self._handle()
        if self._ending.began:
            raise PeerLostError("the ranks of this host are being ended")

    def end(self) -> None:
        for process in self._ending.running:
            _send(process, signal.SIGKILL)
        for process in self._ending.running:
            os.waitpid(process, 0)
        self._ending.running.clear()

    def _turn(self, until_ns: float) -> None:
        """Wait until something happens, or until then; handle it."""
        relay, poll = self.relay, select.poll()
        poll.register(self._reports, select.POLLIN)
        poll.register(self._wakeups, select.POLLIN)
        if relay is not None:
            poll.register(relay.link, select.POLLIN)
        due_ns = min(self._ending.due_ns, until_ns)
        ready = poll.poll(max(math.ceil((due_ns - time.monotonic_ns()) / 1e6), 0))
        self._handle()
        if relay is not None and not relay.serve(relay.link.fileno() in dict(ready), self._ending.reported):
            self.relay = None

    def _handle(self) -> None:
        if self._take_signals():
            self._reap()
        self._take_reports()
        self._ending.step(time.monotonic_ns(), _send)

    def _take_reports(self) -> None:
        while True:
            try:
                _, files, _, _ = socket.recv_fds(self._reports, 1, 1)
            except BlockingIOError:
                return
            with os.fdopen(files[0], "rb") as file:
                file.seek(0)
                report = pickle.load(file)
            if isinstance(report, Failure):
                self._ending.reported(report, time.monotonic_ns())
            else:
                rank, self._results[rank] = report

    def _take_signals(self) -> bool:
        """Return whether there were any: of processes, too, that ended or were stopped."""
        try:
            numbers = self._wakeups.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        for number in numbers:
            if number != signal.SIGCHLD:
                self._ending.interrupted(number, time.monotonic_ns())
        return True

    def _reap(self) -> None:
        ended = {}
        for process in self._ending.running:
            waited, wait_status = os.waitpid(process, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if waited != process:
                continue
            if os.WIFSTOPPED(wait_status):
                self._ending.stopped(process, time.monotonic_ns())
            elif os.WIFCONTINUED(wait_status):
                self._ending.continued(process)
            else:
                ended[process] = os.waitstatus_to_exitcode(wait_status)
        if ended:
            self._take_reports()  # what a rank reported before it ended is in the queue now
        for process, code in ended.items():
            self._ending.ended(process, code, time.monotonic_ns())


def _send(process: int, signal_number: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal_number)
        return True
    return False


def end_adopted(known: frozenset[int], wakeups: socket.socket, grace_seconds: float) -> None:
    """End every descendant of this process that does not descend from `known`.

    They get SIGTERM, and SIGKILL after the grace, in which a process that ignores SIGTERM (multiprocessing's resource
    tracker) can end by itself. `wakeups` gets a byte for each SIGCHLD. This process must adopt orphans
    (`adopt_orphans`).
    """
    kill_seconds = time.monotonic() + grace_seconds
    signalled: set[tuple[int, int]] = set()
    while adopted := [child for child in psutil.Process().children() if child.pid not in known]:
        number = signal.SIGTERM if time.monotonic() < kill_seconds else signal.SIGKILL
        for process in [*adopted, *_below(adopted)]:
            if (process.pid, number) not in signalled:
                signalled.add((process.pid, number))
                _send(process.pid, number)
        reaped = [child for child in adopted if _reap(child.pid)]
        if reaped:
            continue  # the next check finds its own children
        if time.monotonic() >= kill_seconds + give_up_seconds(grace_seconds):
            break
        select.select([wakeups], [], [], _LOOK_AGAIN_SECONDS)
        with contextlib.suppress(BlockingIOError):
            wakeups.recv(4096, socket.MSG_DONTWAIT)


def give_up_seconds(grace_seconds: float) -> float:
    """Return how long to wait for the end of a killed process: one that storage blocks must not delay the others."""
    return max(grace_seconds, _LEAST_GIVE_UP_SECONDS)


def _below(processes: list[psutil.Process]) -> list[psutil.Process]:
    descendants = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants += process.children(recursive=True)
    return descendants


def _reap(child: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(child, os.WNOHANG)[0] != 0
    return True


@dataclass(frozen=True)
class RankGroup:
    """The ranks that one process forks: all of a run's, or those of one of several hosts."""

    place: HostPlace
    leaders: Leaders | None = None
    """Of several hosts."""
    settle: Callable[[int], None] = _nothing
    """Called in each rank first, with its number on this host."""


def run_ranks(
    ranks: int | RankGroup,
    main: Callable[[Comm], object],
    *,
    role: Role | None = None,
    timeout_seconds: float,
    grace_seconds: float = 5.0,  # after a failure, for the other ranks to notice it and clean up, before SIGKILL
    most_seconds: float = math.inf,
    done: Sequence[int] | None = None,
    on_look: Callable[[], None] = _nothing,
) -> list[RankEnd]:
    """Run `main(comm)` in `ranks` forked processes and return how each of them ended, in rank order.

    What `main` returns is pickled and is the `result` of that end. An exception or a signal is a failure, and ends the
    other ranks as `Ending` describes (SIGTERM raises `Interrupted` in them once). Ctrl-C, SIGTERM and SIGHUP to this
    process stop the ranks and show as failures of kind `Interrupted` with status 130, 143 or 129. `first_failure(ends)`
    picks the cause. `done`, given where `main` executes another program, are the exit statuses that are no failure.
    `on_look` is called every LOOK_SECONDS, and what it raises is raised here.

    Call it from the main thread, after the imports that ranks share. No child that appears meanwhile outlives the call.
    Raises SpaceError when the system has no room for that many processes.
    """
    group = RankGroup(HostPlace.alone(ranks)) if isinstance(ranks, int) else ranks
    role = role or (LONE_RANK if group.place.size == 1 else RANK)
    known = frozenset(child.pid for child in psutil.Process().children())
    with contextlib.ExitStack() as stack:
        receiver, sender = map(stack.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        receiver.setblocking(False)
        wakeups, waker = stack.enter_context(_signals_as_bytes())
        stack.callback(adopt_orphans, adopt_orphans(True))
        stack.callback(end_adopted, known, wakeups, grace_seconds)
        ending = Ending(grace_seconds, timeout_seconds, most_seconds, time.monotonic_ns(), role, done)
        supervisor = Supervisor(receiver, wakeups, ending)
        stack.callback(supervisor.end)
        with (
            _starting(role),
            contextlib.closing(TreeSockets(group.place.members, with_leader=group.leaders is not None)) as sockets,
        ):
            if group.leaders is not None and sockets.leader is not None:
                from dlemu.ranks.leaders import Relay

                stack.enter_context(sockets.leader)
                stack.enter_context(group.leaders.pausing(supervisor.pause))
                supervisor.relay = Relay(sockets.leader, group.place.members[0], group.leaders)
            forks = _Forks(
                main=main,
                group=group,
                role=role,
                timeout_seconds=timeout_seconds,
                grace_seconds=grace_seconds,
                supervisor=os.getpid(),
                sockets=sockets,
                reports=sender,
                parents_only=(receiver, wakeups, waker, *([] if sockets.leader is None else [sockets.leader])),
            )
            forks.start(supervisor.add)
        return supervisor.wait(on_look)


def run_crew(
    work: Callable[[Comm, Order], Result],
    orders: Sequence[Order],
    role: Role,
    *,
    timeout_seconds: float,
    most_seconds: float = math.inf,
) -> list[Result]:
    """Run `work(comm, order)` in a forked worker for each order; return the results in the same order.

    The same as `run_ranks`, but what failed first is raised: as UserError, DlemuError, or Interrupted.
    """
    parent = os.getpid()

    def run(comm: Comm) -> Result:
        die_with_parent(parent)  # at once, even if this one is stopped: workers have nothing to save
        name_process(f"dlemu-{role.name}")
        return work(comm, orders[comm.rank])

    ends = run_ranks(
        len(orders),
        run,
        role=role,
        timeout_seconds=timeout_seconds,
        grace_seconds=_CREW_GRACE_SECONDS,
        most_seconds=most_seconds,
    )
    failure = first_failure(ends)
    if failure is None:
        return [end.result for end in ends]
    if failure.kind == Interrupted.__name__:
        raise Interrupted(failure.status - 128)
    error = (UserError if failure.status == UserError.exit_status else DlemuError)(failure.message)
    if failure.traceback:
        error.add_note(failure.traceback.rstrip())
    raise error


@contextlib.contextmanager
def _starting(role: Role) -> Iterator[None]:
    """Turn what the system refuses into advice, and hold signals back until every process has its handlers."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOP_SIGNALS, signal.SIGCHLD))
    try:
        yield
    except OSError as error:
        raise SpaceError(
            f"not every {role.name} could be started ({error}): {role.remedy}, or raise the limits on processes and "
            "files (`ulimit -u`, `ulimit -n`) or memory"
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def _signals_as_bytes() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Turn the stop signals and SIGCHLD into bytes on the first socket; those ignored here (nohup) stay ignored."""
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
class _Forks:
    """What every forked process gets; all of it was made before the fork."""

    main: Callable[[Comm], object]
    group: RankGroup
    role: Role
    timeout_seconds: float
    grace_seconds: float
    supervisor: int
    sockets: TreeSockets
    reports: socket.socket
    parents_only: tuple[socket.socket, ...]
    """The parent's sockets, which each forked process closes first."""

    def start(self, add: Callable[[int, int], None]) -> None:
        """Fork all of them, and `add` each with its number."""
        with forking():
            for local_rank, rank in enumerate(self.group.place.members):
                add(fork_process(partial(self._run, local_rank, rank)), rank)

    def _run(self, local_rank: int, rank: int) -> int:
        """Run a forked process to its end."""
        try:
            self._set_up()
            tree = self.sockets.take(local_rank, self.timeout_seconds)
            self.sockets.close()
            self.group.settle(local_rank)
            comm = LocalComm(tree, self.group.place)
            result = self.main(comm)
            comm.close()
            if result is not None:
                self._report((rank, result))
            return 0
        except BaseException as error:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if isinstance(error, SystemExit) and not error.code:
                return 0
            failure = describe(rank, error, self.role)
            with contextlib.suppress(OSError):
                self._report(failure)
            return failure.status

    def _report(self, report: object) -> None:
        with os.fdopen(os.memfd_create("dlemu-report"), "wb") as file:
            pickle.dump(report, file)
            file.flush()
            socket.send_fds(self.reports, [b"."], [file.fileno()])

    def _set_up(self) -> None:
        signal.set_wakeup_fd(-1)
        for end in self.parents_only:
            end.close()
        for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C reaches the whole group; the supervisor passes it on
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, self._until_orphaned(interrupt_once()))
        os.register_at_fork(after_in_child=self._forget)
        die_with_parent(self.supervisor, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_STOP_SIGNALS, signal.SIGCHLD))

    def _until_orphaned(self, handler: Handler) -> Handler:
        """Wrap a handler so that the kernel kills a rank which outlives its supervisor by more than the grace."""

        def handle(signal_number: int, frame: FrameType | None) -> None:
            if os.getppid() != self.supervisor:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.setitimer(signal.ITIMER_REAL, max(self.grace_seconds, 0.001))
            handler(signal_number, frame)

        return handle

    def _forget(self) -> None:
        """In a rank's own forked children (a loader's workers): SIGTERM simply ends them, and they must not report."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.reports.close()

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
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import psutil

from datagen.errors import DlemuError, SpaceError
from dlemu.comm.comm_base import Comm, Interrupted, PeerLostError
from dlemu.comm.failure import (
    LATE,
    LONE_RANK,
    RANK,
    Failure,
    RankEnd,
    Role,
    describe,
    killed_by,
    overdue,
    stopped_for,
)
from dlemu.comm.local import HostPlace, LocalComm, TreeSockets
from dlemu.comm.process_control import (
    Handler,
    adopt_orphans,
    die_with_parent,
    fork_process,
    forking,
    ignore,
    interrupt_once,
)

if TYPE_CHECKING:  # most runs are on one host
    from dlemu.comm.leaders import Leaders, Relay

_KILLED = 128 + signal.SIGKILL  # exit status
_NOTICE_SHARE = 0.2  # share of the grace in which ranks may notice the failure by themselves; then they get SIGTERM
_DESCRIPTOR_SPACE = socket.CMSG_LEN(4)  # for one file
_RECEIVING = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
_LONGEST_REPORT_BYTES = 1 << 20  # more than a datagram may have (net.core.wmem_default of the sender: 208 KiB)
_LEAST_GIVE_UP_SECONDS = 2.0  # freeing a killed rank's memory takes the kernel a while
_LOOK_AGAIN_MILLISECONDS = 50  # no signal says when this process adopts a grandchild, whose parent has ended
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_SECONDS = 0.5  # between two calls of `on_look`: often enough for a progress line


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
    ) -> None:
        self.running: dict[int, int] = {}
        self._ranks: dict[int, int] = {}
        self._grace_seconds, self._timeout_seconds, self._most_seconds = grace_seconds, timeout_seconds, most_seconds
        self._role = role
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
        self._ends[rank] = RankEnd(rank=rank, status=status, signal=max(-code, 0), failure=failure)

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
                self._ends[rank] = RankEnd(rank=rank, status=failure.status, signal=signal.SIGKILL, failure=failure)
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
        if self._interruption is not None and (ended_on_request or process in self._killed):
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
        return self._failure(process, "Exit", f"{name} ended with exit status {code}", now_ns, code) if code else None

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

    `reports` delivers datagrams, each a pickled `Failure`, None of a process that is ready (`on_ready`), or the rank of
    one that sends the file with its result along;
    `wakeups` delivers a byte for each signal that this process got (signal.set_wakeup_fd), SIGCHLD among them.
    """

    def __init__(
        self,
        reports: socket.socket,
        wakeups: socket.socket,
        ending: Ending,
        on_ready: Callable[[], None],
        relay: Relay | None = None,
    ) -> None:
        """`relay` answers the ranks' questions to other hosts."""
        self._reports, self._wakeups, self._ending, self._on_ready = reports, wakeups, ending, on_ready
        self._relay = relay
        self._results: dict[int, int] = {}
        """Rank -> descriptor of the file with its result, which is read at the end: others may still measure."""

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
        return [dataclasses.replace(end, result=self._result(end.rank)) for end in self._ending.ends]

    def _result(self, rank: int) -> Any:
        if rank not in self._results:
            return None
        with os.fdopen(self._results.pop(rank), "rb") as file:
            file.seek(0)
            return pickle.load(file)

    def pause(self, seconds: float) -> None:
        """Sleep, and handle what happened meanwhile. Raises PeerLostError when the ranks are being ended."""
        time.sleep(seconds)
        self._handle()
        if self._ending.began:
            raise PeerLostError("the ranks of this host are being ended")

    def _turn(self, until_ns: float) -> None:
        """Wait until something happens, or until then; handle it."""
        poll = select.poll()
        poll.register(self._reports, select.POLLIN)
        poll.register(self._wakeups, select.POLLIN)
        relay = self._relay
        if relay is not None:
            poll.register(relay.link, select.POLLIN)
        due_ns = min(self._ending.due_ns, until_ns)
        ready = poll.poll(max(math.ceil((due_ns - time.monotonic_ns()) / 1e6), 0))
        self._handle()
        if relay is not None and not relay.serve(relay.link.fileno() in dict(ready), self._ending.reported):
            self._relay = None

    def _handle(self) -> None:
        if self._take_signals():
            self._reap()
        self._take_reports()
        self._ending.step(time.monotonic_ns(), _send)

    def end(self) -> None:
        for process in self._ending.running:
            _send(process, signal.SIGKILL)
        for process in self._ending.running:
            os.waitpid(process, 0)
        self._ending.running.clear()
        for descriptor in self._results.values():
            os.close(descriptor)

    def _take_reports(self) -> None:
        while True:
            try:
                data, files, _, _ = self._reports.recvmsg(_LONGEST_REPORT_BYTES, _DESCRIPTOR_SPACE, _RECEIVING)
            except BlockingIOError:
                return
            report = pickle.loads(data)
            if files:
                self._results[report] = int.from_bytes(files[0][2], sys.byteorder)
            elif isinstance(report, Failure):
                self._ending.reported(report, time.monotonic_ns())
            else:
                self._on_ready()

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


def children_of_this_process() -> frozenset[int]:
    return frozenset(child.pid for child in psutil.Process().children())


def end_adopted(known: frozenset[int], wakeups: socket.socket, grace_seconds: float) -> int:
    """End every descendant of this process that does not descend from `known`; return how many there were.

    They get SIGTERM, and SIGKILL after the grace, in which a process that ignores SIGTERM (multiprocessing's resource
    tracker) can end by itself. `wakeups` gets a byte for each SIGCHLD. This process must adopt orphans
    (`adopt_orphans`).
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
    """Return how long to wait for the end of a killed process: one that storage blocks must not delay the others."""
    return max(grace_seconds, _LEAST_GIVE_UP_SECONDS)


def _below(processes: list[psutil.Process]) -> list[psutil.Process]:
    descendants = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            descendants += process.children(recursive=True)
    return descendants


def _reap(child: psutil.Process) -> bool:
    """Reap a child if it has ended; the next check finds its own children."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(child.pid, os.WNOHANG)[0] != 0
    return True


@dataclass(frozen=True)
class ReportChannel:
    """A forked process's channel to the process that forked it; its own children don't inherit it."""

    number: int
    role: Role
    reports: socket.socket

    def report(self, error: BaseException) -> int:
        failure = describe(self.number, error, self.role)
        with contextlib.suppress(OSError):
            self.reports.send(pickle.dumps(failure))
        return failure.status

    def deliver(self, result: object) -> None:
        """Send what the process returns, in a file that lives in memory: results are larger than datagrams may be."""
        with os.fdopen(os.memfd_create("dlemu-result"), "wb") as file:
            pickle.dump(result, file)
            file.flush()
            socket.send_fds(self.reports, [pickle.dumps(self.number)], [file.fileno()])


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
    timeout_seconds: float,
    grace_seconds: float = 5.0,  # after a failure, for the other ranks to notice it and clean up, before SIGKILL
    most_seconds: float = math.inf,
    on_start: Callable[[Sequence[int]], None] = _nothing,
    on_look: Callable[[], None] = _nothing,
) -> list[RankEnd]:
    """Run `main(comm)` in `ranks` forked processes and return how each of them ended, in rank order.

    What `main` returns is pickled and is the `result` of that end. An exception or a signal is a failure, and ends the
    other ranks as `Ending` describes (SIGTERM raises `Interrupted` in them once). Ctrl-C, SIGTERM and SIGHUP to this
    process stop the ranks and show as failures of kind `Interrupted` with status 130, 143 or 129. `first_failure(ends)`
    picks the cause. `on_start` gets the ranks' process ids; `on_look` is called every LOOK_SECONDS, and what it raises
    is raised here.

    Call it from the main thread, after the imports that ranks share. No child that appears meanwhile outlives the call.
    Raises SpaceError when the system has no room for that many processes.
    """
    group = RankGroup(HostPlace.alone(ranks)) if isinstance(ranks, int) else ranks
    members, relay = group.place.members, None
    sockets = TreeSockets(members, with_leader=group.leaders is not None)
    if group.leaders is not None:
        from dlemu.comm.leaders import Relay

        relay = Relay(sockets.leader, members[0], group.leaders)

    def work(channel: ReportChannel) -> object:
        local_rank = members.index(channel.number)
        tree = sockets.take(local_rank, timeout_seconds)
        sockets.close()
        if relay is not None:
            relay.link.close()
        group.settle(local_rank)
        comm = LocalComm(tree, group.place)
        result = main(comm)
        comm.close()
        return result

    try:
        return run_processes(
            members,
            work,
            LONE_RANK if group.place.size == 1 else RANK,
            sockets=sockets,
            relay=relay,
            timeout_seconds=timeout_seconds,
            grace_seconds=grace_seconds,
            most_seconds=most_seconds,
            on_start=on_start,
            on_look=on_look,
        )
    finally:
        if relay is not None:
            relay.link.close()


def run_processes(
    numbers: Sequence[int],
    work: Callable[[ReportChannel], object],
    role: Role = RANK,
    *,
    sockets: TreeSockets | None = None,
    relay: Relay | None = None,
    timeout_seconds: float,
    grace_seconds: float,
    most_seconds: float = math.inf,
    on_start: Callable[[Sequence[int]], None] = _nothing,
    on_ready: Callable[[], None] = _nothing,
    on_look: Callable[[], None] = _nothing,
) -> list[RankEnd]:
    """Run `work(channel)` in a forked process for each of the numbers; otherwise the same as `run_ranks`.

    `on_ready` is called for each process that says it is ready; what it raises is raised here.
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
            numbers=numbers,
            role=role,
            grace_seconds=grace_seconds,
            supervisor=os.getpid(),
            sockets=sockets or TreeSockets(()),
            reports=sender,
            parents_only=(receiver, wakeups, waker),
        )
        ending = Ending(grace_seconds, timeout_seconds, most_seconds, time.monotonic_ns(), role)
        supervisor = Supervisor(receiver, wakeups, ending, on_ready, relay)
        stack.callback(supervisor.end)
        with forking():
            processes = _fork_all(task, supervisor)
        on_start(processes)
        if relay is not None:
            stack.enter_context(relay.leaders.pausing(supervisor.pause))
        return supervisor.wait(on_look)


def _fork_all(task: _Task, supervisor: Supervisor) -> list[int]:
    processes: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOP_SIGNALS, signal.SIGCHLD))
    try:
        for place, number in enumerate(task.numbers):
            task.sockets.make_for(place)
            process = fork_process(partial(_run, task, number, mask))
            supervisor.add(process, number)
            processes.append(process)
    except OSError as error:
        raise SpaceError(
            f"{task.role.name} {len(processes)} of {len(task.numbers)} could not be started ({error}): "
            f"{task.role.remedy}, or raise the limit on processes (`ulimit -u`) or memory"
        ) from error
    finally:
        task.sockets.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return processes


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
class _Task:
    """What every forked process gets; all of it was made before the fork."""

    work: Callable[[ReportChannel], object]
    numbers: Sequence[int]
    role: Role
    grace_seconds: float
    supervisor: int
    sockets: TreeSockets
    reports: socket.socket
    parents_only: tuple[socket.socket, ...]
    """The parent's sockets, which each forked process closes first."""


def _run(task: _Task, number: int, signal_mask: set[int | signal.Signals]) -> int:
    """Run a forked process to its end; `signal_mask` is set once its signal handlers are."""
    channel = ReportChannel(number, task.role, task.reports)
    try:
        _set_up_process(task, signal_mask)
        result = task.work(channel)
        if result is not None:
            channel.deliver(result)
        return 0
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

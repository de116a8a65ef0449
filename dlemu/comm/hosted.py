"""One process of each host runs all of the launcher's ranks there, so that what they import is imported once.

mpirun starts N processes, each of which would import its loader's framework: seconds of CPU and 100 MB and more for
each. Instead the first process of each host, its leader, imports it and forks a member for every other rank of the
host. The processes that the launcher started for these ranks become placeholders: each sleeps, and ends with the status
of its member, so that the launcher sees how each rank ended. A member has its placeholder's CPUs and environment, and
dies with the leader. A placeholder that is stopped (SIGSTOP) stops no rank: the leader wakes it when the ranks end, as
the launcher waits for all of its processes.

This is only done where all processes of a host are alike (`are_alike`): a launcher, or a script under it, may give each
its own limits, memory policy or container.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from datagen.errors import DlemuError, SpaceError
from dlemu.comm.cgroup_limits import out_of_memory_hint
from dlemu.comm.comm_base import Comm, Interrupted, PeerLostError
from dlemu.comm.failure import RANK, Failure, describe, noting
from dlemu.comm.launched_comm import LaunchedComm
from dlemu.comm.local import Rendezvous
from dlemu.comm.process_control import after_fork_in_child, die_with_parent, forking, interrupt_on

_RUN, _END, _DONE = b"r", b"e", b"d"
_LONGEST_MESSAGE = 100_000  # bytes per receive, far more than a failure's text; a longer message takes several
_POLL_SECONDS = 0.01  # a member that has reported its end takes milliseconds to exit
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC)
_ENDING = (signal.SIGTERM, signal.SIGINT)
T = TypeVar("T")
OnFailure = Callable[[Failure], None]


class MemberFailedError(DlemuError):
    """The failure of the member whose placeholder this process is."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.exit_status = failure.status


def are_alike(comm: LaunchedComm) -> bool:
    """Return whether on every host one process can run the ranks of all others there. Collective."""
    alike = comm.gather_host(_surroundings())
    odd = comm.gather(alike is not None and any(each != alike[0] for each in alike))
    same: bool = comm.broadcast(odd is not None and not any(odd))
    return same


def _surroundings() -> tuple[object, ...]:
    """Return what a forked process inherits from its leader and must be equal for all processes of a host."""
    spaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "pid", "net", "user")]
    with open("/proc/self/cgroup", errors="surrogateescape") as group:
        groups = group.read()
    limits = [resource.getrlimit(limit) for limit in _LIMITS]
    programs = (sys.executable, sys.argv, os.getcwd(), os.geteuid(), os.getegid(), os.nice(0))
    return (programs, spaces, groups, limits, _memory_policy())


def _memory_policy() -> str:
    with contextlib.suppress(OSError, IndexError), open("/proc/self/numa_maps", errors="surrogateescape") as maps:
        return maps.readline().split()[1]
    return ""


@dataclass(frozen=True)
class _Place:
    """A placeholder process, and the CPUs and environment that its member takes over."""

    process: int
    cpus: set[int]
    environment: dict[str, str]

    @classmethod
    def own(cls) -> _Place:
        return cls(os.getpid(), os.sched_getaffinity(0), dict(os.environ))

    def take(self) -> None:
        with contextlib.suppress(OSError):  # the leader may not use those CPUs: the member then stays on the leader's
            os.sched_setaffinity(0, self.cpus)
        os.environ.clear()
        os.environ.update(self.environment)


class Host:
    """The leader's side: it runs all ranks of its host, one of them itself."""

    def __init__(self, comm: LaunchedComm, places: list[_Place], placeholders: dict[int, socket.socket]) -> None:
        self.comm, self._places, self._placeholders = comm, places, placeholders
        after_fork_in_child(self._forget)

    def run(self, main: Callable[[Comm], T], on_failure: OnFailure, note: str) -> T:
        """Run `main` to its end as each of the host's ranks; return the result of this process's own rank.

        Collective over the leaders. Raises what `main` raised in this process, and SpaceError when the system has no
        room; what it raised in a member is raised by the member's placeholder, with `note`, and ends the job.
        """
        token = secrets.token_hex(16)
        with forking():
            members = self._fork_all(token, main, on_failure, note)
        own = self.comm.member(0, token)
        try:
            result = main(own)
            own.close()
        except BaseException as raised:
            # A launcher that sees a rank killed ends the others, before a sleeping one has missed it.
            killed = self._killed(members) if isinstance(raised, Interrupted) else ""
            error = PeerLostError(f"{killed} was killed") if killed else raised
            failure = describe(own.rank, error)
            own.leave(failure.status, failure.message)
            self._wake_placeholders()  # one of them may have to report the cause
            if killed:
                raise error from None
            raise
        for process in members:
            _reap(process, self.comm.timeout_seconds)
        return result

    def end(self) -> None:
        """Release the placeholders; raises PeerLostError when one does not end: the launcher would wait for it."""
        for stream in self._placeholders.values():
            with contextlib.suppress(OSError):
                stream.sendall(_END)
        self._wake_placeholders()
        for local_rank, stream in self._placeholders.items():
            stream.settimeout(self.comm.timeout_seconds)
            with stream, contextlib.suppress(ConnectionResetError):
                try:
                    stream.recv(1)
                except TimeoutError as error:
                    seconds = f"{self.comm.timeout_seconds:g} s"
                    raise PeerLostError(f"{self.comm.name(local_rank)} did not end within {seconds}") from error

    def _killed(self, members: Sequence[int]) -> str:
        for local_rank, process in zip(self._placeholders, members, strict=True):
            with contextlib.suppress(ChildProcessError):
                status = os.waitpid(process, os.WNOHANG)[1]
                if os.WIFSIGNALED(status) and os.WTERMSIG(status) not in _ENDING:  # those the launcher sends to all
                    return self.comm.name(local_rank)
        return ""

    def _wake_placeholders(self) -> None:
        for local_rank in self._placeholders:
            with contextlib.suppress(OSError):  # the placeholder has ended
                os.kill(self._places[local_rank].process, signal.SIGCONT)

    def _fork_all(self, token: str, main: Callable[[Comm], object], on_failure: OnFailure, note: str) -> list[int]:
        leader, members = os.getpid(), []
        try:
            for local_rank, placeholder in self._placeholders.items():
                theirs, ours = socket.socketpair()
                process = os.fork()
                if process == 0:
                    theirs.close()
                    die_with_parent(leader)
                    self._places[local_rank].take()
                    _run_member_and_exit(self.comm, local_rank, token, ours, main, on_failure)
                ours.close()
                socket.send_fds(placeholder, [_RUN, os.fsencode(note)], [theirs.fileno()])
                theirs.close()
                members.append(process)
        except BlockingIOError as error:
            raise SpaceError(
                f"rank {len(members) + 1} of {self.comm.local_size} on this host could not be started ({error}): use "
                "fewer ranks, or raise the limit on processes (`ulimit -u`)"
            ) from error
        return members

    def _forget(self) -> None:
        for stream in self._placeholders.values():
            stream.close()


@contextlib.contextmanager
def lead(comm: LaunchedComm, *, ends_after: type[Exception]) -> Iterator[Host]:
    """Yield the host that this process leads; its other processes run `serve_placeholder` meanwhile.

    They are released at the end, and after an error of type `ends_after`, which is raised on every leader.
    """
    places = comm.gather_host(_Place.own()) or []
    rendezvous = Rendezvous(comm.token("placeholders"), 0, comm.local_size, comm.timeout_seconds, comm.name)
    missing, streams = set(range(1, comm.local_size)), {}
    with contextlib.closing(rendezvous):
        while missing:
            local_rank, stream = rendezvous.accept(missing)
            stream.settimeout(None)
            missing.remove(local_rank)
            streams[local_rank] = stream
    host = Host(comm, places, dict(sorted(streams.items())))
    try:
        yield host
    except ends_after:
        host.end()
        raise
    host.end()


def serve_placeholder(comm: LaunchedComm) -> None:
    """Wait until this host's leader, which runs this process's rank in a member, releases this process.

    Raises what ended the rank: MemberFailedError, PeerLostError or Interrupted.
    """
    comm.gather_host(_Place.own())
    rendezvous = Rendezvous(
        comm.token("placeholders"), comm.local_rank, comm.local_size, comm.timeout_seconds, comm.name
    )
    with contextlib.closing(rendezvous):
        leader = rendezvous.call(0)
    leader.settimeout(None)
    with leader:
        while True:
            message, descriptors, _, _ = socket.recv_fds(leader, _LONGEST_MESSAGE, 1)
            if message == _END:
                return
            if not message.startswith(_RUN):
                raise PeerLostError(f"{comm.name(0)} ended without a message")
            with socket.socket(fileno=descriptors[0]) as member, noting(os.fsdecode(message.removeprefix(_RUN))):
                _wait_for(member, leader, comm)


def _wait_for(member: socket.socket, leader: socket.socket, comm: LaunchedComm) -> None:
    ready: list[socket.socket] = []
    while member not in ready:
        ready, _, _ = select.select([member, leader], [], [])
        if ready == [leader] and not leader.recv(1, socket.MSG_PEEK):
            raise PeerLostError(f"{comm.name(0)} ended without a message")
        if ready == [leader]:  # the leader is already done, so the member's last message must be on its way
            ready, _, _ = select.select([member], [], [])
    message = b"".join(iter(lambda: member.recv(_LONGEST_MESSAGE), b""))
    if message == _DONE:
        return
    if not message:
        raise DlemuError(f"{comm.name(comm.local_rank)} was killed; {out_of_memory_hint()}, or {RANK.remedy}")
    failure = Failure.from_json(message.decode())
    if failure.echo:
        raise PeerLostError(failure.message)
    if failure.kind == Interrupted.__name__:
        raise Interrupted(failure.status - 128)
    raise MemberFailedError(failure)


class _ResultChannel:
    """A member's channel to its placeholder. The member's own children close it, so that its end can be noticed."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        after_fork_in_child(stream.close)

    def send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):
            self._stream.sendall(message)


def _run_member_and_exit(
    comm: LaunchedComm,
    local_rank: int,
    token: str,
    stream: socket.socket,
    main: Callable[[Comm], object],
    on_failure: OnFailure,
) -> NoReturn:
    status = DlemuError.exit_status
    try:
        status = _work(comm, local_rank, token, _ResultChannel(stream), main, on_failure)
        for output in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                output.flush()
    finally:
        os._exit(status)  # whatever happened, the caller's stack is not ours to return into


def _work(
    comm: LaunchedComm,
    local_rank: int,
    token: str,
    channel: _ResultChannel,
    main: Callable[[Comm], object],
    on_failure: OnFailure,
) -> int:
    interrupt_on(signal.SIGINT, signal.SIGTERM)
    own = None
    try:
        own = comm.member(local_rank, token)
        main(own)
        own.close()
        channel.send(_DONE)
        return 0
    except BaseException as error:
        failure = describe(comm.world_rank(local_rank), error)
        if own is not None:
            on_failure(failure)
            own.leave(failure.status, failure.message)
        channel.send(failure.to_json().encode())
        return failure.status


def _reap(process: int, seconds: float) -> None:
    deadline_seconds = time.monotonic() + seconds
    while os.waitpid(process, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline_seconds:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return
        time.sleep(_POLL_SECONDS)

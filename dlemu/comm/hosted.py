"""One process of each host runs all of the launcher's ranks there, so that what they import is imported once.

mpirun starts N processes, each of which would import its loader's framework: seconds of CPU and 100 MB and more for
each. Instead the first process of each host, its leader, imports it and forks a member for every other rank of the
host. The processes that the launcher started for these are placeholders of their members: they sleep, and end as their
member ended, so that the launcher sees each rank's fate. A member has the CPUs and the environment of its stand-in, and
dies with the leader. A stand-in that somebody stops (SIGSTOP) stops no rank: the leader wakes it when the ranks end, as
the launcher waits for all of its processes.

Only processes that are alike may replace each other (`are_alike`): a launcher, or a script under it, may give
each its own limits, memory policy or container.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from datagen.errors import DlemuError, SpaceError
from dlemu.comm.cgroup_limits import who_killed
from dlemu.comm.comm_base import Comm, Interrupted, PeerLostError
from dlemu.comm.failure import RANK, Failure, describe
from dlemu.comm.launched_comm import LaunchedComm
from dlemu.comm.local import Rendezvous
from dlemu.comm.process_control import after_fork_in_child, die_with_parent, interrupt_once

_RUN, _END, _DONE = b"r", b"e", b"d"
_LONGEST_MESSAGE = 100_000  # far more than a failure's text; what is longer comes with the next receive
_LOOK_SECONDS = 0.01  # a member that has reported its end takes milliseconds to exit
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC)
T = TypeVar("T")
OnFailure = Callable[[Failure], None]
"""Leaves what ended a member where the run is saved."""


class MemberFailedError(DlemuError):
    """What ended the member whose placeholder this process is."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.exit_status = failure.status


def are_alike(comm: LaunchedComm) -> bool:
    """Return whether on every host one process may run the ranks of all others there. Collective."""
    alike = comm.gather_host(_surroundings())
    odd = comm.gather(alike is not None and any(each != alike[0] for each in alike))
    same: bool = comm.broadcast(odd is not None and not any(odd))
    return same


def _surroundings() -> tuple[object, ...]:
    """Return what a forked process would take over of its leader and must not differ."""
    spaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "pid", "net", "user")]
    with open("/proc/self/cgroup", errors="surrogateescape") as group:
        groups = group.read()
    limits = [resource.getrlimit(limit) for limit in _LIMITS]
    programs = (sys.executable, sys.argv, os.getcwd(), os.geteuid(), os.getegid(), os.nice(0))
    return (programs, spaces, groups, limits, _memory_policy())


def _memory_policy() -> str:
    """Return the NUMA policy of this process by numa_maps in proc(5); empty where the kernel reports none."""
    with contextlib.suppress(OSError, IndexError), open("/proc/self/numa_maps", errors="surrogateescape") as maps:
        return maps.readline().split()[1]
    return ""


@dataclass(frozen=True)
class _Place:
    """A stand-in, and what its member takes over of it."""

    process: int
    """Its id."""
    cpus: set[int]
    environment: dict[str, str]

    @classmethod
    def own(cls) -> _Place:
        return cls(os.getpid(), os.sched_getaffinity(0), dict(os.environ))

    def take(self) -> None:
        with contextlib.suppress(OSError):  # CPUs that the leader may not use: then where the leader is
            os.sched_setaffinity(0, self.cpus)
        os.environ.clear()
        os.environ.update(self.environment)


class Host:
    """The leader's side: the ranks of its host, of which it is one itself."""

    def __init__(self, comm: LaunchedComm, places: list[_Place], stand_ins: dict[int, socket.socket]) -> None:
        self.comm, self._places, self._stand_ins = comm, places, stand_ins
        after_fork_in_child(self._forget)

    def run(self, main: Callable[[Comm], T], on_failure: OnFailure) -> T:
        """Run `main` as each of the host's ranks to its end, and return what this one's returned; collective over the
        leaders.

        Raises what `main` raised here; what it raised in a member is raised by its stand-in, which ends the job.
        Raises SpaceError when the system has no room for so many processes.
        """
        token = secrets.token_hex(16)
        members = self._fork_all(token, main, on_failure)
        own = self.comm.member(0, token)
        try:
            result = main(own)
            own.close()
        except BaseException as error:
            failure = describe(own.rank, error)
            own.leave(failure.status, failure.message)
            self._wake_stand_ins()  # one of them may have the cause to tell
            raise
        for process in members:
            _reap(process, self.comm.timeout_seconds)
        return result

    def end(self) -> None:
        """Let the stand-ins go; raises PeerLostError when one stalls: the launcher would wait for it for ever."""
        for stream in self._stand_ins.values():
            with contextlib.suppress(OSError):
                stream.sendall(_END)
        self._wake_stand_ins()
        for local_rank, stream in self._stand_ins.items():
            stream.settimeout(self.comm.timeout_seconds)
            with stream, contextlib.suppress(ConnectionResetError):
                try:
                    stream.recv(1)
                except TimeoutError as error:
                    seconds = f"{self.comm.timeout_seconds:g} s"
                    raise PeerLostError(f"{self.comm.name(local_rank)} did not end within {seconds}") from error

    def _wake_stand_ins(self) -> None:
        for local_rank in self._stand_ins:
            with contextlib.suppress(OSError):  # it has ended
                os.kill(self._places[local_rank].process, signal.SIGCONT)

    def _fork_all(self, token: str, main: Callable[[Comm], object], on_failure: OnFailure) -> list[int]:
        sys.stdout.flush()
        sys.stderr.flush()
        gc.collect()
        gc.freeze()  # else the collector's marks would copy every page in every member
        leader, members = os.getpid(), []
        try:
            for local_rank, placeholder in self._stand_ins.items():
                theirs, ours = socket.socketpair()
                process = os.fork()
                if process == 0:
                    theirs.close()
                    die_with_parent(leader)
                    self._places[local_rank].take()
                    _be_member(self.comm, local_rank, token, ours, main, on_failure)
                ours.close()
                socket.send_fds(placeholder, [_RUN], [theirs.fileno()])
                theirs.close()
                members.append(process)
        except BlockingIOError as error:
            raise SpaceError(
                f"rank {len(members) + 1} of {self.comm.local_size} on this host could not be started ({error}): use "
                "fewer ranks, or raise the limit on processes (`ulimit -u`)"
            ) from error
        finally:
            gc.unfreeze()
        return members

    def _forget(self) -> None:
        for stream in self._stand_ins.values():
            stream.close()


@contextlib.contextmanager
def lead(comm: LaunchedComm, *, ends_after: type[Exception]) -> Iterator[Host]:
    """Yield the host that this process leads: the others of it are in `serve_placeholder` meanwhile.

    They are let go at the end, and after an error of the type `ends_after`, which every leader has.
    """
    places = comm.gather_host(_Place.own()) or []
    rendezvous = Rendezvous(comm.token("stand-ins"), 0, comm.local_size, comm.timeout_seconds, comm.name)
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
    """Wait in place of the rank that the leader of this host runs, until it releases this process.

    Raises what ended the rank: MemberFailedError, PeerLostError or Interrupted.
    """
    comm.gather_host(_Place.own())
    rendezvous = Rendezvous(comm.token("stand-ins"), comm.local_rank, comm.local_size, comm.timeout_seconds, comm.name)
    with contextlib.closing(rendezvous):
        leader = rendezvous.call(0)
    leader.settimeout(None)
    with leader:
        while True:
            message, descriptors, _, _ = socket.recv_fds(leader, 1, 1)
            if message == _END:
                return
            if message != _RUN:
                raise PeerLostError(f"{comm.name(0)} ended without a message")
            with socket.socket(fileno=descriptors[0]) as member:
                _wait_for(member, leader, comm)


def _wait_for(member: socket.socket, leader: socket.socket, comm: LaunchedComm) -> None:
    """Wait for the member's end."""
    ready: list[socket.socket] = []
    while member not in ready:
        ready, _, _ = select.select([member, leader], [], [])
        if ready == [leader] and not leader.recv(1, socket.MSG_PEEK):
            raise PeerLostError(f"{comm.name(0)} ended without a message")
        if ready == [leader]:  # it goes on already: the member's last word is on its way
            ready, _, _ = select.select([member], [], [])
    message = b"".join(iter(lambda: member.recv(_LONGEST_MESSAGE), b""))
    if message == _DONE:
        return
    if not message:
        raise DlemuError(f"{comm.name(comm.local_rank)} was killed; {who_killed()}, or {RANK.remedy}")
    failure = Failure.from_json(message.decode())
    if failure.echo:
        raise PeerLostError(failure.message)
    if failure.kind == Interrupted.__name__:
        raise Interrupted(failure.status - 128)
    raise MemberFailedError(failure)


class _ResultChannel:
    """A member's line to its stand-in. The member's own children have none: they would hide its end."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        after_fork_in_child(stream.close)

    def send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):
            self._stream.sendall(message)


def _be_member(
    comm: LaunchedComm,
    local_rank: int,
    token: str,
    stream: socket.socket,
    main: Callable[[Comm], object],
    on_failure: OnFailure,
) -> NoReturn:
    """Be a rank until the end of the process."""
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
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt_once())
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
    """Wait for a member that has nothing left to do; kill it where it does not end all the same."""
    deadline_seconds = time.monotonic() + seconds
    while os.waitpid(process, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline_seconds:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return
        time.sleep(_LOOK_SECONDS)

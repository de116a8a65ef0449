"""One process of each host runs all of the launcher's ranks there, so that what they import is imported once.

mpirun, srun and torchrun start N processes, each of which would import its loader's framework: seconds of CPU and
100 MB and more for each. Instead the first process of each host, its leader, imports it and forks all ranks of the
host. The others become placeholders, which sleep, and end with the status of their rank. A rank has its placeholder's
CPUs and environment. A placeholder that is stopped (SIGSTOP) stops no rank: the leader wakes it when the ranks end, as
the launcher waits for all of its processes. Signals to a placeholder are ignored: the leader gets them too.

Where the processes of a host are not alike (a launcher, or a script under it, may give each its own limits, memory
policy or container), each leads its own rank.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import select
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from datagen.errors import DlemuError
from dlemu import __version__
from dlemu.ranks.comm_base import PeerLostError, detect_launcher, name_ranks
from dlemu.ranks.failure import Failure
from dlemu.ranks.launch import RankGroup
from dlemu.ranks.local import HostPlace
from dlemu.ranks.messages import decode, encode
from dlemu.ranks.process_control import flush_output, ignore, interrupt_on, stands_still
from dlemu.ranks.tree import Connection, Frame

if TYPE_CHECKING:  # most runs are on one host
    from dlemu.ranks.leaders import Leaders

_LOOK_SECONDS = 1.0  # between two looks of a placeholder whether its leader is stopped
_RETRY_SECONDS = 0.01
_CLOSING_SECONDS = 3600.0  # far more than rank 0 takes to write results; bounded, as a host may be cut off meanwhile
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC)


class Launched(Protocol):
    """What one of a launcher's processes knows from the launcher."""

    rank: int
    size: int
    timeout_seconds: float
    ends_all: bool
    """Whether the launcher ends the other hosts when one fails."""

    @property
    def members(self) -> Sequence[int]:
        """The ranks whose processes are on this host, rising."""

    @property
    def door(self) -> str:
        """Names the place where this host's processes meet: another for each start."""

    def connect(self, led: Sequence[int]) -> Leaders | None:
        """Connect to the other leaders; `led` are the ranks that this process leads. Collective over all processes.

        Returns None for a placeholder, and where there is one leader.
        """

    def finish(self) -> None:
        """Take leave of the launcher, after the last call of all processes."""

    def end(self, status: int) -> None:
        """Have the launcher end all processes, where it has a call for that; may not return."""


@dataclass(frozen=True)
class _Process:
    """A process of the launcher's: the CPUs and environment that its rank takes over, and what leaders pass on."""

    rank: int
    process: int
    cpus: list[int]
    environment: dict[str, str]
    surroundings: str

    @classmethod
    def of(cls, rank: int) -> _Process:
        return cls(rank, os.getpid(), sorted(os.sched_getaffinity(0)), dict(os.environ), _surroundings())

    def take(self) -> None:
        with contextlib.suppress(OSError):  # the leader may not use those CPUs: the rank then stays on the leader's
            os.sched_setaffinity(0, self.cpus)
        os.environ.clear()
        os.environ.update(self.environment)


def _surroundings() -> str:
    """Return what a forked process inherits from its leader and must be equal for all processes of a host."""
    spaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "pid", "net", "user")]
    with open("/proc/self/cgroup", errors="surrogateescape") as group:
        groups = group.read()
    limits = [resource.getrlimit(limit) for limit in _LIMITS]
    programs = (sys.executable, sys.argv, os.getcwd(), os.geteuid(), os.getegid(), os.nice(0))
    return repr((programs, spaces, groups, limits, _memory_policy()))


def _memory_policy() -> str:
    with contextlib.suppress(OSError, IndexError), open("/proc/self/numa_maps", errors="surrogateescape") as maps:
        return maps.readline().split()[1]
    return ""


class Host:
    """This process as the leader of its host: it forks the ranks there, and meets the leaders of other hosts."""

    def __init__(self, launched: Launched, own: _Process, others: Sequence[tuple[_Process, Connection]] = ()) -> None:
        """`others` are the processes whose ranks this one runs besides its `own`, in the order of their ranks."""
        self._launched, self._own, self._others = launched, own, others
        os.register_at_fork(after_in_child=self._forget)
        led = [own.rank, *(process.rank for process, _ in others)]
        self._leaders = launched.connect(led)
        about = (socket.gethostname(), led, __version__)
        names, members, self.versions = zip(
            *([about] if self._leaders is None else self._leaders.all_values(about)), strict=True
        )
        self.node = 0 if self._leaders is None else self._leaders.node
        self.place = HostPlace(self.node, names, led, launched.size)
        self.ends_all = launched.ends_all
        self.statuses: dict[int, int] = {}
        """How ranks ended, other than by the status of the whole run."""
        if self._leaders is not None:
            pairs = zip(names, members, strict=True)
            self._leaders.names = [f"host {name} ({name_ranks(ranks)})" for name, ranks in pairs]
            self._leaders.clock_offsets()

    @property
    def group(self) -> RankGroup:
        places = [self._own, *(process for process, _ in self._others)]
        return RankGroup(self.place, self._leaders, lambda local_rank: places[local_rank].take())

    @property
    def knows_cause(self) -> bool:
        """Whether another host has failed and said so."""
        return self._leaders is not None and self._leaders.lost is not None

    def broadcast(self, value: Any) -> Any:
        """Return node 0's value on every leader; collective over these."""
        if self._leaders is None:
            return value
        message = self._leaders.broadcast(encode(value) if self.node == 0 else b"")
        return value if self.node == 0 else decode(message)

    def set_timeout(self, timeout_seconds: float) -> None:
        if self._leaders is not None:
            self._leaders.timeout_seconds = timeout_seconds
        for _, stream in self._others:
            _send(stream, Frame.TIMEOUT, round(1000 * timeout_seconds))

    def leave(self, failure: Failure) -> None:
        """Send the other hosts the reason why this one has failed, unless one of them has failed before."""
        if self._leaders is not None and not self.knows_cause:
            self._leaders.leave(failure)

    def close(self) -> None:
        """End, once the ranks of all hosts have."""
        if self._leaders is not None:
            self._leaders.barrier(_CLOSING_SECONDS)
        self._release(0)
        for _, stream in self._others:
            stream.receive(Frame.END)
        self._launched.finish()

    def end(self, status: int) -> None:
        """End all processes that the launcher started, after a failure that was reported; may not return."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, ignore)
        flush_output()
        self._launched.end(status)
        self._release(status)

    def _release(self, status: int) -> None:
        for process, stream in self._others:
            _send(stream, Frame.END, self.statuses.get(process.rank, status))
            with contextlib.suppress(OSError):  # it has ended
                os.kill(process.process, signal.SIGCONT)

    def _forget(self) -> None:
        for _, stream in self._others:
            stream.close()


class Placeholder:
    """This process, whose rank its host's leader runs."""

    def __init__(self, launched: Launched, leader: int, stream: Connection) -> None:
        """`leader` is the leader's process id."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, ignore)
        launched.connect(())
        self._launched, self._leader, self._stream = launched, leader, stream
        self._timeout_seconds = launched.timeout_seconds

    def serve(self) -> int:
        """Sleep until the rank has ended; return its exit status. Raises PeerLostError when the leader was lost."""
        while True:
            self._watch_leader()
            kind, number = self._stream.receive_head(Frame.END)
            if kind == Frame.END:
                break
            self._timeout_seconds = number / 1000
        _send(self._stream, Frame.END, 0)
        if number == 0:
            self._launched.finish()
        return number

    def _watch_leader(self) -> None:
        """Return when the leader has sent something, or ended; kill a leader that is stopped for too long.

        Time is counted in looks: none passes while the whole job is suspended.
        """
        stood_seconds = 0.0
        while not select.select([self._stream], [], [], _LOOK_SECONDS)[0]:
            stood_seconds = stood_seconds + _LOOK_SECONDS if stands_still(self._leader) else 0.0
            if stood_seconds > self._timeout_seconds:
                os.kill(self._leader, signal.SIGKILL)


@functools.cache
def join(timeout_seconds: float) -> Host | Placeholder:
    """Meet the launcher's other processes, once per process. Raises UserError, PeerLostError."""
    launched = _launched(timeout_seconds)
    interrupt_on(signal.SIGINT, signal.SIGTERM)
    return _through_door(launched)


def _launched(timeout_seconds: float) -> Launched:
    if detect_launcher() == "store":
        from dlemu.ranks.torchrun import TorchrunProcess

        return TorchrunProcess(timeout_seconds)
    from dlemu.ranks.mpi import MpiProcess

    return MpiProcess(timeout_seconds)


def _through_door(launched: Launched) -> Host | Placeholder:
    own, members = _Process.of(launched.rank), launched.members
    folder = os.path.join(tempfile.gettempdir(), f"dlemu-{launched.door}")
    if launched.rank != members[0]:
        stream = _enter(launched, folder)
        stream.send_payload(Frame.START, encode(own))
        kind, leader = stream.receive_head(Frame.START)
        if kind == Frame.LED:
            return Placeholder(launched, leader, stream)
        stream.close()
        return Host(launched, own)
    others = sorted(_visitors(launched, folder), key=lambda other: other[0].rank) if len(members) > 1 else []
    alike = len({own.surroundings, *(process.surroundings for process, _ in others)}) == 1
    for _, stream in others:
        _send(stream, Frame.LED if alike else Frame.ALONE, os.getpid())
    if alike:
        return Host(launched, own, others)
    for _, stream in others:
        stream.close()
    print(
        f"dlemu: the processes of {name_ranks(members)} on {socket.gethostname()} differ (limits, control groups or "
        "folders), so each imports the framework and runs its rank alone",
        file=sys.stderr,
    )
    return Host(launched, own)


def _visitors(launched: Launched, folder: str) -> Iterator[tuple[_Process, Connection]]:
    """Yield the other processes of this host, as they come to a folder that only this user can enter."""
    deadline_seconds = time.monotonic() + launched.timeout_seconds
    with contextlib.suppress(FileExistsError):  # a start that was killed here left it
        os.mkdir(folder, 0o700)
    with _opened(folder) as door, socket.socket(socket.AF_UNIX) as listener:
        if not door:
            raise DlemuError(f"{folder} is not a folder of this user alone: remove it")
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(door)
            listener.bind(door)
            listener.listen(socket.SOMAXCONN)
            for missing in range(len(launched.members) - 1, 0, -1):
                listener.settimeout(max(deadline_seconds - time.monotonic(), 0.001))
                try:
                    stream, _ = listener.accept()
                except TimeoutError as error:
                    raise PeerLostError(
                        f"{missing} of the processes of {name_ranks(launched.members)} did not arrive within "
                        f"{launched.timeout_seconds:g} s"
                    ) from error
                other = Connection(stream, "a process of this host", launched.timeout_seconds)
                yield decode(other.receive_payload(Frame.START)), other
        finally:
            with contextlib.suppress(OSError):
                os.unlink(door)
                os.rmdir(folder)


def _enter(launched: Launched, folder: str) -> Connection:
    """Connect to the leader, which may not listen yet."""
    leader, deadline_seconds = launched.members[0], time.monotonic() + launched.timeout_seconds
    while time.monotonic() < deadline_seconds:
        stream = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError), _opened(folder) as door:
            stream.connect(door)
            return Connection(stream, f"the process of rank {leader}", launched.timeout_seconds)
        stream.close()
        time.sleep(_RETRY_SECONDS)
    raise PeerLostError(f"the process of rank {leader} did not arrive within {launched.timeout_seconds:g} s")


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[str]:
    """Yield the path of a folder's door, by the folder that was looked at; '' unless this user alone can enter it."""
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield ""
        return
    try:
        status = os.fstat(descriptor)
        private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
        yield f"/proc/self/fd/{descriptor}/door" if private else ""
    finally:
        os.close(descriptor)


def _send(stream: Connection, frame: Frame, number: int) -> None:
    with contextlib.suppress(PeerLostError):  # it has ended: the launcher sees that
        stream.send(frame, number)

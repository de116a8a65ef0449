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
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from datagen.errors import DlemuError
from dlemu import __version__
from dlemu.comm.comm_base import PeerLostError, detect_launcher, name_ranks
from dlemu.comm.failure import Failure
from dlemu.comm.launch import RankGroup
from dlemu.comm.local import HostPlace
from dlemu.comm.process_control import after_fork_in_child, flush_output, ignore, interrupt_on, stands_still

if TYPE_CHECKING:  # most runs are on one host
    from dlemu.comm.leaders import Leaders

_MESSAGE = struct.Struct("<cq")  # leader to placeholder: kind, number
_LED, _ALONE, _TIMEOUT, _END = b"l", b"a", b"t", b"e"
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

    def __init__(
        self, launched: Launched, led: Sequence[int], places: Sequence[_Process], streams: Sequence[socket.socket]
    ) -> None:
        """`places` are the processes of the ranks that are `led`, `streams` lead to all but the first of them."""
        self._launched, self._places, self._streams = launched, places, streams
        after_fork_in_child(self._forget)
        self._leaders = launched.connect(led)
        about = self._all_values((socket.gethostname(), list(led), __version__))
        names, members, self.versions = zip(*about, strict=True)
        self.place = HostPlace(0 if self._leaders is None else self._leaders.node, names, led, launched.size)
        self.statuses: dict[int, int] = {}
        """How ranks ended, other than by the status of the whole run."""
        if self._leaders is not None:
            pairs = zip(names, members, strict=True)
            self._leaders.set_names([f"host {name} ({name_ranks(ranks)})" for name, ranks in pairs])
            self._leaders.clock_offsets()

    @property
    def node(self) -> int:
        return self.place.node

    @property
    def group(self) -> RankGroup:
        return RankGroup(self.place, self._leaders, lambda local_rank: self._places[local_rank].take())

    @property
    def ends_all(self) -> bool:
        return self._launched.ends_all

    @property
    def knows_cause(self) -> bool:
        """Whether another host has failed and said so."""
        return self._leaders is not None and self._leaders.lost is not None

    def broadcast(self, value: Any) -> Any:
        """Return node 0's value on every leader; collective over these."""
        return self._all_values(value)[0]

    def set_timeout(self, timeout_seconds: float) -> None:
        if self._leaders is not None:
            self._leaders.timeout_seconds = timeout_seconds
        self._send_all(_TIMEOUT, round(1000 * timeout_seconds))

    def leave(self, failure: Failure) -> None:
        """Send the other hosts the reason why this one has failed, unless one of them has failed before."""
        if self._leaders is not None and not self.knows_cause:
            self._leaders.leave(failure)

    def close(self) -> None:
        """End, once the ranks of all hosts have."""
        if self._leaders is not None:
            self._leaders.barrier(_CLOSING_SECONDS)
        self._release(0)
        for rank, stream in zip(self.place.members[1:], self._streams, strict=True):
            stream.settimeout(self._launched.timeout_seconds)
            with stream, contextlib.suppress(ConnectionResetError):
                try:
                    stream.recv(1)
                except TimeoutError as error:
                    seconds = f"{self._launched.timeout_seconds:g} s"
                    raise PeerLostError(f"the process of rank {rank} did not end within {seconds}") from error
        self._launched.finish()

    def end(self, status: int) -> None:
        """End all processes that the launcher started, after a failure that was reported; may not return."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, ignore)
        flush_output()
        self._launched.end(status)
        self._release(status)

    def _all_values(self, value: Any) -> list[Any]:
        return [value] if self._leaders is None else self._leaders.all_values(value)

    def _release(self, status: int) -> None:
        for rank, stream, place in zip(self.place.members[1:], self._streams, self._places[1:], strict=True):
            _send(stream, _END, self.statuses.get(rank, status))
            with contextlib.suppress(OSError):  # it has ended
                os.kill(place.process, signal.SIGCONT)

    def _send_all(self, kind: bytes, number: int) -> None:
        for stream in self._streams:
            _send(stream, kind, number)

    def _forget(self) -> None:
        for stream in self._streams:
            stream.close()


class Placeholder:
    """This process, whose rank its host's leader runs."""

    def __init__(self, launched: Launched, leader: int, stream: socket.socket) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, ignore)
        launched.connect(())
        self._launched, self._leader, self._stream = launched, leader, stream
        self._timeout_seconds = launched.timeout_seconds

    def serve(self) -> int:
        """Sleep until the rank has ended; return its exit status. Raises PeerLostError when the leader was lost."""
        with self._stream:
            while True:
                self._watch_leader()
                kind, number = _receive(self._stream, f"the process of rank {self._launched.members[0]}")
                if kind == _END:
                    break
                self._timeout_seconds = number / 1000
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


def join(timeout_seconds: float) -> Host | Placeholder:
    """Meet the launcher's other processes. Raises UserError, PeerLostError."""
    launched = _launched(timeout_seconds)
    interrupt_on(signal.SIGINT, signal.SIGTERM)
    return _through_door(launched)


def _launched(timeout_seconds: float) -> Launched:
    if detect_launcher() == "store":
        from dlemu.comm.torchrun import TorchrunProcess

        return TorchrunProcess(timeout_seconds)
    from dlemu.comm.mpi import MpiProcess

    return MpiProcess(timeout_seconds)


def _through_door(launched: Launched) -> Host | Placeholder:
    own, members = _Process.of(launched.rank), launched.members
    deadline_seconds = time.monotonic() + launched.timeout_seconds
    if launched.rank != members[0]:
        stream = _enter(launched, deadline_seconds)
        stream.sendall(json.dumps(vars(own)).encode() + b"\n")
        kind, leader = _receive(stream, f"the process of rank {members[0]}")
        if kind == _LED:
            stream.settimeout(None)
            return Placeholder(launched, leader, stream)
        stream.close()
        return Host(launched, [launched.rank], [own], [])
    with contextlib.ExitStack() as unless_led:
        places, streams = {launched.rank: own}, dict[int, socket.socket]()
        if len(members) > 1:
            with _door(launched.door) as listener:
                for stream in _visitors(listener, launched, deadline_seconds):
                    place = _read_process(unless_led.enter_context(stream))
                    places[place.rank], streams[place.rank] = place, stream
        alike = len({place.surroundings for place in places.values()}) == 1
        for stream in streams.values():
            _send(stream, _LED if alike else _ALONE, os.getpid())
            stream.settimeout(None)
        if alike:
            unless_led.pop_all()
            return Host(launched, members, [places[rank] for rank in members], [streams[rank] for rank in members[1:]])
    print(
        f"dlemu: the processes of {name_ranks(members)} on {socket.gethostname()} differ (limits, control groups or "
        "folders), so each imports the framework and runs its rank alone",
        file=sys.stderr,
    )
    return Host(launched, [launched.rank], [own], [])


@contextlib.contextmanager
def _door(name: str) -> Iterator[socket.socket]:
    """Yield a socket that listens in a folder which only this user can enter, and that is removed afterwards."""
    folder = _door_folder(name)
    with contextlib.suppress(FileExistsError):  # a start that was killed here left it
        os.mkdir(folder, 0o700)
    descriptor = _open_door(folder)
    if descriptor is None:
        raise DlemuError(f"{folder} is not a folder of this user alone: remove it")
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            with contextlib.suppress(FileNotFoundError):
                os.unlink("door", dir_fd=descriptor)
            listener.bind(f"/proc/self/fd/{descriptor}/door")
            listener.listen(socket.SOMAXCONN)
            yield listener
    finally:
        with contextlib.suppress(OSError):
            os.unlink("door", dir_fd=descriptor)
            os.rmdir(folder)
        os.close(descriptor)


def _door_folder(name: str) -> str:
    return os.path.join(tempfile.gettempdir(), f"dlemu-{name}")


def _open_door(folder: str) -> int | None:
    """Return a descriptor of the folder, None unless this user alone can enter it."""
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077:
        return descriptor
    os.close(descriptor)
    return None


def _visitors(listener: socket.socket, launched: Launched, deadline_seconds: float) -> Iterator[socket.socket]:
    for number in range(1, len(launched.members)):
        listener.settimeout(max(deadline_seconds - time.monotonic(), 0.001))
        try:
            stream, _ = listener.accept()
        except TimeoutError as error:
            missing = len(launched.members) - number
            raise PeerLostError(
                f"{missing} of the processes of {name_ranks(launched.members)} did not arrive within "
                f"{launched.timeout_seconds:g} s"
            ) from error
        stream.settimeout(launched.timeout_seconds)
        yield stream


def _enter(launched: Launched, deadline_seconds: float) -> socket.socket:
    """Connect to the leader, which may not listen yet."""
    folder = _door_folder(launched.door)
    while time.monotonic() < deadline_seconds:
        descriptor = _open_door(folder)
        if descriptor is not None:
            stream = socket.socket(socket.AF_UNIX)
            try:
                stream.connect(f"/proc/self/fd/{descriptor}/door")
                stream.settimeout(launched.timeout_seconds)
                return stream
            except OSError:
                stream.close()
            finally:
                os.close(descriptor)
        time.sleep(_RETRY_SECONDS)
    raise PeerLostError(
        f"the process of rank {launched.members[0]} did not arrive within {launched.timeout_seconds:g} s"
    )


def _read_process(stream: socket.socket) -> _Process:
    with stream.makefile("rb") as lines:
        try:
            return _Process(**json.loads(lines.readline()))
        except (OSError, ValueError) as error:
            raise PeerLostError("a process of this host ended while it started") from error


def _send(stream: socket.socket, kind: bytes, number: int) -> None:
    with contextlib.suppress(OSError):  # it has ended: the launcher sees that
        stream.sendall(_MESSAGE.pack(kind, number))


def _receive(stream: socket.socket, sender: str) -> tuple[bytes, int]:
    with contextlib.suppress(OSError):
        data = stream.recv(_MESSAGE.size, socket.MSG_WAITALL)
        if len(data) == _MESSAGE.size:
            kind, number = _MESSAGE.unpack(data)
            return kind, number
    raise PeerLostError(f"{sender} ended without a message")

"""One process of each host runs all of the launcher's ranks there, so that what they import is imported once.

Of the processes that mpirun, srun or torchrun starts on a host, the first, its leader, forks all ranks of the host. The
others become placeholders: their ranks get their CPUs and environment, and they sleep until these end. Where the
processes of a host are not alike (limits, memory policy, containers), each leads its own rank.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from datagen.errors import DlemuError
from dlemu import __version__
from dlemu.ranks.comm import Connection, Frame, PeerLostError, name_ranks
from dlemu.ranks.failure import Failure
from dlemu.ranks.launched import Launched, LedRanks, detect_launcher
from dlemu.ranks.messages import decode, encode
from dlemu.ranks.mpi import MpiProcess
from dlemu.ranks.process_control import flush_output, ignore, interrupt_on, stands_still
from dlemu.ranks.torchrun import TorchrunProcess

_LOOK_SECONDS = 1.0  # between two looks of a placeholder whether its leader is stopped
_RETRY_SECONDS = 0.01
_CLOSING_SECONDS = 3600.0  # far more than rank 0 takes to write results; bounded, as a host may be cut off meanwhile
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC)
_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): process, user and group


@dataclass(frozen=True)
class _Process:
    """A process of the launcher's: the CPUs and environment that its rank takes over, and what leaders pass on."""

    rank: int
    process: int
    cpus: list[int]
    environment: dict[str, str]
    surroundings: str
    """What a forked process inherits from its leader and must be equal for all processes of a host."""

    @classmethod
    def of(cls, rank: int) -> _Process:
        spaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "pid", "net", "user")]
        with open("/proc/self/cgroup", errors="surrogateescape") as file:
            groups = file.read()
        memory_policy = [""]
        with contextlib.suppress(OSError), open("/proc/self/numa_maps", errors="surrogateescape") as maps:
            memory_policy = maps.readline().split()[1:2]
        limits = [resource.getrlimit(limit) for limit in _LIMITS]
        program = (sys.executable, sys.argv, os.getcwd(), os.geteuid(), os.getegid(), os.nice(0))
        surroundings = repr((program, spaces, groups, limits, memory_policy))
        return cls(rank, os.getpid(), sorted(os.sched_getaffinity(0)), dict(os.environ), surroundings)

    def take(self) -> None:
        with contextlib.suppress(OSError):  # the leader may not use those CPUs: the rank then stays on the leader's
            os.sched_setaffinity(0, self.cpus)
        os.environ.clear()
        os.environ.update(self.environment)


class Host:
    """This process as the leader of its host: it forks the ranks there, and meets the leaders of other hosts."""

    def __init__(
        self, launched: Launched, own: _Process, placeholders: Sequence[tuple[_Process, Connection]] = ()
    ) -> None:
        """`placeholders` are the processes whose ranks this one runs besides its `own`, in the order of their ranks."""
        self.launched, self._placeholders = launched, placeholders
        for _, stream in placeholders:
            os.register_at_fork(after_in_child=stream.close)
        processes = [own, *(process for process, _ in placeholders)]
        led = [process.rank for process in processes]
        launched.connect(led)
        hosts = launched.all_values((socket.gethostname(), led, __version__))
        names, ranks_of_hosts, self.versions = zip(*hosts, strict=True)
        self.node = launched.node
        self.ranks = LedRanks(
            members=led,
            size=launched.size,
            node=self.node,
            hosts=names,
            launched=launched,
            settle=lambda local_rank: processes[local_rank].take(),
        )
        self.statuses: dict[int, int] = {}  # rank -> its exit status, if it is not that of the whole run
        others = [f"host {name} ({name_ranks(ranks)})" for name, ranks in zip(names, ranks_of_hosts, strict=True)]
        del others[self.node]
        launched.others = others[0] if len(others) == 1 else f"one of {', '.join(others)}"
        launched.clock_offsets()

    def broadcast(self, value: Any) -> Any:
        """Return node 0's value on every leader; collective over these."""
        message = self.launched.broadcast(encode(value) if self.node == 0 and self.launched.nodes > 1 else b"")
        return value if self.node == 0 else decode(message)

    def set_timeout(self, timeout_seconds: float) -> None:
        self.launched.timeout_seconds = timeout_seconds
        for _, stream in self._placeholders:
            _send(stream, Frame.TIMEOUT, round(1000 * timeout_seconds))

    def leave(self, failure: Failure) -> None:
        """Send the other hosts the reason why this one has failed, unless one of them has failed before."""
        if self.launched.nodes > 1 and self.launched.lost is None:
            self.launched.leave(failure)

    def close(self) -> None:
        """End, once the ranks of all hosts have."""
        self.launched.timeout_seconds += _CLOSING_SECONDS
        self.launched.all_reduce_max(0)
        self._release(0)
        for _, stream in self._placeholders:
            stream.receive(Frame.END)
        self.launched.finish()

    def end(self, status: int) -> None:
        """End all processes that the launcher started, after a failure that was reported; may not return."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, ignore)
        flush_output()
        self.launched.end(status)
        self._release(status)

    def _release(self, status: int) -> None:
        for process, stream in self._placeholders:
            _send(stream, Frame.END, self.statuses.get(process.rank, status))
            with contextlib.suppress(OSError):  # it has ended
                os.kill(process.process, signal.SIGCONT)


def _stand_in(launched: Launched, leader: int, stream: Connection) -> int:
    """Sleep until the rank that the leader (a process id) runs has ended; return its exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ignore)
    launched.connect(())
    timeout_seconds = launched.timeout_seconds
    stopped_seconds = 0.0
    try:
        while True:
            while not select.select([stream], [], [], _LOOK_SECONDS)[0]:
                # Time is counted in looks: none passes while the whole job is suspended.
                stopped_seconds = stopped_seconds + _LOOK_SECONDS if stands_still(leader) else 0.0
                if stopped_seconds > timeout_seconds:
                    os.kill(leader, signal.SIGKILL)
            frame, value = stream.receive_head(Frame.END)
            if frame == Frame.END:
                break
            timeout_seconds = value / 1000
    except PeerLostError as error:
        print(f"dlemu: {error}", file=sys.stderr)
        return error.exit_status
    _send(stream, Frame.END, 0)
    if value == 0:
        launched.finish()
    return value


@functools.cache
def join(timeout_seconds: float) -> Host | int:
    """Meet the launcher's other processes, once per process; return the leader of the host if this process is it.

    A placeholder returns the exit status of its rank, once that has ended. Raises UserError, PeerLostError.
    """
    launched = (TorchrunProcess if detect_launcher() == "store" else MpiProcess)(timeout_seconds)
    interrupt_on(signal.SIGINT, signal.SIGTERM)
    return _through_door(launched)


def _through_door(launched: Launched) -> Host | int:
    """Meet the processes of this host at a Unix socket without a file, which goes with the process that listens."""
    own, members = _Process.of(launched.rank), launched.members
    address = f"\0dlemu-{launched.door}"
    if launched.rank != members[0]:
        stream = _enter(launched, address)
        stream.send(Frame.START, encode(own))
        kind, leader = stream.receive_head(Frame.START)
        if kind == Frame.LED:
            return _stand_in(launched, leader, stream)
        stream.close()
        return Host(launched, own)
    visitors = sorted(_visitors(launched, address), key=lambda visitor: visitor[0].rank) if len(members) > 1 else []
    are_alike = all(process.surroundings == own.surroundings for process, _ in visitors)
    for _, stream in visitors:
        _send(stream, Frame.LED if are_alike else Frame.ALONE, os.getpid())
    if are_alike:
        return Host(launched, own, visitors)
    for _, stream in visitors:
        stream.close()
    print(
        f"dlemu: the processes of {name_ranks(members)} on {socket.gethostname()} differ (limits, control groups or "
        "folders), so each imports the framework and runs its rank alone",
        file=sys.stderr,
    )
    return Host(launched, own)


def _visitors(launched: Launched, address: str) -> list[tuple[_Process, Connection]]:
    """Return the other processes of this host, in the order in which they come."""
    deadline_seconds = time.monotonic() + launched.timeout_seconds
    visitors: list[tuple[_Process, Connection]] = []
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(address)
        except OSError as error:
            raise DlemuError(
                f"the processes of this host can't meet at @{address[1:]} ({error.strerror}): `ss -xlp` names the "
                "process that has this address; end it"
            ) from error
        listener.listen(socket.SOMAXCONN)
        while missing := len(launched.members) - 1 - len(visitors):
            listener.settimeout(max(deadline_seconds - time.monotonic(), 0.001))
            try:
                stream, _ = listener.accept()
            except TimeoutError as error:
                raise PeerLostError(
                    f"{missing} of the processes of {name_ranks(launched.members)} did not arrive within "
                    f"{launched.timeout_seconds:g} s"
                ) from error
            if not _is_own(stream):
                stream.close()
                continue
            visitor = Connection(stream, "a process of this host", launched.timeout_seconds)
            visitors.append((decode(visitor.receive_payload(Frame.START)), visitor))
    return visitors


def _enter(launched: Launched, address: str) -> Connection:
    """Connect to the leader, which may not listen yet."""
    leader = launched.members[0]
    deadline_seconds = time.monotonic() + launched.timeout_seconds
    while time.monotonic() < deadline_seconds:
        stream = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            stream.connect(address)
            if _is_own(stream):
                return Connection(stream, f"the process of rank {leader}", launched.timeout_seconds)
        stream.close()
        time.sleep(_RETRY_SECONDS)
    raise PeerLostError(f"the process of rank {leader} did not arrive within {launched.timeout_seconds:g} s")


def _is_own(stream: socket.socket) -> bool:
    """Return whether a process of this user is at the other end: anybody on the host can listen and connect there."""
    credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())


def _send(stream: Connection, frame: Frame, number: int) -> None:
    with contextlib.suppress(PeerLostError):  # it has ended: the launcher sees that
        stream.send(frame, number)

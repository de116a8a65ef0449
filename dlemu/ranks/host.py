"""The leader of a host: one process there forks all its ranks, so that modules are imported once per host.

The leader is the first of the processes that mpirun, srun or torchrun started on the host. The others become
placeholders: they hand over their CPUs and environment to their ranks, and sleep until these end. If the processes of a
host differ in limits, memory policy or container, each leads its own rank.
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
from dlemu.machine.cgroup_limits import group_limits
from dlemu.ranks.comm import Connection, Frame, PeerLostError, name_ranks
from dlemu.ranks.failure import Failure
from dlemu.ranks.launcher import LauncherProcess, LedRanks, detect_launcher
from dlemu.ranks.messages import decode, encode
from dlemu.ranks.mpi import MpiProcess
from dlemu.ranks.process_control import flush_output, ignore, interrupt_on, is_stopped
from dlemu.ranks.torchrun import TorchrunProcess

_CHECK_SECONDS = 1.0  # interval of a placeholder's checks whether its leader is stopped
_RETRY_SECONDS = 0.01  # interval of a placeholder's attempts to connect to its leader
_CLOSING_SECONDS = 3600.0  # far more than rank 0 takes to write results; bounded, because a host may be cut off
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_NPROC)
_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7): process, user and group


@dataclass(frozen=True)
class _Process:
    """A process that the launcher started on this host: what its rank takes over, and what must equal the leader's."""

    rank: int
    process: int
    cpus: list[int]
    environment: dict[str, str]
    inherited: str  # text of all properties that a forked rank inherits from the leader: so they must be equal

    @classmethod
    def current(cls, rank: int) -> _Process:
        """Describe the calling process."""
        namespaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "pid", "net", "user")]
        memory_policy = [""]
        with contextlib.suppress(OSError), open("/proc/self/numa_maps", errors="surrogateescape") as maps:
            memory_policy = maps.readline().split()[1:2]
        limits = [resource.getrlimit(limit) for limit in _LIMITS]
        program = (sys.executable, sys.argv, os.getcwd(), os.geteuid(), os.getegid(), os.nice(0))
        inherited = repr((program, namespaces, group_limits(), limits, memory_policy))
        return cls(rank, os.getpid(), sorted(os.sched_getaffinity(0)), dict(os.environ), inherited)

    def take_over(self) -> None:
        """Give the calling process, which is the rank, the CPUs and the environment that are described here."""
        with contextlib.suppress(OSError):  # the leader may not use those CPUs: the rank then stays on the leader's
            os.sched_setaffinity(0, self.cpus)
        os.environ.clear()
        os.environ.update(self.environment)


class Host:
    """This process as the leader of its host: forks the host's ranks, and communicates with the other leaders."""

    def __init__(
        self, launcher: LauncherProcess, own: _Process, placeholders: Sequence[tuple[_Process, Connection]] = ()
    ) -> None:
        """`own` is this process; `placeholders` are the others whose ranks it forks, in rank order."""
        self.launcher, self._placeholders = launcher, placeholders
        for _, stream in placeholders:
            os.register_at_fork(after_in_child=stream.close)
        processes = [own, *(process for process, _ in placeholders)]
        led_ranks = [process.rank for process in processes]
        launcher.connect(led_ranks)
        hosts = launcher.all_values((socket.gethostname(), led_ranks, __version__))
        names, ranks_of_hosts, self.versions = zip(*hosts, strict=True)
        self.node = launcher.node
        self.ranks = LedRanks(
            members=led_ranks,
            size=launcher.size,
            node=self.node,
            hosts=names,
            launcher=launcher,
            on_start=lambda local_rank: processes[local_rank].take_over(),
        )
        self.statuses: dict[int, int] = {}  # rank -> its exit status, if it differs from that of the whole run
        other_hosts = [f"host {name} ({name_ranks(ranks)})" for name, ranks in zip(names, ranks_of_hosts, strict=True)]
        del other_hosts[self.node]
        launcher.peers_name = other_hosts[0] if len(other_hosts) == 1 else f"one of {', '.join(other_hosts)}"
        launcher.clock_offsets()

    def broadcast(self, value: Any) -> Any:
        """Return node 0's value in every leader. Collective over the leaders."""
        message = self.launcher.broadcast(encode(value) if self.node == 0 and self.launcher.nodes > 1 else b"")
        return value if self.node == 0 else decode(message)

    def set_timeout(self, timeout_seconds: float) -> None:
        self.launcher.timeout_seconds = timeout_seconds
        for _, stream in self._placeholders:
            _send(stream, Frame.TIMEOUT, round(1000 * timeout_seconds))

    def report_failure(self, failure: Failure) -> None:
        """Send the other hosts the failure of this one, unless one of them has failed before."""
        if self.launcher.nodes > 1 and self.launcher.remote_failure is None:
            self.launcher.report_failure(failure)

    def close(self) -> None:
        """Wait until the ranks of all hosts have ended, then let all processes of the launcher end."""
        self.launcher.timeout_seconds += _CLOSING_SECONDS
        self.launcher.all_reduce_max(0)
        self._release(0)
        for _, stream in self._placeholders:
            stream.receive(Frame.END)
        self.launcher.finish()

    def end(self, status: int) -> None:
        """End all of the launcher's processes after a failure that has been reported; may not return."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, ignore)
        flush_output()
        self.launcher.end(status)
        self._release(status)

    def _release(self, status: int) -> None:
        """Let the placeholders end, each with the exit status of its rank, by default `status`."""
        for process, stream in self._placeholders:
            _send(stream, Frame.END, self.statuses.get(process.rank, status))
            with contextlib.suppress(OSError):  # the process has ended
                os.kill(process.process, signal.SIGCONT)


def _wait_as_placeholder(launcher: LauncherProcess, leader: int, stream: Connection) -> int:
    """Sleep until the leader (a process id) has run this process's rank to its end; return the rank's exit status."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ignore)
    launcher.connect(())
    timeout_seconds = launcher.timeout_seconds
    stopped_seconds = 0.0
    try:
        while True:
            while not select.select([stream], [], [], _CHECK_SECONDS)[0]:
                # Count checks rather than seconds, so that no time passes while the whole job is suspended.
                stopped_seconds = stopped_seconds + _CHECK_SECONDS if is_stopped(leader) else 0.0
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
        launcher.finish()
    return value


@functools.cache
def join(timeout_seconds: float) -> Host | int:
    """Join the launcher's other processes, once per process. In the leader of a host, return the host.

    In a placeholder, wait for the end of its rank and return the exit status. Raises UserError, PeerLostError.
    """
    launcher = (TorchrunProcess if detect_launcher() == "store" else MpiProcess)(timeout_seconds)
    interrupt_on(signal.SIGINT, signal.SIGTERM)
    return _join_host(launcher)


def _join_host(launcher: LauncherProcess) -> Host | int:
    """Join the processes of this host through an abstract Unix socket, which vanishes with the process that listens."""
    own, members = _Process.current(launcher.rank), launcher.members
    address = f"\0dlemu-{launcher.socket_name}"
    if launcher.rank != members[0]:
        stream = _connect_to_leader(launcher, address)
        stream.send(Frame.START, encode(own))
        kind, leader = stream.receive_head(Frame.START)
        if kind == Frame.LED:
            return _wait_as_placeholder(launcher, leader, stream)
        stream.close()
        return Host(launcher, own)
    placeholders = sorted(_accept(launcher, address), key=lambda pair: pair[0].rank) if len(members) > 1 else []
    are_alike = all(process.inherited == own.inherited for process, _ in placeholders)
    for _, stream in placeholders:
        _send(stream, Frame.LED if are_alike else Frame.ALONE, os.getpid())
    if are_alike:
        return Host(launcher, own, placeholders)
    for _, stream in placeholders:
        stream.close()
    print(
        f"note: the processes of {name_ranks(members)} on {socket.gethostname()} differ (limits, control groups or "
        "folders), so each imports the framework and runs its rank alone",
        file=sys.stderr,
    )
    return Host(launcher, own)


def _accept(launcher: LauncherProcess, address: str) -> list[tuple[_Process, Connection]]:
    """Wait until all other processes of this host have connected; return them in the order of connection."""
    deadline_seconds = time.monotonic() + launcher.timeout_seconds
    accepted: list[tuple[_Process, Connection]] = []
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(address)
        except OSError as error:
            raise DlemuError(
                f"the processes of this host can't meet at @{address[1:]} ({error.strerror}): `ss -xlp` names the "
                "process that has this address; end it"
            ) from error
        listener.listen(socket.SOMAXCONN)
        while missing := len(launcher.members) - 1 - len(accepted):
            listener.settimeout(max(deadline_seconds - time.monotonic(), 0.001))
            try:
                stream, _ = listener.accept()
            except TimeoutError as error:
                raise PeerLostError(
                    f"{missing} of the processes of {name_ranks(launcher.members)} did not arrive within "
                    f"{launcher.timeout_seconds:g} s"
                ) from error
            if not _is_same_user(stream):
                stream.close()
                continue
            connection = Connection(stream, "a process of this host", launcher.timeout_seconds)
            accepted.append((decode(connection.receive_payload(Frame.START)), connection))
    return accepted


def _connect_to_leader(launcher: LauncherProcess, address: str) -> Connection:
    """Connect to the leader, which may not listen yet."""
    leader = launcher.members[0]
    deadline_seconds = time.monotonic() + launcher.timeout_seconds
    while time.monotonic() < deadline_seconds:
        stream = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(OSError):
            stream.connect(address)
            if _is_same_user(stream):
                return Connection(stream, f"the process of rank {leader}", launcher.timeout_seconds)
        stream.close()
        time.sleep(_RETRY_SECONDS)
    raise PeerLostError(f"the process of rank {leader} did not arrive within {launcher.timeout_seconds:g} s")


def _is_same_user(stream: socket.socket) -> bool:
    """Return whether the other end is a process of this user: anybody on the host can listen and connect there."""
    credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())


def _send(stream: Connection, frame: Frame, number: int) -> None:
    with contextlib.suppress(PeerLostError):  # the other process has ended, which the launcher notices
        stream.send(frame, number)

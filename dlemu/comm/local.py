"""The ranks of one host: sockets that they inherit, and the communicator over these.

Waits block in the kernel and cost no CPU (a blocked MPI_Barrier burns a core per rank). Other hosts are reached through
the host's leader, the process that forked the ranks: its first rank asks it over a socket as well.
"""

from __future__ import annotations

import math
import pickle
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from datagen.errors import DlemuError
from dlemu.comm.comm_base import PeerLostError
from dlemu.comm.process_control import after_fork_in_child
from dlemu.comm.tree import (
    Frame,
    LocalTree,
    children_of,
    depth,
    height,
    parent_of,
    receive_payload,
    send_payload,
)

_HEADER = struct.Struct("<qq")
_TIMEVAL = struct.Struct("@ll")
_CHUNK_BYTES = 1 << 20  # each receive has the whole timeout, so a long payload that makes progress never times out
_LONGEST_SECONDS = 1e8  # about three years: stands for "no deadline" and fits the kernel's jiffies
_SLACK_SECONDS = 0.1  # a socket timeout that is off by less is kept: setting it costs a system call per wait
_LEVEL_SECONDS = 0.5  # each level of the tree waits this much longer than the next one nearer to the missing rank
_OTHER_NODES_LEVELS = 4  # levels to add for the time in which the node's rank 0 waits for other nodes

_CALLS = {
    Frame.MAXIMUM: "the barrier",
    Frame.GATHER: "the gather",
    Frame.BROADCAST: "the broadcast",
    Frame.CLOCKS: "the comparison of clocks",
    Frame.TIMEOUT: "a new time limit",
}


@dataclass(frozen=True)
class HostPlace:
    """Where a host's ranks are among all ranks of the run."""

    node: int = 0
    """Index of the host in `hosts`."""
    hosts: tuple[str, ...] = (socket.gethostname(),)
    members: Sequence[int] = (0,)
    """The numbers of the host's ranks, rising."""
    size: int = 1
    """Number of ranks on all hosts."""

    @classmethod
    def alone(cls, ranks: int) -> HostPlace:
        return cls(hosts=(socket.gethostname(),), members=range(ranks), size=ranks)


class LocalComm:
    """A `Comm` of forked ranks; a single rank (`LocalComm()`) needs no socket and never waits.

    `gather` and `broadcast` return a rank's own value as the same object, other ranks' values as copies.
    """

    def __init__(self, tree: LocalTree | None = None, place: HostPlace | None = None) -> None:
        self._tree = tree or LocalTree(0, 1)
        place = place or HostPlace.alone(self._tree.size)
        self.local_rank, self.local_size = self._tree.rank, self._tree.size
        self.node, self.hosts, self.size = place.node, place.hosts, place.size
        self.rank = place.members[self.local_rank]
        self._members = place.members

    def all_reduce_max(self, value_ns: int) -> int:
        highest_ns = self._tree.reduce_max(value_ns)
        if self._tree.leader is not None:
            self._tree.leader.send(Frame.MAXIMUM, highest_ns)
            highest_ns = self._tree.leader.receive(Frame.MAXIMUM)
        return self._tree.broadcast_number(highest_ns)

    def synchronise_clocks(self) -> tuple[int, ...]:
        if len(self.hosts) == 1:
            return (0,)
        self.all_reduce_max(0)  # the other ranks then sleep while the leaders compare clocks
        offsets: tuple[int, ...] = pickle.loads(self._tree.broadcast(self._ask(Frame.CLOCKS, b"")))
        return offsets

    def gather(self, value: Any) -> list[Any] | None:
        parts = self._tree.gather(b"" if self.rank == 0 else dump(value))
        if parts is None:
            return None
        payloads = dict(zip(self._members, parts, strict=True))
        if self._tree.leader is not None:
            of_hosts = pickle.loads(self._ask(Frame.GATHER, dump(payloads)))
            for payload in of_hosts[1:]:
                payloads |= pickle.loads(payload)
        if self.rank != 0:
            return None
        return [value, *(pickle.loads(payloads[rank]) for rank in range(1, self.size))]

    def broadcast(self, value: Any) -> Any:
        payload: bytes | bytearray = dump(value) if self.rank == 0 and self.size > 1 else b""
        payload = self._tree.broadcast(self._ask(Frame.BROADCAST, payload))
        return value if self.rank == 0 else pickle.loads(payload)

    def set_timeout(self, timeout_seconds: float) -> None:
        self._tree.set_timeout(timeout_seconds)
        if self._tree.leader is not None:
            self._tree.leader.send(Frame.TIMEOUT, round(timeout_seconds * 1000))

    def close(self) -> None:
        self._tree.close()

    def _ask(self, frame: Frame, payload: bytes | bytearray) -> bytes | bytearray:
        """Return what the leaders of all hosts answer together; where there is no leader to ask, the payload itself."""
        leader = self._tree.leader
        if leader is None:
            return payload
        send_payload(leader, frame, payload)
        return receive_payload(leader, frame)


def dump(value: Any) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


class TreeSockets:
    """The sockets between the ranks of a host, made by the process that forks these, in the order of their numbers.

    A rank has its own ends alone: when it ends, its neighbours get an end of file. Nobody else can connect.
    """

    def __init__(self, names: Sequence[int], *, with_leader: bool = False) -> None:
        """`names` are the ranks' numbers; `with_leader` also connects the first of them with this process."""
        self._names = names
        self._above: dict[int, socket.socket] = {}
        """Rank that is not forked yet -> its end of the socket to its parent in the tree."""
        self._below: dict[int, socket.socket] = {}
        """Child of the rank that is forked next -> that rank's end."""
        if with_leader:
            self.leader, self._above[0] = socket.socketpair()

    def make_for(self, rank: int) -> None:
        """Make what the next rank needs, just before it is forked, and close what the one before has: few are open."""
        for end in (*self._below.values(), *([self._above.pop(rank - 1)] if rank - 1 in self._above else [])):
            end.close()
        self._below = {}
        for child in children_of(rank, len(self._names)):
            self._below[child], self._above[child] = socket.socketpair()

    def take(self, rank: int, timeout_seconds: float) -> LocalTree:
        """Return the place of the next rank in the tree, with its ends; a forked rank then closes all others.

        Its own forked children (a loader's workers) close the sockets at once, so its end is noticed if they live on.
        """
        size = len(self._names)
        tree = LocalTree(rank, size)
        above = self._above.pop(rank, None)
        if above is not None:
            # An answer from above may have to wait for the whole tree twice, and for other nodes. Ranks further down
            # wait longer, so that the children of a missing rank are the first to report it.
            extra_seconds = (2 * height(0, size) + _OTHER_NODES_LEVELS + depth(rank)) * _LEVEL_SECONDS
            name = f"rank {self._names[parent_of(rank)]}" if rank else "this host's leader"
            link = Connection(above, name, timeout_seconds, extra_seconds)
            tree.parent, tree.leader = (link, None) if rank else (None, link)
        for child, below in self._below.items():
            extra_seconds = height(child, size) * _LEVEL_SECONDS
            tree.children[child] = Connection(below, f"rank {self._names[child]}", timeout_seconds, extra_seconds)
        self._below = {}
        after_fork_in_child(tree.close)
        return tree

    def close(self) -> None:
        for end in (*self._above.values(), *self._below.values()):
            end.close()


class Connection:
    """A `Link` over a stream socket. The kernel enforces the timeout (SO_RCVTIMEO): a wait is one system call,
    which a signal handler can interrupt with an exception.
    """

    def __init__(self, stream: socket.socket, peer: str, timeout_seconds: float, extra_seconds: float) -> None:
        """`extra_seconds` lets the rank nearest to the missing one report first: it knows which one is missing."""
        stream.settimeout(None)
        self._stream = stream
        self._peer = peer
        self._extra_seconds = extra_seconds
        self._kernel_seconds = math.nan
        self.set_timeout(timeout_seconds)

    def set_timeout(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        whole = min(timeout_seconds + self._extra_seconds, _LONGEST_SECONDS)
        self._set_kernel_seconds(whole)
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(whole))

    def send(self, frame: Frame, number: int) -> None:
        self.send_bytes(_HEADER.pack(frame, number))

    def send_bytes(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._stream.sendall(data)
        except BlockingIOError as error:
            raise PeerLostError(f"{self._peer} accepted no data for {self._timeout_seconds:g} s") from error
        except OSError as error:
            raise self._ended() from error

    def receive(self, frame: Frame, started_seconds: float | None = None) -> int:
        started_seconds = time.monotonic() if started_seconds is None else started_seconds
        self._expect_by(started_seconds + self._timeout_seconds + self._extra_seconds)
        kind, number = self.receive_head(frame)
        if kind != frame:
            raise self._out_of_step(kind, frame)
        return number

    def receive_head(self, awaited: Frame) -> tuple[int, int]:
        """Return the kind and the number of the next frame, of whatever kind."""
        header = bytearray(_HEADER.size)
        self._fill(memoryview(header), awaited)
        kind, number = _HEADER.unpack(header)
        return kind, number

    def fileno(self) -> int:
        return self._stream.fileno()

    def receive_bytes(self, num_bytes: int, frame: Frame) -> bytearray:
        data = bytearray(num_bytes)
        self._fill(memoryview(data), frame)
        return data

    def close(self) -> None:
        self._stream.close()

    def _fill(self, view: memoryview, frame: Frame) -> None:
        while view:
            try:
                count = self._stream.recv_into(view, min(len(view), _CHUNK_BYTES), socket.MSG_WAITALL)
            except BlockingIOError as error:
                message = f"{self._peer} did not arrive at {_CALLS[frame]} within {self._timeout_seconds:g} s"
                raise PeerLostError(message) from error
            except OSError as error:  # reset
                raise self._ended() from error
            if count == 0:
                raise self._ended()
            view = view[count:]

    def _ended(self) -> PeerLostError:
        return PeerLostError(f"{self._peer} ended without a message")

    def _out_of_step(self, kind: int, frame: Frame) -> DlemuError:
        theirs = _CALLS[Frame(kind)] if kind in list(Frame) else f"a frame of unknown kind {kind}"
        return DlemuError(
            f"{self._peer} is at {theirs} where this rank is at {_CALLS[frame]}: all ranks must make the same "
            "calls in the same order"
        )

    def _expect_by(self, deadline_seconds: float) -> None:
        rest = min(deadline_seconds - time.monotonic(), _LONGEST_SECONDS)
        if not abs(rest - self._kernel_seconds) <= _SLACK_SECONDS:
            self._set_kernel_seconds(rest)

    def _set_kernel_seconds(self, seconds: float) -> None:
        self._kernel_seconds = max(seconds, 0.001)
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(self._kernel_seconds))


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return _TIMEVAL.pack(whole, int((seconds - whole) * 1e6))

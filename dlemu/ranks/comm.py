"""The ranks of a run, and their collective calls over inherited sockets.

The ranks of a host form a binary tree: rank r's children are 2r+1 and 2r+2. With several hosts, the parent of a host's
first rank is the host's leader: the process that forked its ranks, and that communicates with the other leaders.
"""

from __future__ import annotations

import enum
import math
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, cast

from datagen.errors import DlemuError
from dlemu.ranks.messages import decode, encode

PART_BYTES = 1 << 20  # each part of a payload may take the whole timeout, so one that makes progress is never late
_HEADER = struct.Struct("<qq")  # the kind of a frame, and its number
_TIMEVAL = struct.Struct("@ll")  # struct timeval: seconds and microseconds
_MAX_SECONDS = 1e8  # about three years: means "no deadline" and fits the kernel's jiffies
_SLACK_SECONDS = 0.1  # tolerated error of a socket timeout: to set it exactly would cost a system call per wait
_LEVEL_SECONDS = 0.5  # each level of the tree waits this much longer than the next one nearer to the missing rank
_OTHER_NODES_LEVELS = 4  # extra levels for the time in which a host's leader waits for the other hosts


class PeerLostError(DlemuError):
    """Another rank ended or did not arrive in time; if that rank reports an error of its own, that is the cause."""


class Frame(enum.IntEnum):
    """The kinds of frames, named as in messages. A frame has a number: a value, or the length of the bytes after it."""

    BARRIER = 1
    GATHER = 2
    BROADCAST = 3
    CLOCKS = 4  # requests the offsets between the hosts' clocks
    # The other kinds are sent between a leader and the other processes of its host.
    TIMEOUT = 5  # in ms
    START = 6  # describes a process
    LED = 7  # answer to START: the leader runs the rank of that process
    ALONE = 8  # answer to START: the process runs its rank itself
    END = 9


class Connection:
    """A stream of frames to and from another process, the peer. Calls raise PeerLostError if it is lost or late.

    The kernel enforces the timeout (SO_RCVTIMEO): a wait is one system call, which a handler may end by an exception.
    """

    def __init__(self, stream: socket.socket, peer: str, timeout_seconds: float, extra_seconds: float = 0.0) -> None:
        """The peer is late after the sum of both times. `extra_seconds` decide which rank is the first to report it."""
        self._stream, self._peer = stream, peer
        self._timeout_seconds, self._extra_seconds = timeout_seconds, extra_seconds
        self._kernel_seconds = math.inf  # the timeout that the kernel has; not set yet
        total_seconds = min(timeout_seconds + extra_seconds, _MAX_SECONDS)
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(total_seconds))
        self._set_receive_timeout(total_seconds)

    def send(self, frame: Frame, content: int | bytes | bytearray) -> None:
        """Send a frame with a number alone, or with bytes."""
        try:
            self._stream.sendall(_HEADER.pack(frame, content if isinstance(content, int) else len(content)))
            if not isinstance(content, int):
                self._stream.sendall(content)
        except BlockingIOError as error:
            raise PeerLostError(f"{self._peer} accepted no data for {self._timeout_seconds:g} s") from error
        except OSError as error:
            raise PeerLostError(f"{self._peer} ended without a message") from error

    def receive(self, frame: Frame, waited_seconds: float = 0.0) -> int:
        """Wait for a frame of this kind and return its number. The caller has already waited for `waited_seconds`."""
        self._set_receive_timeout(self._timeout_seconds + self._extra_seconds - waited_seconds)
        kind, number = self.receive_head(frame)
        if kind != frame:
            raise DlemuError(
                f"{self._peer} is at {_name(kind)} where this rank is at {_name(frame)}: all ranks must make the same "
                "calls in the same order"
            )
        return number

    def receive_head(self, awaited: Frame) -> tuple[int, int]:
        """Return the kind and the number of the next frame, of any kind; messages name the `awaited` kind."""
        kind, number = _HEADER.unpack(self.receive_bytes(_HEADER.size, awaited))
        return kind, number

    def receive_bytes(self, num_bytes: int, frame: Frame) -> bytearray:
        """Receive the bytes that follow the head of a frame."""
        data = bytearray(num_bytes)
        view = memoryview(data)
        while view:
            try:
                count = self._stream.recv_into(view, min(len(view), PART_BYTES), socket.MSG_WAITALL)
            except BlockingIOError as error:
                message = f"{self._peer} did not arrive at {_name(frame)} within {self._timeout_seconds:g} s"
                raise PeerLostError(message) from error
            except OSError:  # the peer reset the connection
                count = 0
            if count == 0:
                raise PeerLostError(f"{self._peer} ended without a message")
            view = view[count:]
        return data

    def receive_payload(self, frame: Frame) -> bytearray:
        return self.receive_bytes(self.receive(frame), frame)

    def fileno(self) -> int:
        return self._stream.fileno()

    def close(self) -> None:
        """Close the connection; the peer notices it at once."""
        self._stream.close()

    def _set_receive_timeout(self, seconds: float) -> None:
        seconds = max(min(seconds, _MAX_SECONDS), 0.001)
        if abs(seconds - self._kernel_seconds) > _SLACK_SECONDS:
            self._kernel_seconds = seconds
            self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))


def _timeval(seconds: float) -> bytes:
    return _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))


def _name(kind: int) -> str:
    return f"the {Frame(kind).name.lower()}"


@dataclass(frozen=True, kw_only=True)
class HostRanks:
    """The ranks that one process forks: all ranks of a run, or those on one of several hosts."""

    members: Sequence[int] = (0,)  # numbers of this host's ranks, ascending
    size: int = 1  # number of ranks on all hosts
    node: int = 0  # index of this host in `hosts`
    hosts: tuple[str, ...] = (socket.gethostname(),)


class Comm:
    """The communicator of one rank. Every call is collective and has a deadline; waiting costs no CPU.

    Only the main thread may make calls. They raise `PeerLostError` when a rank is lost or late; after that, only
    `close` may be called. A single rank (`Comm()`) needs no socket and never waits. `gather` and `broadcast` return a
    rank's own value as the same object, other ranks' values as copies.
    """

    def __init__(self, ranks: HostRanks | None = None, local_rank: int = 0) -> None:
        """Create a communicator without connections."""
        ranks = ranks or HostRanks()
        self.rank = ranks.members[local_rank]
        self.size = ranks.size
        self.local_rank = local_rank
        self.local_size = len(ranks.members)
        self.node = ranks.node  # index of this rank's host in `hosts`; rank 0's is 0
        self.hosts = ranks.hosts  # names of all hosts
        self.parent: Connection | None = None  # of a host's first rank: the host's leader, if there are several hosts
        self.children: list[Connection] = []

    def all_reduce_max(self, value_ns: int) -> int:
        """Return the maximum over all ranks of a time by CLOCK_MONOTONIC, converted to this host's clock."""
        started_seconds = monotonic()
        for child in self.children:
            value_ns = max(value_ns, child.receive(Frame.BARRIER, monotonic() - started_seconds))
        if self.parent is not None:
            self.parent.send(Frame.BARRIER, value_ns)
            value_ns = self.parent.receive(Frame.BARRIER)
        for child in self.children:
            child.send(Frame.BARRIER, value_ns)
        return value_ns

    def synchronise_clocks(self) -> tuple[int, ...]:
        """Return for each node the nanoseconds to add to its CLOCK_MONOTONIC to get node 0's time, as measured now."""
        if len(self.hosts) == 1:
            return (0,)
        self.all_reduce_max(0)  # the other ranks then sleep while the leaders compare clocks
        return cast("tuple[int, ...]", decode(self._pass_down(Frame.CLOCKS, b"")))

    def gather(self, value: Any) -> list[Any] | None:
        """Return every rank's value in rank order on rank 0, None elsewhere."""
        payloads = {self.rank: b"" if self.rank == 0 else encode(value)}
        for child in self.children:
            payloads |= decode(child.receive_payload(Frame.GATHER))
        if self.parent is not None:
            self.parent.send(Frame.GATHER, encode(payloads))
            if self.local_rank == 0:
                for host_payloads in decode(self.parent.receive_payload(Frame.GATHER)):
                    payloads |= decode(host_payloads)
        if self.rank != 0:
            return None
        return [value, *(decode(payloads[rank]) for rank in range(1, self.size))]

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        payload = self._pass_down(Frame.BROADCAST, encode(value) if self.rank == 0 and self.size > 1 else b"")
        return value if self.rank == 0 else decode(payload)

    def close(self) -> None:
        """Close this rank's connections; neighbours that still wait for this rank notice at once."""
        for connection in filter(None, [self.parent, *self.children]):
            connection.close()

    def _pass_down(self, frame: Frame, payload: bytes | bytearray) -> bytes | bytearray:
        """Pass the payload of the host's first rank, or the leader's answer to it, down the tree; return it."""
        if self.parent is not None:
            if self.local_rank == 0:
                self.parent.send(frame, payload)
            payload = self.parent.receive_payload(frame)
        for child in self.children:
            child.send(frame, payload)
        return payload


def connected(ranks: HostRanks, timeout_seconds: float) -> tuple[list[Comm], Connection | None]:
    """Return a host's connected communicators and, with several hosts, the leader's connection to the first rank.

    The process that will fork the ranks creates all sockets, so no other process can connect. Each rank then closes the
    sockets of the others, so that the others notice when it ends. Raises OSError.
    """
    comms = [Comm(ranks, local_rank) for local_rank in range(len(ranks.members))]
    leader_link: Connection | None = None
    levels = len(comms).bit_length()
    for local_rank in range(1 if len(ranks.hosts) == 1 else 0, len(comms)):
        depth = (local_rank + 1).bit_length() - 1
        parent = (local_rank - 1) // 2
        upper, lower = socket.socketpair()  # the parent's end, the rank's end
        # A parent's answer may have to wait for the whole tree twice, and for other nodes. Ranks further down wait
        # longer, so that the children of a missing rank are the first to report it.
        extra_seconds = (2 * levels + _OTHER_NODES_LEVELS + depth) * _LEVEL_SECONDS
        name = f"rank {ranks.members[parent]}" if local_rank else "this host's leader"
        comms[local_rank].parent = Connection(lower, name, timeout_seconds, extra_seconds)
        extra_seconds = (levels - depth) * _LEVEL_SECONDS
        link = Connection(upper, f"rank {ranks.members[local_rank]}", timeout_seconds, extra_seconds)
        if local_rank:
            comms[parent].children.append(link)
        else:
            leader_link = link
    return comms, leader_link


def name_ranks(ranks: Sequence[int]) -> str:
    """Return how messages name these ranks, which are in ascending order: "rank 3", "ranks 0 to 7"."""
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    noun = "ranks" if len(ranks) > 1 else "rank"
    return f"{noun} {', '.join(map(str, ranks))}"

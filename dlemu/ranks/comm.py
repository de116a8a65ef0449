"""The ranks of a run, and their collective calls over sockets that they inherit.

The ranks of a host form a binary tree: rank r's children are 2r+1 and 2r+2. Above the first rank of each of several
hosts is the host's leader, the process that forked its ranks, which answers for all hosts.
"""

from __future__ import annotations

import enum
import math
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from datagen.errors import DlemuError
from dlemu.ranks.messages import decode, encode

PART_BYTES = 1 << 20  # received at once, within the whole timeout: a long payload that makes progress is never late
_HEADER = struct.Struct("<qq")
_TIMEVAL = struct.Struct("@ll")
_LONGEST_SECONDS = 1e8  # about three years: stands for "no deadline" and fits the kernel's jiffies
_SLACK_SECONDS = 0.1  # a socket timeout that is off by less is kept: setting it costs a system call per wait
_LEVEL_SECONDS = 0.5  # each level of the tree waits this much longer than the next one nearer to the missing rank
_OTHER_NODES_LEVELS = 4  # levels to add for the time in which the node's rank 0 waits for other nodes


class PeerLostError(DlemuError):
    """Another rank ended or did not arrive; if that rank reported an error of its own, show that one as the cause."""


class Frame(enum.IntEnum):
    """What a frame is for, named as messages name the call. Its number is a value, or how many bytes follow.

    Between a rank and its host's leader also CLOCKS, to compare those of the hosts. Between the leader and the host's
    other processes of a launcher: START, LED or ALONE in answer, TIMEOUT in milliseconds, END.
    """

    BARRIER = 1
    GATHER = 2
    BROADCAST = 3
    CLOCKS = 4
    TIMEOUT = 5
    START = 6
    LED = 7
    ALONE = 8
    END = 9


class Connection:
    """A stream of frames to a neighbour; calls raise PeerLostError when it is lost or late.

    The kernel enforces the timeout (SO_RCVTIMEO): a wait is one system call, which a signal handler can interrupt with
    an exception.
    """

    def __init__(self, stream: socket.socket, peer: str, timeout_seconds: float, extra_seconds: float = 0.0) -> None:
        """The neighbour is taken for lost after `timeout_seconds` without a frame that is due.

        `extra_seconds` lets the rank nearest to the missing one report first: it knows which one is missing.
        """
        self._stream, self._peer = stream, peer
        self._timeout_seconds, self._extra_seconds = timeout_seconds, extra_seconds
        self._kernel_seconds = math.nan
        longest = min(timeout_seconds + self._extra_seconds, _LONGEST_SECONDS)
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(longest))
        self._expect_within(longest)

    def send(self, frame: Frame, content: int | bytes | bytearray) -> None:
        """Send a frame that is a number alone, or some bytes."""
        try:
            self._stream.sendall(_HEADER.pack(frame, content if isinstance(content, int) else len(content)))
            if not isinstance(content, int):
                self._stream.sendall(content)
        except BlockingIOError as error:
            raise PeerLostError(f"{self._peer} accepted no data for {self._timeout_seconds:g} s") from error
        except OSError as error:
            raise PeerLostError(f"{self._peer} ended without a message") from error

    def receive(self, frame: Frame, waited_seconds: float = 0.0) -> int:
        """Wait for a frame of this kind and return its number; `waited_seconds` of the timeout are over."""
        self._expect_within(self._timeout_seconds + self._extra_seconds - waited_seconds)
        kind, number = self.receive_head(frame)
        if kind != frame:
            raise DlemuError(
                f"{self._peer} is at {_name(kind)} where this rank is at {_name(frame)}: all ranks must make the same "
                "calls in the same order"
            )
        return number

    def receive_head(self, awaited: Frame) -> tuple[int, int]:
        """Return the kind and the number of the next frame, of whatever kind."""
        kind, number = _HEADER.unpack(self.receive_bytes(_HEADER.size, awaited))
        return kind, number

    def receive_bytes(self, num_bytes: int, frame: Frame) -> bytearray:
        """Receive the bytes of a frame whose head was just received."""
        data = bytearray(num_bytes)
        view = memoryview(data)
        while view:
            try:
                count = self._stream.recv_into(view, min(len(view), PART_BYTES), socket.MSG_WAITALL)
            except BlockingIOError as error:
                message = f"{self._peer} did not arrive at {_name(frame)} within {self._timeout_seconds:g} s"
                raise PeerLostError(message) from error
            except OSError:  # reset
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
        """Close the connection; the neighbour notices it at once."""
        self._stream.close()

    def _expect_within(self, seconds: float) -> None:
        seconds = max(min(seconds, _LONGEST_SECONDS), 0.001)
        if not abs(seconds - self._kernel_seconds) <= _SLACK_SECONDS:
            self._kernel_seconds = seconds
            self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))


def _timeval(seconds: float) -> bytes:
    return _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))


def _name(kind: int) -> str:
    return f"the {Frame(kind).name.lower()}"


@dataclass(frozen=True, kw_only=True)
class HostRanks:
    """The ranks that one process forks: all of a run's, or those of one of several hosts."""

    members: Sequence[int] = (0,)  # the numbers of the host's ranks among all of the run, rising
    size: int = 1  # ranks on all hosts
    node: int = 0  # index of the host in `hosts`
    hosts: tuple[str, ...] = (socket.gethostname(),)


class Comm:
    """The ranks of one run, as one of them. Every call is collective and has a deadline; waiting costs no CPU.

    Only the main thread may make calls. They raise `PeerLostError` when a rank is gone or late; then only `close`
    may still be called. A single rank (`Comm()`) needs no socket and never waits. `gather` and `broadcast` return a
    rank's own value as the same object, other ranks' values as copies.
    """

    def __init__(self, ranks: HostRanks | None = None, local_rank: int = 0) -> None:
        """Make a rank without connections."""
        ranks = ranks or HostRanks()
        self.rank, self.size = ranks.members[local_rank], ranks.size
        self.local_rank, self.local_size = local_rank, len(ranks.members)
        self.node, self.hosts = ranks.node, ranks.hosts
        """Index of this rank's node in `hosts`, and the host name of each node; rank 0 is on node 0."""
        self.above: Connection | None = None  # to the parent; of the first of a host's ranks, to the host's leader
        self.children: list[Connection] = []

    def all_reduce_max(self, value_ns: int) -> int:
        """Return the maximum of `value_ns` over all ranks (CLOCK_MONOTONIC; translated between the clocks of hosts)."""
        started_seconds = monotonic()
        for child in self.children:
            value_ns = max(value_ns, child.receive(Frame.BARRIER, monotonic() - started_seconds))
        if self.above is not None:
            self.above.send(Frame.BARRIER, value_ns)
            value_ns = self.above.receive(Frame.BARRIER)
        for child in self.children:
            child.send(Frame.BARRIER, value_ns)
        return value_ns

    def synchronise_clocks(self) -> tuple[int, ...]:
        """Estimate each node's monotonic clock against node 0's; nanoseconds to add to get node 0's time."""
        if len(self.hosts) == 1:
            return (0,)
        self.all_reduce_max(0)  # the other ranks then sleep while the leaders compare clocks
        offsets: tuple[int, ...] = decode(self._spread(Frame.CLOCKS, b""))
        return offsets

    def gather(self, value: Any) -> list[Any] | None:
        """Return every rank's value in rank order on rank 0, None elsewhere."""
        parts = {self.rank: b"" if self.rank == 0 else encode(value)}
        for child in self.children:
            parts |= decode(child.receive_payload(Frame.GATHER))
        if self.above is not None:
            self.above.send(Frame.GATHER, encode(parts))
            if self.local_rank == 0:
                for of_host in decode(self.above.receive_payload(Frame.GATHER)):
                    parts |= decode(of_host)
        if self.rank != 0:
            return None
        return [value, *(decode(parts[rank]) for rank in range(1, self.size))]

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        payload = self._spread(Frame.BROADCAST, encode(value) if self.rank == 0 and self.size > 1 else b"")
        return value if self.rank == 0 else decode(payload)

    def close(self) -> None:
        """Close this rank's connections; neighbours that still wait for this rank notice at once."""
        for connection in filter(None, [self.above, *self.children]):
            connection.close()

    def _spread(self, frame: Frame, payload: bytes | bytearray) -> bytes | bytearray:
        """Return on all ranks of the host what its leader answers its first rank; without one, that rank's payload."""
        if self.above is not None:
            if self.local_rank == 0:
                self.above.send(frame, payload)
            payload = self.above.receive_payload(frame)
        for child in self.children:
            child.send(frame, payload)
        return payload


def connected(ranks: HostRanks, timeout_seconds: float) -> tuple[list[Comm], Connection | None]:
    """Return the connected ranks of a host, and their leader's connection to the first where there are several hosts.

    The process that is about to fork them makes all their sockets, so nobody else can connect; each rank then closes
    all but its own, so that its end is noticed. Raises OSError.
    """
    comms, leader = [Comm(ranks, local_rank) for local_rank in range(len(ranks.members))], None
    levels = len(comms).bit_length()
    for local_rank in range(1 if len(ranks.hosts) == 1 else 0, len(comms)):
        depth, parent = (local_rank + 1).bit_length() - 1, (local_rank - 1) // 2
        upper, lower = socket.socketpair()
        # An answer from above may have to wait for the whole tree twice, and for other nodes. Ranks further down wait
        # longer, so that the children of a missing rank are the first to report it.
        extra_seconds = (2 * levels + _OTHER_NODES_LEVELS + depth) * _LEVEL_SECONDS
        name = f"rank {ranks.members[parent]}" if local_rank else "this host's leader"
        comms[local_rank].above = Connection(lower, name, timeout_seconds, extra_seconds)
        extra_seconds = (levels - depth) * _LEVEL_SECONDS
        below = Connection(upper, f"rank {ranks.members[local_rank]}", timeout_seconds, extra_seconds)
        if local_rank:
            comms[parent].children.append(below)
        else:
            leader = below
    return comms, leader


def name_ranks(ranks: Sequence[int]) -> str:
    """Return how messages name one or more ranks, given in rising order: "rank 3", "ranks 0 to 7"."""
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    noun = "ranks" if len(ranks) > 1 else "rank"
    return f"{noun} {', '.join(map(str, ranks))}"

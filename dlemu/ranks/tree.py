"""The collective calls of the ranks of one host, over sockets that they inherit.

The ranks form a binary tree: rank r's children are 2r+1 and 2r+2. A reduction goes up the tree, a broadcast down, so an
all-reduce costs each rank at most six small messages. Waits block in the kernel and cost no CPU.

A rank whose neighbour is gone or late raises PeerLostError and ends, so its other neighbours miss it in turn. Which
rank was the first is noticed by the process that forked them (`dlemu.ranks.launch`).
"""

from __future__ import annotations

import enum
import math
import os
import socket
import struct
from collections.abc import Sequence
from time import monotonic

from datagen.errors import DlemuError
from dlemu.ranks.comm_base import PeerLostError
from dlemu.ranks.messages import decode, encode

PART_BYTES = 1 << 20
"""Received at once. Each part has the whole timeout, so a long payload that makes progress never times out."""
_HEADER = struct.Struct("<qq")
_TIMEVAL = struct.Struct("@ll")
_LONGEST_SECONDS = 1e8  # about three years: stands for "no deadline" and fits the kernel's jiffies
_SLACK_SECONDS = 0.1  # a socket timeout that is off by less is kept: setting it costs a system call per wait
_LEVEL_SECONDS = 0.5  # each level of the tree waits this much longer than the next one nearer to the missing rank
_OTHER_NODES_LEVELS = 4  # levels to add for the time in which the node's rank 0 waits for other nodes


class Frame(enum.IntEnum):
    """What a frame is for. The number in it is a value (MAXIMUM), or how many bytes follow.

    Between a rank and its host's leader also CLOCKS, to compare those of the hosts, and TIMEOUT, in milliseconds.
    Between this and the host's other processes of a launcher: START, LED or ALONE in answer, TIMEOUT, END.
    """

    MAXIMUM = 1
    GATHER = 2
    BROADCAST = 3
    CLOCKS = 4
    TIMEOUT = 5
    START = 6
    LED = 7
    ALONE = 8
    END = 9


_CALLS = {
    Frame.MAXIMUM: "the barrier",
    Frame.GATHER: "the gather",
    Frame.BROADCAST: "the broadcast",
    Frame.CLOCKS: "the comparison of clocks",
    Frame.TIMEOUT: "a new time limit",
    Frame.START: "the start",
    Frame.LED: "the start",
    Frame.ALONE: "the start",
    Frame.END: "the end",
}


class Connection:
    """A stream of frames to a neighbour; calls raise PeerLostError when it is lost or late.

    The kernel enforces the timeout (SO_RCVTIMEO): a wait is one system call, which a signal handler can interrupt with
    an exception.
    """

    def __init__(self, stream: socket.socket, peer: str, timeout_seconds: float, extra_seconds: float = 0.0) -> None:
        """`extra_seconds` lets the rank nearest to the missing one report first: it knows which one is missing."""
        self._stream, self._peer, self._extra_seconds = stream, peer, extra_seconds
        self._kernel_seconds = math.nan
        self.set_timeout(timeout_seconds)

    def set_timeout(self, timeout_seconds: float) -> None:
        """Take the neighbour for lost after this many seconds without a frame that is due."""
        self._timeout_seconds = timeout_seconds
        longest = min(timeout_seconds + self._extra_seconds, _LONGEST_SECONDS)
        self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(longest))
        self._expect_within(longest)

    def send(self, frame: Frame, number: int) -> None:
        """Send a frame that is a number alone, or the head of `number` bytes."""
        self.send_bytes(_HEADER.pack(frame, number))

    def send_bytes(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._stream.sendall(data)
        except BlockingIOError as error:
            raise PeerLostError(f"{self._peer} accepted no data for {self._timeout_seconds:g} s") from error
        except OSError as error:
            raise self._ended() from error

    def send_payload(self, frame: Frame, payload: bytes | bytearray) -> None:
        self.send(frame, len(payload))
        self.send_bytes(payload)

    def receive(self, frame: Frame, started_seconds: float | None = None) -> int:
        """Wait for a frame of this kind and return its number; the deadline counts from `started_seconds`, or now."""
        begun_seconds = 0.0 if started_seconds is None else monotonic() - started_seconds
        self._expect_within(self._timeout_seconds + self._extra_seconds - begun_seconds)
        kind, number = self.receive_head(frame)
        if kind != frame:
            theirs = _CALLS[Frame(kind)] if kind in list(Frame) else f"a frame of unknown kind {kind}"
            raise DlemuError(
                f"{self._peer} is at {theirs} where this rank is at {_CALLS[frame]}: all ranks must make the same "
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
                message = f"{self._peer} did not arrive at {_CALLS[frame]} within {self._timeout_seconds:g} s"
                raise PeerLostError(message) from error
            except OSError as error:  # reset
                raise self._ended() from error
            if count == 0:
                raise self._ended()
            view = view[count:]
        return data

    def receive_payload(self, frame: Frame) -> bytearray:
        return self.receive_bytes(self.receive(frame), frame)

    def fileno(self) -> int:
        return self._stream.fileno()

    def close(self) -> None:
        """Close the connection; the neighbour notices it at once."""
        self._stream.close()

    def _ended(self) -> PeerLostError:
        return PeerLostError(f"{self._peer} ended without a message")

    def _expect_within(self, seconds: float) -> None:
        seconds = max(min(seconds, _LONGEST_SECONDS), 0.001)
        if not abs(seconds - self._kernel_seconds) <= _SLACK_SECONDS:
            self._kernel_seconds = seconds
            self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))


def _timeval(seconds: float) -> bytes:
    return _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))


class LocalTree:
    """The ranks of one host. All calls are collective over the host, and only one thread may make them.

    Raises `PeerLostError` when a neighbour ends or misses its deadline; then the rank must end.
    """

    def __init__(self, local_rank: int, local_size: int) -> None:
        """Make a tree without connections."""
        self.rank, self.size = local_rank, local_size
        self.parent: Connection | None = None
        self.leader: Connection | None = None
        """On the first rank of each of several hosts: to the process that speaks for the host."""
        self.children: dict[int, Connection] = {}

    def reduce_max(self, value: int) -> int:
        """Return the maximum (int64) of this rank's subtree."""
        started = monotonic()
        for child in self.children.values():
            value = max(value, child.receive(Frame.MAXIMUM, started))
        if self.parent is not None:
            self.parent.send(Frame.MAXIMUM, value)
        return value

    def broadcast_number(self, value: int) -> int:
        if self.parent is not None:
            value = self.parent.receive(Frame.MAXIMUM)
        for child in self.children.values():
            child.send(Frame.MAXIMUM, value)
        return value

    def gather(self, payload: bytes) -> list[bytes] | None:
        """Return every rank's bytes in rank order on rank 0, None elsewhere."""
        parts = {self.rank: payload}
        for child in self.children.values():
            parts |= decode(child.receive_payload(Frame.GATHER))
        if self.parent is None:
            return [parts[rank] for rank in range(self.size)]
        self.parent.send_payload(Frame.GATHER, encode(parts))
        return None

    def broadcast(self, payload: bytes | bytearray) -> bytes | bytearray:
        """Return rank 0's bytes on every rank; the others' `payload` is ignored."""
        if self.parent is not None:
            payload = self.parent.receive_payload(Frame.BROADCAST)
        for child in self.children.values():
            child.send_payload(Frame.BROADCAST, payload)
        return payload

    def set_timeout(self, timeout_seconds: float) -> None:
        for connection in self._connections():
            connection.set_timeout(timeout_seconds)

    def close(self) -> None:
        """Close this rank's connections; neighbours that still wait for this rank notice at once."""
        for connection in self._connections():
            connection.close()

    def _connections(self) -> list[Connection]:
        return [one for one in (self.parent, self.leader, *self.children.values()) if one is not None]


class TreeSockets:
    """The sockets between the ranks of a host, made by the process that forks these.

    A rank has its own ends alone: when it ends, its neighbours get an end of file. Nobody else can connect.
    """

    def __init__(self, names: Sequence[int], *, with_leader: bool = False) -> None:
        """`names` are the ranks' numbers; `with_leader` also connects the first with this process. Raises OSError."""
        self._names = names
        pairs = {rank: socket.socketpair() for rank in range(0 if with_leader else 1, len(names))}
        self._above = {rank: above for rank, (above, _) in pairs.items()}
        """Rank -> its parent's end of the socket between the two."""
        self._below = {rank: below for rank, (_, below) in pairs.items()}
        self.leader = self._above.pop(0, None)

    def take(self, rank: int, timeout_seconds: float) -> LocalTree:
        """Return the place of a rank in the tree, with its ends; a forked rank then closes all others.

        Its own forked children (a loader's workers) close the sockets at once, so its end is noticed if they live on.
        """
        size = len(self._names)
        tree = LocalTree(rank, size)
        if rank in self._below:
            # An answer from above may have to wait for the whole tree twice, and for other nodes. Ranks further down
            # wait longer, so that the children of a missing rank are the first to report it.
            extra_seconds = (2 * height(0, size) + _OTHER_NODES_LEVELS + depth(rank)) * _LEVEL_SECONDS
            name = f"rank {self._names[parent_of(rank)]}" if rank else "this host's leader"
            above = Connection(self._below.pop(rank), name, timeout_seconds, extra_seconds)
            tree.parent, tree.leader = (above, None) if rank else (None, above)
        for child in children_of(rank, size):
            extra_seconds = height(child, size) * _LEVEL_SECONDS
            name = f"rank {self._names[child]}"
            tree.children[child] = Connection(self._above.pop(child), name, timeout_seconds, extra_seconds)
        os.register_at_fork(after_in_child=tree.close)
        return tree

    def close(self) -> None:
        for end in (*self._above.values(), *self._below.values()):
            end.close()


def children_of(rank: int, size: int) -> list[int]:
    return [child for child in (2 * rank + 1, 2 * rank + 2) if child < size]


def parent_of(rank: int) -> int:
    """Return the parent of `rank`, which is not 0."""
    return (rank - 1) // 2


def depth(rank: int) -> int:
    return (rank + 1).bit_length() - 1


def height(rank: int, size: int) -> int:
    levels = 0
    while 2 * rank + 1 < size:  # the left-most path is the longest
        rank, levels = 2 * rank + 1, levels + 1
    return levels

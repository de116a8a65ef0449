"""The collective calls of the ranks of one node: which messages they exchange over their links.

The ranks form a binary tree: rank r's children are 2r+1 and 2r+2. A reduction goes up the tree, a broadcast down, so an
all-reduce costs each rank at most six small messages.

A rank whose neighbour is gone or late raises PeerLostError and ends, so its other neighbours miss it in turn. Which
rank was the first is noticed by the process that forked them (`dlemu.comm.launch`).

Nothing here uses sockets: `dlemu.comm.local` makes the links.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from time import monotonic
from typing import Protocol

PART_BYTES = 1 << 20  # what a rank buffers of a payload that it passes on


class Frame(enum.IntEnum):
    """What a frame is for. The number in it is a value (MAXIMUM), or how many bytes follow.

    Between a rank and its host's leader also CLOCKS, to compare those of the hosts, and TIMEOUT, in milliseconds.
    """

    MAXIMUM = 1
    GATHER = 2
    BROADCAST = 3
    CLOCKS = 4
    TIMEOUT = 5


class Link(Protocol):
    """A stream of frames to one neighbour, with a deadline. Calls raise `PeerLostError` when the neighbour is lost."""

    def send(self, frame: Frame, number: int) -> None:
        """Send a frame that is a number alone, or the head of `number` bytes."""

    def send_bytes(self, data: bytes | bytearray | memoryview) -> None:
        """Send the bytes that belong to the last frame."""

    def receive(self, frame: Frame, started_seconds: float | None = None) -> int:
        """Wait for a frame of this kind and return its number.

        The deadline counts from `started_seconds` (time.monotonic()), or from now; math.inf means none.
        """

    def receive_bytes(self, num_bytes: int, frame: Frame) -> bytearray:
        """Receive the bytes of a frame whose head was just received."""

    def set_timeout(self, timeout_seconds: float) -> None:
        """Take the neighbour for lost after this many seconds without a frame that is due."""

    def close(self) -> None:
        """Close the connection; the neighbour notices it at once."""


class LocalTree:
    """The ranks of one node. All calls are collective over the node, and only one thread may make them.

    Raises `PeerLostError` when a neighbour ends or misses its link's deadline; then the rank must end.
    """

    def __init__(self, local_rank: int, local_size: int) -> None:
        """Make a tree without links."""
        self.rank, self.size = local_rank, local_size
        self.parent: Link | None = None
        self.leader: Link | None = None
        """On the first rank of each of several hosts: to the process that speaks for the host."""
        self.children: dict[int, Link] = {}

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

    def gather(self, payload: bytes) -> list[bytes | bytearray] | None:
        """Return every rank's bytes in rank order on rank 0, None elsewhere; ranks in between buffer at most 1 MiB."""
        if self.parent is None:
            return self._collect(payload)
        send_payload(self.parent, Frame.GATHER, payload)
        for rank, child in self.children.items():
            for _ in _preorder(rank, self.size):
                num_bytes = child.receive(Frame.GATHER)
                self.parent.send(Frame.GATHER, num_bytes)
                for start in range(0, num_bytes, PART_BYTES):
                    part = child.receive_bytes(min(PART_BYTES, num_bytes - start), Frame.GATHER)
                    self.parent.send_bytes(part)
        return None

    def broadcast(self, payload: bytes | bytearray) -> bytes | bytearray:
        """Return rank 0's bytes on every rank; the others' `payload` is ignored."""
        if self.parent is not None:
            payload = receive_payload(self.parent, Frame.BROADCAST)
        for child in self.children.values():
            send_payload(child, Frame.BROADCAST, payload)
        return payload

    def set_timeout(self, timeout_seconds: float) -> None:
        for link in self._links():
            link.set_timeout(timeout_seconds)

    def close(self) -> None:
        """Close this rank's links; neighbours that still wait for this rank notice at once."""
        for link in self._links():
            link.close()

    def _links(self) -> list[Link]:
        return [link for link in (self.parent, self.leader, *self.children.values()) if link is not None]

    def _collect(self, own: bytes) -> list[bytes | bytearray]:
        parts: dict[int, bytes | bytearray] = {self.rank: own}
        for top, child in self.children.items():
            for rank in _preorder(top, self.size):
                parts[rank] = receive_payload(child, Frame.GATHER)
        return [parts[rank] for rank in range(self.size)]


def send_payload(link: Link, frame: Frame, payload: bytes | bytearray) -> None:
    link.send(frame, len(payload))
    link.send_bytes(payload)


def receive_payload(link: Link, frame: Frame) -> bytearray:
    return link.receive_bytes(link.receive(frame), frame)


def children_of(rank: int, size: int) -> list[int]:
    return [child for child in (2 * rank + 1, 2 * rank + 2) if child < size]


def parent_of(rank: int) -> int:
    """Return the parent of `rank`, which is not 0."""
    return (rank - 1) // 2


def depth(rank: int) -> int:
    levels = 0
    while rank > 0:
        rank, levels = parent_of(rank), levels + 1
    return levels


def height(rank: int, size: int) -> int:
    levels = 0
    while 2 * rank + 1 < size:  # the left-most path is the longest
        rank, levels = 2 * rank + 1, levels + 1
    return levels


def _preorder(rank: int, size: int) -> Iterator[int]:
    yield rank
    for child in children_of(rank, size):
        yield from _preorder(child, size)

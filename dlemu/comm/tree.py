"""The collective calls of the ranks of one node: which messages they exchange over their links.

The ranks form a binary tree: rank r's children are 2r+1 and 2r+2. A reduction goes up the tree, a broadcast down, so an
all-reduce costs each rank at most six small messages.

When a rank is lost, the neighbour that notices it sends a notice with the reason to its other neighbours before it
raises, and they pass it on: every rank raises the same message, which names the rank that is gone.

Nothing here uses sockets: `dlemu.comm.local` makes the links.
"""

from __future__ import annotations

import contextlib
import enum
import math
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Protocol

from dlemu.comm.comm_base import PeerLostError

PART_BYTES = 1 << 20  # a notice of a lost rank waits for one part at most; smaller parts cost more headers and calls


class Frame(enum.IntEnum):
    """What a frame is for. The number in it is a value (MAXIMUM) or how many bytes follow.

    Bytes follow in PARTs of at most `PART_BYTES`, passed on whole: a notice of a lost rank may come between two frames.
    """

    MAXIMUM = 1
    GATHER = 2
    BROADCAST = 3
    LOST = 4
    HELLO = 5
    PART = 6


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

    def notify(self, message: str) -> None:
        """Notify the neighbour that a rank is lost, if that needs no waiting."""

    def set_timeout(self, timeout_seconds: float) -> None:
        """Take the neighbour for lost after this many seconds without a frame that is due."""

    def close(self) -> None:
        """Close the connection; the neighbour notices it at once."""


class LocalTree:
    """The ranks of one node. All calls are collective over the node, and only one thread may make them.

    Raises `PeerLostError` when a rank ends or misses its link's deadline; after that, at every further call.
    """

    def __init__(self, local_rank: int, local_size: int, names: Sequence[int | str] | None = None) -> None:
        """Make a tree without links; `names` are the ranks' names in messages: numbers (default: local) or texts."""
        self.rank, self.size = local_rank, local_size
        self._names: Sequence[int | str] = names if names is not None else range(local_size)
        self.parent: Link | None = None
        self.children: dict[int, Link] = {}
        self.broken: str | None = None
        """Why no further call can succeed, or None."""

    def name(self, rank: int) -> str:
        name = self._names[rank]
        return name if isinstance(name, str) else f"rank {name}"

    def reduce_max(self, value: int, *, forever: bool = False) -> int:
        """Return the maximum (int64) of this rank's subtree; `forever` has no deadline for ranks that are alive."""
        with self.collective():
            started = math.inf if forever else monotonic()
            for child in self.children.values():
                value = max(value, child.receive(Frame.MAXIMUM, started))
            if self.parent is not None:
                self.parent.send(Frame.MAXIMUM, value)
        return value

    def broadcast_number(self, value: int, *, forever: bool = False) -> int:
        with self.collective():
            if self.parent is not None:
                value = self.parent.receive(Frame.MAXIMUM, math.inf if forever else None)
            for child in self.children.values():
                child.send(Frame.MAXIMUM, value)
        return value

    def gather(self, payload: bytes) -> list[bytes | bytearray] | None:
        """Return every rank's bytes in rank order on rank 0, None elsewhere; ranks in between buffer at most 1 MiB."""
        with self.collective():
            if self.parent is None:
                return self._collect(payload)
            _send_payload(self.parent, Frame.GATHER, payload)
            for rank, child in self.children.items():
                for _ in _preorder(rank, self.size):
                    num_bytes = child.receive(Frame.GATHER)
                    self.parent.send(Frame.GATHER, num_bytes)
                    for part in _parts(child, num_bytes):
                        _send_part(self.parent, part)
        return None

    def broadcast(self, payload: bytes | bytearray) -> bytes | bytearray:
        """Return rank 0's bytes on every rank; the others' `payload` is ignored."""
        with self.collective():
            if self.parent is not None:
                payload = _receive_payload(self.parent, Frame.BROADCAST)
            for child in self.children.values():
                _send_payload(child, Frame.BROADCAST, payload)
        return payload

    @contextlib.contextmanager
    def collective(self) -> Iterator[None]:
        """Guard a part of a collective call: unless it completes, the tree is broken and the neighbours learn why."""
        if self.broken is not None:
            raise PeerLostError(self.broken)
        try:
            yield
        except PeerLostError as error:
            self.announce_loss(str(error))
            raise
        except BaseException:
            self.announce_loss(f"{self.name(self.rank)} left a collective call halfway")
            raise

    def announce_loss(self, message: str) -> None:
        """Break the tree: every rank's next (or present) call raises `PeerLostError(message)`."""
        if self.broken is None:
            self.broken = message
            for link in self._links():
                link.notify(message)

    def set_timeout(self, timeout_seconds: float) -> None:
        for link in self._links():
            link.set_timeout(timeout_seconds)

    def close(self) -> None:
        """Close this rank's links; neighbours that still wait for this rank notice at once."""
        for link in self._links():
            link.close()
        self.parent = None
        self.children = {}
        self.broken = self.broken or "this rank has closed its communicator"

    def _links(self) -> list[Link]:
        above = [self.parent] if self.parent is not None else []
        return above + list(self.children.values())

    def _collect(self, own: bytes) -> list[bytes | bytearray]:
        parts: dict[int, bytes | bytearray] = {self.rank: own}
        for top, child in self.children.items():
            for rank in _preorder(top, self.size):
                parts[rank] = _receive_payload(child, Frame.GATHER)
        return [parts[rank] for rank in range(self.size)]


def _send_payload(link: Link, frame: Frame, payload: bytes | bytearray) -> None:
    link.send(frame, len(payload))
    view = memoryview(payload)
    for start in range(0, len(payload), PART_BYTES):
        _send_part(link, view[start : start + PART_BYTES])


def _send_part(link: Link, part: bytes | bytearray | memoryview) -> None:
    link.send(Frame.PART, len(part))
    link.send_bytes(part)


def _parts(link: Link, num_bytes: int) -> Iterator[bytearray]:
    while num_bytes > 0:
        part = link.receive_bytes(link.receive(Frame.PART), Frame.PART)
        num_bytes -= len(part)
        yield part


def _receive_payload(link: Link, frame: Frame) -> bytearray:
    payload = bytearray()
    for part in _parts(link, link.receive(frame)):
        payload += part
    return payload


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

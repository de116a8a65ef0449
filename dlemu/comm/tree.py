"""The node-local meeting: ranks of one node form a binary tree of Unix sockets and block in the kernel.

Rank r's children are 2r+1 and 2r+2. A meeting goes up the tree and down again, so it costs each rank at most six
small system calls and a wait costs no CPU (a blocked MPI_Barrier burns a core per rank).

When a rank is lost, the neighbour that sees it tells its other neighbours why before it raises, and they theirs: every
rank raises the same message, which names the rank that is gone.
"""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Iterator, Sequence
from time import monotonic

from datagen.errors import DlemuError
from dlemu.comm.comm_base import PeerLostError
from dlemu.comm.connection import Connection, Frame
from dlemu.comm.process import after_fork_in_child
from dlemu.comm.rendezvous import Rendezvous

_LEVEL_SECONDS = 0.5  # each level of the tree waits this much longer than the one nearer to the missing rank
_OTHER_NODES_LEVELS = 4  # the same, for what the node's rank 0 waits for from other nodes


class LocalTree:
    """The ranks of one node. All calls are collective over the node and belong to one thread.

    Raises `PeerLostError` when a rank ends, or does not arrive (or, within a long transfer, moves nothing) for
    `timeout_seconds`. A tree that has raised is broken: every further call raises the same error at once.

    Forked children (a loader's workers) lose the sockets at birth, so a rank's end is seen although they live on.
    """

    def __init__(
        self,
        token: str,
        local_rank: int,
        local_size: int,
        timeout_seconds: float,
        names: Sequence[int] | None = None,
    ) -> None:
        """Connect to the neighbours; `names` are the numbers by which messages call the ranks (default: local)."""
        self._rank, self._size, self._timeout_seconds = local_rank, local_size, timeout_seconds
        self._names = names if names is not None else range(local_size)
        self._children: dict[int, Connection] = {}
        self._parent: Connection | None = None
        self.broken: str | None = None
        """Why no further call can succeed, or None."""
        if local_size > 1:
            after_fork_in_child(self.close)
            self._connect(token)

    def rise(self, value: int, *, patient: bool = False) -> int:
        """First half of a meeting: return the maximum (int64) of this rank's subtree; on rank 0 that of all.

        `patient` waits for ever for ranks that live.
        """
        with self.whole():
            started = math.inf if patient else monotonic()
            for child in self._children.values():
                value = max(value, child.receive(Frame.MAXIMUM, started))
            if self._parent is not None:
                self._parent.send(Frame.MAXIMUM, value)
        return value

    def fall(self, value: int, *, patient: bool = False) -> int:
        """Second half of a meeting: return the value that rank 0 gave."""
        with self.whole():
            if self._parent is not None:
                value = self._parent.receive(Frame.MAXIMUM, math.inf if patient else None)
            for child in self._children.values():
                child.send(Frame.MAXIMUM, value)
        return value

    def gather(self, payload: bytes) -> list[bytes | bytearray] | None:
        """Return every rank's bytes in rank order on rank 0, None elsewhere; ranks between hold 1 MiB of it."""
        with self.whole():
            if self._parent is None:
                return self._collect(payload)
            self._parent.send(Frame.GATHER, len(payload))
            self._parent.send_bytes(payload)
            for rank, child in self._children.items():
                for _ in _preorder(rank, self._size):
                    num_bytes = child.receive(Frame.GATHER)
                    self._parent.send(Frame.GATHER, num_bytes)
                    child.relay_bytes(num_bytes, Frame.GATHER, self._parent)
        return None

    def broadcast(self, payload: bytes | bytearray) -> bytes | bytearray:
        """Return rank 0's bytes on every rank; what the others give is ignored."""
        with self.whole():
            if self._parent is not None:
                payload = self._parent.receive_bytes(self._parent.receive(Frame.BROADCAST), Frame.BROADCAST)
            for child in self._children.values():
                child.send(Frame.BROADCAST, len(payload))
                child.send_bytes(payload)
        return payload

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Guard a part of a collective call: it is done whole, or the tree is broken and the neighbours know why."""
        if self.broken is not None:
            raise PeerLostError(self.broken)
        try:
            yield
        except PeerLostError as error:
            self.announce(str(error))
            raise
        except BaseException:
            self.announce(f"{self._name(self._rank)} left a meeting half way")
            raise

    def announce(self, message: str) -> None:
        """Break the tree: every rank's next (or present) call raises `PeerLostError(message)`."""
        if self.broken is None:
            self.broken = message
            for connection in self._connections():
                connection.notify(message)

    def set_timeout(self, timeout_seconds: float) -> None:
        """Wait so long for the neighbours from here on."""
        self._timeout_seconds = timeout_seconds
        for connection in self._connections():
            connection.set_timeout(timeout_seconds)

    def close(self) -> None:
        """Close this rank's sockets; neighbours that still wait for it see its end at once."""
        for connection in self._connections():
            connection.close()
        self._parent = None
        self._children = {}
        self.broken = self.broken or "this rank has left the meeting"

    def _connect(self, token: str) -> None:
        rendezvous = Rendezvous(token, self._rank, self._size, self._timeout_seconds, self._name)
        try:
            with self.whole():
                self._find_neighbours(rendezvous)
        except BaseException:
            self.close()
            raise
        finally:
            rendezvous.close()

    def _find_neighbours(self, rendezvous: Rendezvous) -> None:
        levels = _height(0, self._size)
        if self._rank > 0:
            above = (self._rank - 1) // 2
            # An answer from above may have to wait for the whole tree twice, and for other nodes.
            self._parent = self._connection(rendezvous.call(above), above, 2 * levels + _OTHER_NODES_LEVELS)
        missing = {child for child in (2 * self._rank + 1, 2 * self._rank + 2) if child < self._size}
        while missing:
            rank, stream = rendezvous.accept(missing)
            missing.remove(rank)
            self._children[rank] = self._connection(stream, rank, _height(rank, self._size))
            self._children[rank].send(Frame.HELLO, len(rendezvous.proof))
            self._children[rank].send_bytes(rendezvous.proof)
        self._children = dict(sorted(self._children.items()))
        if self._parent is not None:
            num_bytes = self._parent.receive(Frame.HELLO)
            if self._parent.receive_bytes(num_bytes, Frame.HELLO) != rendezvous.proof:
                raise DlemuError(f"{self._name(0)} answered for another run: start the run again")

    def _connection(self, stream: socket.socket, rank: int, levels: int) -> Connection:
        return Connection(stream, self._name(rank), self._timeout_seconds, levels * _LEVEL_SECONDS)

    def _name(self, rank: int) -> str:
        return f"rank {self._names[rank]}"

    def _connections(self) -> list[Connection]:
        above = [self._parent] if self._parent is not None else []
        return above + list(self._children.values())

    def _collect(self, own: bytes) -> list[bytes | bytearray]:
        parts: dict[int, bytes | bytearray] = {self._rank: own}
        for top, child in self._children.items():
            for rank in _preorder(top, self._size):
                parts[rank] = child.receive_bytes(child.receive(Frame.GATHER), Frame.GATHER)
        return [parts[rank] for rank in range(self._size)]


def _preorder(rank: int, size: int) -> Iterator[int]:
    """Yield the ranks of the subtree under `rank` in the order in which a gather delivers them."""
    if rank < size:
        yield rank
        yield from _preorder(2 * rank + 1, size)
        yield from _preorder(2 * rank + 2, size)


def _height(rank: int, size: int) -> int:
    """Return how many levels lie below `rank`."""
    height = 0
    while 2 * rank + 1 < size:  # the left-most path is the longest
        rank, height = 2 * rank + 1, height + 1
    return height

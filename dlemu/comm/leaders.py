"""What crosses nodes: one rank of each node, its leader, communicates by MPI for all of them.

MPI's own waits spin on a core, so nothing here blocks in MPI: every call is a nonblocking one that is tested between
sleeps, which grow from 50 microseconds to a millisecond. Only the few pings that compare clocks spin.

MPI's ports are open to whoever reaches this host, and receivers unpickle what they get: so each payload carries a code
(keyed BLAKE2b, RFC 7693) that only holders of the run's secret can make. It covers the number of the call, so no
message can be replayed.

`dlemu.comm.mpi` hands in mpi4py's objects; this module never imports it.
"""

from __future__ import annotations

import contextlib
import os
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dlemu.comm.comm_base import PeerLostError
from dlemu.comm.seal import CODE_NUMBERS, TO_ALL, Seal

_FIRST_SLEEP_SECONDS, _LONGEST_SLEEP_SECONDS, _SLEEP_GROWTH = 50e-6, 1e-3, 1.2  # prompt first, then up to 1 ms late
_PIECE_BYTES = 64 << 20  # far below 2^31, the largest count that every MPI library takes
_PINGS = 40  # the quickest of them met no queue: half of its round trip bounds the offset's error
_TAG = 1  # one is enough: messages between two ranks arrive in order
_WRITING_SECONDS = 3600.0  # far more than writing results takes; bounded, as a host may be cut off meanwhile


class Leaders:
    """The nodes' leaders, in the order of their world ranks. Calls are collective over them.

    Raises `PeerLostError` when another leader does not arrive, or moves nothing, for `timeout_seconds`.
    """

    def __init__(self, mpi: Any, comm: Any, secret: bytes, timeout_seconds: float) -> None:
        """`mpi` is the module mpi4py.MPI, `comm` a communicator of the leaders alone; `secret` is the run's."""
        self._mpi, self._comm, self.timeout_seconds = mpi, comm, timeout_seconds
        self._seal = Seal(secret, "MPI")
        self.node: int = comm.Get_rank()
        self.nodes: int = comm.Get_size()
        self.name_nodes([f"host {node}" for node in range(self.nodes)])
        self._abandoned: list[Any] = []

    def name_nodes(self, names: Sequence[str]) -> None:
        """Set how errors name each node, and the text for "any node but this one" when a collective call times out."""
        self.names, others = names, [*names[: self.node], *names[self.node + 1 :]]
        self.others_text = others[0] if len(others) == 1 else f"one of {', '.join(others)}"

    def all_reduce_max(self, value: int, *, last: bool = False) -> int:
        """Return the maximum (int64) over the nodes.

        `last` marks the run's final call: it waits up to an hour longer, while rank 0 writes results.
        """
        own, highest = array("q", [value]), array("q", [0])
        request = self._comm.Iallreduce(own, highest, op=self._mpi.MAX)
        self._wait(request, (own, highest), self.others_text, more_seconds=_WRITING_SECONDS * last)
        return highest[0]

    def gather(self, parts: Iterable[tuple[int, bytes | bytearray]]) -> dict[int, bytes | bytearray]:
        """Return each world rank's bytes on node 0, an empty dictionary elsewhere."""
        gathered = dict(parts)
        self._seal.next_call()
        if self.node == 0:
            for node in range(1, self.nodes):
                for _ in range(self._receive_numbers(node, 1)[0]):
                    rank, num_bytes, *code = self._receive_numbers(node, 2 + CODE_NUMBERS)
                    gathered[rank] = self._receive_bytes(node, num_bytes)
                    self._seal.check(rank, gathered[rank], code, self.names[node])
            return gathered
        self._send(0, array("q", [len(gathered)]))
        for rank, payload in gathered.items():
            self._send(0, array("q", [rank, len(payload), *self._seal.code(rank, payload)]))
            for piece in _pieces(payload):
                self._send(0, piece)
        return {}

    def broadcast(self, payload: bytes | bytearray) -> bytes | bytearray:
        """Return node 0's bytes on every node."""
        self._seal.next_call()
        head = array("q", [len(payload), *self._seal.code(TO_ALL, payload)])
        self._wait(self._comm.Ibcast(head, root=0), head, self.others_text)
        if self.node != 0:
            payload = bytearray(head[0])
        for piece in _pieces(payload):
            self._wait(self._comm.Ibcast([piece, self._mpi.BYTE], root=0), piece, self.others_text)
        if self.node != 0:
            self._seal.check(TO_ALL, payload, head[1:], self.names[0])
        return payload

    def clock_offsets(self) -> tuple[int, ...]:
        """Return for each node the nanoseconds to add to its CLOCK_MONOTONIC to get node 0's.

        Of several pings the fastest counts: its answer is taken to be stamped half way through the round trip, which is
        wrong by half of it at most.
        """
        offsets_ns = array("q", bytes(8 * self.nodes))
        if self.node == 0:
            for node in range(1, self.nodes):
                offsets_ns[node] = self._ping(node)
        else:
            self._answer_pings()
        self._wait(self._comm.Ibcast(offsets_ns, root=0), offsets_ns, self.others_text)
        return tuple(offsets_ns)

    def leave(self, message: str) -> None:
        """Nothing: MPI's launcher ends the other hosts."""

    def _ping(self, node: int) -> int:
        best_ns, offset_ns = 1 << 62, 0
        for _ in range(_PINGS):
            sent_ns = time.monotonic_ns()
            self._send(node, array("q", [sent_ns]), spin=True)
            stamp_ns = self._receive_numbers(node, 1, spin=True)[0]
            round_trip_ns = time.monotonic_ns() - sent_ns
            if round_trip_ns < best_ns:
                best_ns, offset_ns = round_trip_ns, sent_ns + round_trip_ns // 2 - stamp_ns
        return offset_ns

    def _answer_pings(self) -> None:
        for ping in range(_PINGS):
            self._receive_numbers(0, 1, spin=ping > 0)  # node 0 may be busy with the nodes before
            self._send(0, array("q", [time.monotonic_ns()]), spin=True)

    def _receive_numbers(self, node: int, count: int, *, spin: bool = False) -> array[int]:
        numbers = array("q", bytes(8 * count))
        self._wait(self._comm.Irecv(numbers, source=node, tag=_TAG), numbers, self.names[node], spin=spin)
        return numbers

    def _receive_bytes(self, node: int, num_bytes: int) -> bytearray:
        data = bytearray(num_bytes)
        for piece in _pieces(data):
            request = self._comm.Irecv([piece, self._mpi.BYTE], source=node, tag=_TAG)
            self._wait(request, piece, self.names[node])
        return data

    def _send(self, node: int, data: array[int] | memoryview, *, spin: bool = False) -> None:
        message = [data, self._mpi.BYTE] if isinstance(data, memoryview) else data
        self._wait(self._comm.Isend(message, dest=node, tag=_TAG), data, self.names[node], spin=spin)

    def _wait(
        self, request: Any, buffers: object, awaited: str, *, spin: bool = False, more_seconds: float = 0.0
    ) -> None:
        """Wait for a request; `buffers` must live as long as the request (mpi4py does not see to that)."""
        timeout_seconds = self.timeout_seconds + more_seconds
        with contact(self._mpi, awaited):
            if not finished(request, timeout_seconds, spin=spin):
                self._abandoned.append((request, buffers))  # MPI may still write there
                raise PeerLostError(f"{awaited} did not arrive within {timeout_seconds:g} s")


def finished(request: Any, timeout_seconds: float, *, spin: bool = False) -> bool:
    """Sleep (or `spin`) until the request is complete, or return False after the timeout."""
    deadline_seconds = time.monotonic() + timeout_seconds
    pause = _FIRST_SLEEP_SECONDS
    while not request.Test():
        if time.monotonic() > deadline_seconds:
            return False
        if spin:
            os.sched_yield()
            continue
        time.sleep(pause)
        pause = min(pause * _SLEEP_GROWTH, _LONGEST_SLEEP_SECONDS)
    return True


@contextlib.contextmanager
def contact(mpi: Any, peer: str = "another rank") -> Iterator[None]:
    """Turn MPI's errors into ours, which name the peer."""
    try:
        yield
    except mpi.Exception as error:
        raise PeerLostError(f"MPI lost contact with {peer}: {error}") from error


def _pieces(data: bytes | bytearray) -> Iterator[memoryview]:
    view = memoryview(data)
    for start in range(0, len(view), _PIECE_BYTES):
        yield view[start : start + _PIECE_BYTES]

"""What crosses hosts: each host's leader, the process that forks its ranks, speaks for them to the other leaders.

The launcher's library carries it (MPI, or torch.distributed). Its own waits may spin on a core and see no signal, so
nothing here blocks in it: each call is one that is tested between sleeps, which grow from 50 microseconds to a
millisecond. Ports between hosts are open to whoever reaches them, so each payload has a code (`Seal`).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import pickle
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datagen.errors import DlemuError
from dlemu.comm.comm_base import PeerLostError
from dlemu.comm.failure import Failure, describe
from dlemu.comm.local import dump
from dlemu.comm.tree import Connection, Frame

_FIRST_SLEEP_SECONDS, _LONGEST_SLEEP_SECONDS, _SLEEP_GROWTH = 50e-6, 1e-3, 1.2  # prompt first, then up to 1 ms late
_PIECE_BYTES = 64 << 20  # far below 2^31, the largest count that every MPI library takes
_PINGS = 40  # the quickest of them met no queue: half of its round trip bounds the offset's error
_CODE_BYTES = 16
_LOOK_SECONDS = 0.5  # between two looks whether another host has failed
Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]


class Seal:
    """Codes of payloads (keyed BLAKE2b, RFC 7693). They also cover the call's number, so none can be replayed."""

    def __init__(self, secret: bytes) -> None:
        self._secret, self._calls = secret, 0

    def next_call(self) -> None:
        self._calls += 1

    def closed(self, node: int, payload: bytes | bytearray) -> bytes:
        return self._code(node, payload) + payload

    def opened(self, node: int, sealed: bytes, sender: str) -> bytes:
        code, payload = sealed[:_CODE_BYTES], sealed[_CODE_BYTES:]
        if not hmac.compare_digest(code, self._code(node, payload)):
            raise DlemuError(
                f"a message in place of one from {sender} is not from this run, and was not read: keep other processes "
                'away from the ports of MPI and torchrun (docs/reliability.md, "Others on the host and the network")'
            )
        return payload

    def _code(self, node: int, payload: bytes | bytearray) -> bytes:
        code = hashlib.blake2b(struct.pack("<qq", self._calls, node), key=self._secret, digest_size=_CODE_BYTES)
        code.update(payload)
        return code.digest()


class HostsLostError(PeerLostError):
    """Another host has failed, and says so itself."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.exit_status = failure.status


class Leaders(ABC):
    """The leaders of several hosts, in the order of their first ranks; all calls are collective over them.

    They raise PeerLostError after `timeout_seconds`, HostsLostError when another host has failed.
    """

    def __init__(self, node: int, nodes: int, secret: bytes, timeout_seconds: float) -> None:
        self.node, self.nodes, self.timeout_seconds = node, nodes, timeout_seconds
        self.pause: Callable[[float], None] = time.sleep
        """How to sleep while waiting for other hosts; what it raises ends the wait."""
        self.lost: Failure | None = None
        """Why another host has failed, once it has said so."""
        self._seal = Seal(secret)
        self._names: Sequence[str] = [f"host {number}" for number in range(nodes)]
        self._look_seconds = 0.0
        self._offset_ns = 0
        self._unfinished: list[object] = []
        """Requests that were given up, and their buffers: the library may still write there."""

    @property
    def others(self) -> str:
        """How messages name the other hosts."""
        names = [*self._names[: self.node], *self._names[self.node + 1 :]]
        return names[0] if len(names) == 1 else f"one of {', '.join(names)}"

    def set_names(self, names: Sequence[str]) -> None:
        self._names = names

    def all_reduce_max(self, value_ns: int) -> int:
        """Return the maximum over the hosts of a time in ns (CLOCK_MONOTONIC), by this host's clock."""
        return self._highest(value_ns + self._offset_ns) - self._offset_ns

    def barrier(self, more_seconds: float = 0.0) -> None:
        self._highest(0, more_seconds)

    def gather(self, payload: bytes) -> list[bytes]:
        """Return every host's bytes on node 0, an empty list elsewhere."""
        self._seal.next_call()
        sealed = np.frombuffer(self._seal.closed(self.node, payload), np.uint8)
        sizes = np.zeros(self.nodes, np.int64)
        sizes[self.node] = sealed.size
        self._reduce(sizes, 0.0)
        parts: list[list[Bytes]] = [[] for _ in range(self.nodes)]
        for start in range(0, int(sizes.max()), _PIECE_BYTES):
            piece = np.zeros(min(_PIECE_BYTES, int(sizes.max()) - start), np.uint8)
            own = sealed[start : start + piece.size]
            piece[: own.size] = own
            for part, received in zip(parts, self._collect(piece), strict=False):
                part.append(received)
        if self.node != 0:
            return []
        whole = [np.concatenate(part)[:size].tobytes() for part, size in zip(parts, sizes, strict=True)]
        return [self._seal.opened(node, sealed, self._names[node]) for node, sealed in enumerate(whole)]

    def broadcast(self, payload: bytes | bytearray) -> bytes:
        """Return node 0's bytes on every host."""
        self._seal.next_call()
        sealed = np.frombuffer(self._seal.closed(0, payload), np.uint8).copy()
        size = np.array([sealed.size], np.int64)
        self._spread(size.view(np.uint8))
        sealed = sealed if self.node == 0 else np.empty(size[0], np.uint8)
        for start in range(0, sealed.size, _PIECE_BYTES):
            self._spread(sealed[start : start + _PIECE_BYTES])
        return self._seal.opened(0, sealed.tobytes(), self._names[0])

    def all_values(self, value: Any) -> list[Any]:
        """Return the values of all hosts, in node order, on every host."""
        parts = self.gather(dump(value))
        found: list[Any] = pickle.loads(self.broadcast(dump([pickle.loads(part) for part in parts])))
        return found

    def clock_offsets(self) -> tuple[int, ...]:
        """Return for each host the nanoseconds to add to its CLOCK_MONOTONIC to get node 0's.

        Of several pings the fastest counts, its answer taken to be stamped half way through the round trip.
        """
        self.barrier()
        offsets_ns = np.zeros(self.nodes, np.int64)
        self._ping_all(offsets_ns)
        self._spread(offsets_ns.view(np.uint8))
        self._offset_ns = int(offsets_ns[self.node])
        return tuple(map(int, offsets_ns))

    def ping_all(self, offsets_ns: Numbers) -> None:
        """Compare node 0's clock with each other node's, in turn."""
        number = np.zeros(1, np.int64)
        if self.node != 0:
            for _ in range(_PINGS):
                self._receive(0, number)
                number[0] = time.monotonic_ns()
                self._send(0, number)
            return
        for node in range(1, self.nodes):
            best_ns = 1 << 62
            for _ in range(_PINGS):
                sent_ns = time.monotonic_ns()
                self._send(node, number)
                self._receive(node, number)
                round_trip_ns = time.monotonic_ns() - sent_ns
                if round_trip_ns < best_ns:
                    best_ns, offsets_ns[node] = round_trip_ns, sent_ns + round_trip_ns // 2 - number[0]

    @contextlib.contextmanager
    def pausing(self, pause: Callable[[float], None]) -> Iterator[None]:
        self.pause = pause
        try:
            yield
        finally:
            self.pause = time.sleep

    def look(self) -> None:
        """Raise HostsLostError when another host has failed; looks twice a second at most."""
        if time.monotonic() >= self._look_seconds:
            self._look_seconds = time.monotonic() + _LOOK_SECONDS
            self.look_now()

    def look_now(self) -> None:
        if self.lost is None and (text := self._read_failure()):
            self.lost = Failure.from_json(text)
        if self.lost is not None:
            raise HostsLostError(self.lost)

    @abstractmethod
    def leave(self, failure: Failure) -> None:
        """Send the other hosts the reason why this one has failed; returns at once."""

    @abstractmethod
    def _read_failure(self) -> str:
        """Return the failure that another leader has sent, as JSON; empty without one."""

    @abstractmethod
    def _reduce(self, numbers: Numbers, more_seconds: float) -> None:
        """Replace the numbers by their maxima over the hosts."""

    @abstractmethod
    def _spread(self, data: Bytes) -> None:
        """Replace the data by node 0's."""

    @abstractmethod
    def _collect(self, data: Bytes) -> Sequence[Bytes]:
        """Return all hosts' data, of equal length, on node 0."""

    @abstractmethod
    def _ping_all(self, offsets_ns: Numbers) -> None:
        """Call `ping_all` so that it ends in time."""

    @abstractmethod
    def _send(self, node: int, number: Numbers) -> None: ...

    @abstractmethod
    def _receive(self, node: int, number: Numbers) -> None: ...

    def _highest(self, value: int, more_seconds: float = 0.0) -> int:
        numbers = np.array([value], np.int64)
        self._reduce(numbers, more_seconds)
        return int(numbers[0])

    def _wait(
        self,
        is_done: Callable[[], bool],
        buffers: object,
        *,
        more_seconds: float = 0.0,
        spin: bool = False,
    ) -> None:
        """Sleep (or `spin`) until a request is done; its `buffers` live as long as it does."""
        timeout_seconds = self.timeout_seconds + more_seconds
        deadline_seconds = time.monotonic() + timeout_seconds
        pause = _FIRST_SLEEP_SECONDS
        self._unfinished.append((is_done, buffers))
        while not is_done():
            if time.monotonic() > deadline_seconds:
                raise PeerLostError(f"{self.others} did not arrive within {timeout_seconds:g} s")
            if spin:
                os.sched_yield()
                continue
            self.look()
            self.pause(pause)
            pause = min(pause * _SLEEP_GROWTH, _LONGEST_SLEEP_SECONDS)
        self._unfinished.pop()


class Relay:
    """Answers what the first rank of this host asks of the leaders, on the leader's side of the socket."""

    def __init__(self, stream: socket.socket, rank: int, leaders: Leaders) -> None:
        """`rank` is the number of the first rank of this host."""
        self.link = Connection(stream, f"rank {rank}", leaders.timeout_seconds)
        self.rank, self.leaders = rank, leaders

    def serve(self, asked: bool, report: Callable[[Failure, int], None]) -> bool:
        """Answer one question if the rank has `asked` one; return False once there is no more to do.

        When another host is lost, `report` gets that as a failure of the rank.
        """
        try:
            if asked:
                try:
                    frame, number = self.link.receive_head(Frame.MAXIMUM)
                except PeerLostError:  # the rank has ended
                    return False
                self._answer(frame, number)
            self.leaders.look()
        except PeerLostError as error:
            report(describe(self.rank, error), time.monotonic_ns())
            return False
        return True

    def _answer(self, frame: int, number: int) -> None:
        if frame == Frame.MAXIMUM:
            self.link.send(Frame.MAXIMUM, self.leaders.all_reduce_max(number))
        elif frame == Frame.TIMEOUT:
            self.leaders.timeout_seconds = number / 1000
        else:
            payload = bytes(self.link.receive_bytes(number, Frame(frame)))
            answers: dict[int, Callable[[bytes], Any]] = {
                Frame.GATHER: lambda data: dump(self.leaders.gather(data)),
                Frame.BROADCAST: self.leaders.broadcast,
                Frame.CLOCKS: lambda data: dump(self.leaders.clock_offsets()),
            }
            self.link.send_payload(Frame(frame), answers[frame](payload))

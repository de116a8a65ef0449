"""Ranks as threads, linked by queues: what ranks say to each other does not depend on sockets."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dlemu.machine.clock import FakeClock
from dlemu.ranks.comm import Comm, Connection, Frame, HostRanks

PATIENCE_SECONDS = 60.0
"""Only a hang is that slow: messages take microseconds."""
Result = TypeVar("Result")
Pipe = queue.Queue[tuple[Frame, int] | bytes]
_NUMBER_BITS = 80


class MemoryLink(Connection):
    """One end of a link of two queues."""

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self._incoming, self._outgoing, self._received = incoming, outgoing, bytearray()

    def send(self, frame: Frame, number: int, payload: bytes | bytearray = b"") -> None:
        self._outgoing.put((frame, number))
        if payload:
            self._outgoing.put(bytes(payload))

    def receive(self, frame: Frame, started_seconds: float | None = None) -> int:
        item = self._incoming.get(timeout=PATIENCE_SECONDS)
        kind, number = item
        assert kind == frame
        assert isinstance(number, int)
        return number

    def receive_bytes(self, num_bytes: int, frame: Frame) -> bytearray:
        while len(self._received) < num_bytes:
            item = self._incoming.get(timeout=PATIENCE_SECONDS)
            assert isinstance(item, bytes)
            self._received += item
        data, self._received = self._received[:num_bytes], self._received[num_bytes:]
        return data

    def set_timeout(self, timeout_seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


def unnumbered(incoming: Pipe, outgoing: Pipe, rank: int) -> MemoryLink:
    return MemoryLink(incoming, outgoing)


def run(
    size: int, work: Callable[[Comm, int], Result], link: Callable[[Pipe, Pipe, int], MemoryLink] = unnumbered
) -> list[Result]:
    comms = [Comm(HostRanks(members=range(size), size=size), rank) for rank in range(size)]
    for rank in range(1, size):
        up: Pipe = queue.Queue()
        down: Pipe = queue.Queue()
        comms[rank].above = link(down, up, rank)
        comms[(rank - 1) // 2].children.append(link(up, down, (rank - 1) // 2))
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, comms, range(size)))


class TimedLink(MemoryLink):
    """A link of which each frame arrives `hop_ns` after it was sent, by the clock of the rank that has the link."""

    def __init__(self, incoming: Pipe, outgoing: Pipe, clock: FakeClock, hop_ns: int) -> None:
        super().__init__(incoming, outgoing)
        self._clock, self._hop_ns, self.sent = clock, hop_ns, 0

    def send(self, frame: Frame, number: int, payload: bytes | bytearray = b"") -> None:
        self.sent += 1
        super().send(frame, (self._clock.now_ns() + self._hop_ns) << _NUMBER_BITS | number)

    def receive(self, frame: Frame, started_seconds: float | None = None) -> int:
        stamped = super().receive(frame, started_seconds)
        self._clock.time_ns = max(self._clock.time_ns, stamped >> _NUMBER_BITS)
        return stamped & (1 << _NUMBER_BITS) - 1

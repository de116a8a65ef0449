"""Ranks as threads, connected by queues with a given latency, without sockets."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dlemu.machine.clock import FakeClock
from dlemu.ranks.comm import Comm, Connection, Frame, HostRanks

PATIENCE_SECONDS = 60.0
"""Far longer than messages take: only a hang takes so long."""
Result = TypeVar("Result")
Pipe = queue.Queue[tuple[Frame, int, int]]


class TimedLink(Connection):
    """A link on which a frame arrives `hop_ns` after it was sent, by the clock of the link's rank."""

    def __init__(self, incoming: Pipe, outgoing: Pipe, clock: FakeClock, hop_ns: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._clock, self._hop_ns, self.sent = clock, hop_ns, 0

    def send(self, frame: Frame, content: int | bytes | bytearray) -> None:
        assert isinstance(content, int)
        self.sent += 1
        self._outgoing.put((frame, content, self._clock.now_ns() + self._hop_ns))

    def receive(self, frame: Frame, waited_seconds: float = 0.0) -> int:
        kind, number, arrives_ns = self._incoming.get(timeout=PATIENCE_SECONDS)
        assert kind == frame
        self._clock.time_ns = max(self._clock.time_ns, arrives_ns)
        return number


def run(size: int, work: Callable[[Comm, int], Result], link: Callable[[Pipe, Pipe, int], TimedLink]) -> list[Result]:
    comms = [Comm(HostRanks(members=range(size), size=size), rank) for rank in range(size)]
    for rank in range(1, size):
        up: Pipe = queue.Queue()
        down: Pipe = queue.Queue()
        comms[rank].parent = link(down, up, rank)
        comms[(rank - 1) // 2].children.append(link(up, down, (rank - 1) // 2))
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, comms, range(size)))

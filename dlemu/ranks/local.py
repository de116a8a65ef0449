"""The communicator of the ranks of one host.

Other hosts are reached through the host's leader, the process that forked the ranks: its first rank asks it over a
socket as well.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dlemu.ranks.messages import decode, encode
from dlemu.ranks.tree import Frame, LocalTree


@dataclass(frozen=True)
class HostPlace:
    """Where a host's ranks are among all ranks of the run."""

    node: int = 0
    """Index of the host in `hosts`."""
    hosts: tuple[str, ...] = (socket.gethostname(),)
    members: Sequence[int] = (0,)
    """The numbers of the host's ranks, rising."""
    size: int = 1
    """Number of ranks on all hosts."""

    @classmethod
    def alone(cls, ranks: int) -> HostPlace:
        return cls(hosts=(socket.gethostname(),), members=range(ranks), size=ranks)


class LocalComm:
    """A `Comm` of forked ranks; a single rank (`LocalComm()`) needs no socket and never waits.

    `gather` and `broadcast` return a rank's own value as the same object, other ranks' values as copies.
    """

    def __init__(self, tree: LocalTree | None = None, place: HostPlace | None = None) -> None:
        self._tree = tree or LocalTree(0, 1)
        place = place or HostPlace.alone(self._tree.size)
        self.local_rank, self.local_size = self._tree.rank, self._tree.size
        self.node, self.hosts, self.size = place.node, place.hosts, place.size
        self.rank = place.members[self.local_rank]
        self._members = place.members

    def all_reduce_max(self, value_ns: int) -> int:
        highest_ns = self._tree.reduce_max(value_ns)
        if self._tree.leader is not None:
            self._tree.leader.send(Frame.MAXIMUM, highest_ns)
            highest_ns = self._tree.leader.receive(Frame.MAXIMUM)
        return self._tree.broadcast_number(highest_ns)

    def synchronise_clocks(self) -> tuple[int, ...]:
        if len(self.hosts) == 1:
            return (0,)
        self.all_reduce_max(0)  # the other ranks then sleep while the leaders compare clocks
        offsets: tuple[int, ...] = decode(self._tree.broadcast(self._ask(Frame.CLOCKS, b"")))
        return offsets

    def gather(self, value: Any) -> list[Any] | None:
        parts = self._tree.gather(b"" if self.rank == 0 else encode(value))
        if parts is None:
            return None
        payloads = dict(zip(self._members, parts, strict=True))
        if self._tree.leader is not None:
            of_hosts = decode(self._ask(Frame.GATHER, encode(payloads)))
            for payload in of_hosts[1:]:
                payloads |= decode(payload)
        if self.rank != 0:
            return None
        return [value, *(decode(payloads[rank]) for rank in range(1, self.size))]

    def broadcast(self, value: Any) -> Any:
        payload: bytes | bytearray = encode(value) if self.rank == 0 and self.size > 1 else b""
        payload = self._tree.broadcast(self._ask(Frame.BROADCAST, payload))
        return value if self.rank == 0 else decode(payload)

    def set_timeout(self, timeout_seconds: float) -> None:
        self._tree.set_timeout(timeout_seconds)
        if self._tree.leader is not None:
            self._tree.leader.send(Frame.TIMEOUT, round(timeout_seconds * 1000))

    def close(self) -> None:
        self._tree.close()

    def _ask(self, frame: Frame, payload: bytes | bytearray) -> bytes | bytearray:
        """Return what the leaders of all hosts answer together; where there is no leader to ask, the payload itself."""
        leader = self._tree.leader
        if leader is None:
            return payload
        leader.send_payload(frame, payload)
        return leader.receive_payload(frame)

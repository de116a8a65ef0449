"""Ranks that a launcher started, on one host or several: what mpirun's ranks and torchrun's have in common.

The ranks of a host talk over the node-local tree; the first rank of each host, its leader, talks to the other hosts.
Ports between hosts are open to whoever reaches them, and receivers unpickle what they get: so each payload has a code
(`Seal`).
"""

from __future__ import annotations

import copy
import hashlib
import hmac
import pickle
import socket
import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from datagen.errors import DlemuError
from dlemu import __version__
from dlemu.comm.comm_base import name_ranks
from dlemu.comm.local import connect_tree, dump
from dlemu.comm.process_control import after_fork_in_child, flush_output
from dlemu.comm.tree import LocalTree

CODE_NUMBERS = 2
TO_ALL = -1
"""Takes the place of a rank's number in the code of a payload that is broadcast."""


class Seal:
    """Codes of payloads (keyed BLAKE2b, RFC 7693). They also cover the call's number, so none can be replayed."""

    def __init__(self, secret: bytes, way: str) -> None:
        """`way` is how error messages name the transport: "MPI" or "TCP"."""
        self._secret, self._way, self._calls = secret, way, 0

    def next_call(self) -> None:
        self._calls += 1

    def code(self, rank: int, payload: bytes | bytearray) -> array[int]:
        """Return the payload's code in the present call, as 64-bit numbers; `rank` is its owner, or TO_ALL."""
        code = hashlib.blake2b(struct.pack("<qq", self._calls, rank), key=self._secret, digest_size=8 * CODE_NUMBERS)
        code.update(payload)
        return array("q", code.digest())

    def check(self, rank: int, payload: bytes | bytearray, code: Sequence[int], sender: str) -> None:
        if not hmac.compare_digest(self.code(rank, payload).tobytes(), array("q", code).tobytes()):
            raise DlemuError(
                f"a message over {self._way} in place of one from {sender} is not from this run, and was not read: "
                f'keep other processes away from the ports of {self._way} (docs/reliability.md, "Others on the host '
                'and the network")'
            )


class HostLeaders(Protocol):
    """The leaders of several hosts, seen by one of them. All calls except `leave` are collective over the leaders."""

    node: int
    names: Sequence[str]
    others_text: str
    timeout_seconds: float

    def name_nodes(self, names: Sequence[str]) -> None:
        self.names, others = names, [*names[: self.node], *names[self.node + 1 :]]
        self.others_text = others[0] if len(others) == 1 else f"one of {', '.join(others)}"

    def all_reduce_max(self, value: int, *, last: bool = False) -> int:
        """Return the maximum (int64) over the nodes; `last` waits longer, while rank 0 writes results."""

    def gather(self, parts: Iterable[tuple[int, bytes | bytearray]]) -> dict[int, bytes | bytearray]:
        """Return each world rank's bytes on node 0, an empty dictionary elsewhere."""

    def broadcast(self, payload: bytes | bytearray) -> bytes | bytearray:
        """Return node 0's bytes on every node."""

    def clock_offsets(self) -> tuple[int, ...]:
        """Return for each node the nanoseconds to add to its CLOCK_MONOTONIC to get node 0's."""

    def leave(self, message: str) -> None:
        """Send the other hosts the reason why this one is lost, where the launcher does not end them."""


class LaunchedComm:
    """A `Comm` over all ranks of a launcher. The subclass for the launcher finds the ranks; the rest is here."""

    rank: int
    size: int
    timeout_seconds: float
    versions: tuple[str, ...]
    _tree: LocalTree
    launcher_ends_all = True
    """Whether the launcher kills every rank when one fails; if not, each host ends when another reports the failure."""

    def __init__(self, rank: int, size: int, timeout_seconds: float) -> None:
        """Make a rank that is not yet connected: the subclass calls `_join_host` and `_join_hosts` next."""
        self.rank, self.size, self.timeout_seconds = rank, size, timeout_seconds
        self._offset_ns = 0
        self._started_here = True
        self._leaders: HostLeaders | None = None
        self._members: Sequence[int] = ()

    @property
    def other_hosts(self) -> str:
        """How messages name the other hosts; empty on a single host, and on ranks that are not their host's leader."""
        return "" if self._leaders is None else self._leaders.others_text

    def all_reduce_max(self, value_ns: int, *, forever: bool = False) -> int:
        """`forever` waits without a deadline for ranks of this host that are alive."""
        highest_ns = self._tree.reduce_max(value_ns, forever=forever)
        if self._leaders is not None:
            with self._tree.collective():
                highest_node_0_ns = self._leaders.all_reduce_max(highest_ns + self._offset_ns, last=forever)
                highest_ns = highest_node_0_ns - self._offset_ns
        return self._tree.broadcast_number(highest_ns, forever=forever)

    def synchronise_clocks(self) -> tuple[int, ...]:
        if len(self.hosts) == 1:
            return (0,)
        # A barrier on this node first: its other ranks then sleep while the leaders compare clocks.
        self._tree.broadcast_number(self._tree.reduce_max(0))
        offsets: tuple[int, ...] = ()
        if self._leaders is not None:
            with self._tree.collective():
                offsets = self._leaders.clock_offsets()
        offsets = pickle.loads(self._tree.broadcast(dump(offsets)))
        self._offset_ns = offsets[self.node]
        return offsets

    def gather(self, value: Any) -> list[Any] | None:
        parts = self._tree.gather(b"" if self.rank == 0 else dump(value))
        if parts is None:
            return None
        payloads = dict(zip(self._members, parts, strict=True))
        if self._leaders is not None:
            with self._tree.collective():
                payloads = self._leaders.gather(payloads.items())
        if self.rank != 0:
            return None
        return [value, *(pickle.loads(payloads[rank]) for rank in range(1, self.size))]

    def broadcast(self, value: Any) -> Any:
        payload: bytes | bytearray = dump(value) if self.rank == 0 and self.size > 1 else b""
        if self._leaders is not None:
            with self._tree.collective():
                payload = self._leaders.broadcast(payload)
        payload = self._tree.broadcast(payload)
        return value if self.rank == 0 else pickle.loads(payload)

    def broadcast_to_leaders(self, value: Any) -> Any:
        """Return rank 0's value on the first rank of each node; collective over these."""
        if self._leaders is None:
            return value
        with self._tree.collective():
            payload = self._leaders.broadcast(dump(value) if self.rank == 0 else b"")
        return value if self.rank == 0 else pickle.loads(payload)

    def gather_host(self, value: Any) -> list[Any] | None:
        """Return the values of this node's ranks, in rank order, on the first of them; None elsewhere."""
        parts = self._tree.gather(dump(value))
        return None if parts is None else [pickle.loads(part) for part in parts]

    def member(self, local_rank: int, token: str) -> LaunchedComm:
        """Return a communicator with which this process, or a fork of it, acts as rank `local_rank` of this node.

        Collective over these processes; raises PeerLostError.
        """
        member = copy.copy(self)
        member.rank, member.local_rank = self._members[local_rank], local_rank
        member._started_here = False
        member._tree = connect_tree(token, local_rank, self.local_size, self.timeout_seconds, self._members)
        after_fork_in_child(member._forget)
        return member

    def world_rank(self, local_rank: int) -> int:
        return self._members[local_rank]

    def name(self, local_rank: int) -> str:
        return f"rank {self.world_rank(local_rank)}"

    def token(self, purpose: str) -> str:
        """Return a secret that this node's ranks share, a different one for each purpose."""
        return f"{self._token}.{purpose}"

    def set_timeout(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._tree.set_timeout(timeout_seconds)
        if self._leaders is not None:
            self._leaders.timeout_seconds = timeout_seconds

    def close(self) -> None:
        if self._tree.broken is None:
            self.all_reduce_max(0, forever=True)  # the last call: rank 0 may still write results
            self._tree.close()
            if self._started_here:
                self._finish()
        self._tree.close()

    def abort(self, status: int, message: str = "") -> None:
        """End all ranks, after this rank's output; the other hosts get this rank's message. May not return."""
        flush_output()
        self.leave(status, message)
        self._end_all(status)

    def leave(self, status: int, message: str = "") -> None:
        """Notify the other ranks that this one failed, and close its connections."""
        cause = self._tree.broken or f"rank {self.rank} failed: {message}" * bool(message)
        self._tree.announce_loss(f"rank {self.rank} failed with exit status {status}")
        if self._leaders is not None:
            self._leaders.leave(cause or f"rank {self.rank} failed with exit status {status}")
        self._tree.close()

    def _join_host(self, token: str, members: Sequence[int]) -> None:
        """Connect to the ranks of this host; `members` are all their world ranks, rising, and `token` their secret."""
        self.local_rank, self.local_size = members.index(self.rank), len(members)
        self._token, self._members = token, members
        self._tree = connect_tree(token, self.local_rank, self.local_size, self.timeout_seconds, members)
        after_fork_in_child(self._forget)

    def _join_hosts(self) -> None:
        """Exchange host names and compare clocks; the last step of a start."""
        self.node, self.hosts, self.versions = self._name_hosts()
        self.synchronise_clocks()

    def _finish(self) -> None:
        """Close what connects this rank to the launcher or to other hosts, after the last collective call."""

    def _end_all(self, status: int) -> None:
        """Have the launcher end all ranks, where it has a call for that."""

    def _name_hosts(self) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
        node, hosts = 0, [(socket.gethostname(), self._members, __version__)]
        if self._leaders is not None:
            with self._tree.collective():
                node = self._leaders.node
                parts = self._leaders.gather([(node, dump(hosts[0]))])
                hosts = pickle.loads(self._leaders.broadcast(dump([pickle.loads(parts[key]) for key in sorted(parts)])))
                self._leaders.name_nodes([f"host {name} ({name_ranks(members)})" for name, members, _ in hosts])
        names, _, versions = zip(*hosts, strict=True)
        own: tuple[int, tuple[str, ...], tuple[str, ...]] = pickle.loads(
            self._tree.broadcast(dump((node, names, versions)))
        )
        return own

    def _forget(self) -> None:
        """In a forked child: only the parent may talk to the launcher and to other hosts."""
        self._leaders = None

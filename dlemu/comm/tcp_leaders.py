"""Communication between hosts without MPI: one rank of each host, its leader, joins a tree over TCP.

The calls, deadlines and notices are those of the tree of one host (`dlemu.comm.tree`), so a lost host is noticed
and named the same way. Ports are open to whoever reaches this host: a caller is accepted as a leader only after it
answers a challenge with the run's secret, and each payload carries a code that proves which call and rank it belongs to
(`dlemu.comm.seal`), since receivers unpickle it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import pickle
import secrets
import socket
import struct
import time
from array import array
from collections.abc import Callable, Iterable, Sequence

from dlemu.comm.local import Rendezvous, connect_neighbours, dump
from dlemu.comm.process_control import after_fork_in_child
from dlemu.comm.seal import CODE_NUMBERS, TO_ALL, Seal
from dlemu.comm.tree import Frame, Link, LocalTree

_CHALLENGE_BYTES = 32  # 256 random bits: none is drawn twice, so no answer can be replayed
_HELLO = struct.Struct("<32sqq")  # answer to the challenge, node, number of nodes
_STRANGER_SECONDS = 10.0  # far more than a round trip takes: a caller that has not identified itself by then is dropped
_PINGS = 40  # the quickest of them met no queue: half of its round trip bounds the offset's error
_QUEUE = 4096  # the kernel's own limit (net.core.somaxconn), as between the ranks of a host
# A host that is switched off or cut off closes no connection: the kernel sends a keep-alive probe after 30 s of
# silence, then every 10 s, and drops the connection after six without an answer. Within a call the deadline is sooner.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 6))


def listen() -> socket.socket:
    """Return a nonblocking socket that listens on a free port of all of this host's addresses."""
    if socket.has_dualstack_ipv6():
        listener = socket.create_server(("", 0), family=socket.AF_INET6, backlog=_QUEUE, dualstack_ipv6=True)
    else:
        listener = socket.create_server(("", 0), backlog=_QUEUE)
    listener.setblocking(False)
    return listener


class TcpLeaders:
    """The hosts' leaders, in the order of their world ranks. Calls are collective over them.

    Raises `PeerLostError` when another leader ends, or does not arrive or moves no data within `timeout_seconds`.
    """

    def __init__(
        self,
        listening: socket.socket,
        places: Sequence[Sequence[tuple[str, int]]],
        node: int,
        names: Sequence[str],
        secret: bytes,
        timeout_seconds: float,
    ) -> None:
        """Connect to the other leaders; `places` are the addresses (host, port) to try for each."""
        self.node, self._timeout_seconds = node, timeout_seconds
        self._seal = Seal(secret, "TCP")
        self._tree = LocalTree(node, len(places), names)
        self.name_nodes(names)
        after_fork_in_child(self._tree.close)
        meeting = _Meeting(listening, places, secret, node, timeout_seconds, self._tree.name)
        try:
            with self._tree.collective():
                connect_neighbours(self._tree, meeting, node, len(places), timeout_seconds)
        except BaseException:
            self._tree.close()
            raise
        finally:
            meeting.close()

    @property
    def timeout_seconds(self) -> float:
        return self._timeout_seconds

    @timeout_seconds.setter
    def timeout_seconds(self, seconds: float) -> None:
        self._timeout_seconds = seconds
        self._tree.set_timeout(seconds)

    def name_nodes(self, names: Sequence[str]) -> None:
        self.names, others = names, [*names[: self.node], *names[self.node + 1 :]]
        self.others_text = others[0] if len(others) == 1 else f"one of {', '.join(others)}"

    def all_reduce_max(self, value: int, *, last: bool = False) -> int:
        """`last` marks the run's final call: it has no deadline for hosts that are alive."""
        return self._tree.broadcast_number(self._tree.reduce_max(value, forever=last), forever=last)

    def gather(self, parts: Iterable[tuple[int, bytes | bytearray]]) -> dict[int, bytes | bytearray]:
        own = dict(parts)
        self._seal.next_call()
        payloads = self._tree.gather(b"" if self.node == 0 else self._sealed(self.node, dump(own)))
        if payloads is None:
            return {}
        gathered = own
        for node, payload in enumerate(payloads[1:], start=1):
            gathered |= pickle.loads(self._opened(node, payload, self.names[node]))
        return gathered

    def broadcast(self, payload: bytes | bytearray) -> bytes | bytearray:
        self._seal.next_call()
        sealed = self._tree.broadcast(self._sealed(TO_ALL, payload) if self.node == 0 else b"")
        return payload if self.node == 0 else bytes(self._opened(TO_ALL, sealed, self.names[0]))

    def clock_offsets(self) -> tuple[int, ...]:
        """Each leader compares its clock with its children's in the tree; the differences add up along a branch.

        Of several pings the fastest counts: its answer is taken to be stamped half way through the round trip, which is
        wrong by half of it at most.
        """
        with self._tree.collective():
            if self._tree.parent is not None:
                for _ in range(_PINGS):
                    self._tree.parent.receive(Frame.MAXIMUM)
                    self._tree.parent.send(Frame.MAXIMUM, time.monotonic_ns())
            below_ns = {node: _ping(link) for node, link in self._tree.children.items()}
        parts = self.gather([(self.node, dump(below_ns))])
        offsets_ns = {0: 0}
        for node in sorted(parts):  # a leader's number is higher than its parent's
            for child, offset_ns in pickle.loads(parts[node]).items():
                offsets_ns[child] = offsets_ns[node] + offset_ns
        agreed: tuple[int, ...] = pickle.loads(
            self.broadcast(dump(tuple(offsets_ns[node] for node in sorted(offsets_ns))))
        )
        return agreed

    def leave(self, message: str) -> None:
        """Tell the other hosts why this one is lost, and hang up."""
        self._tree.announce_loss(message)
        self._tree.close()

    def close(self) -> None:
        """Hang up after the last call."""
        self._tree.close()

    def _sealed(self, place: int, payload: bytes | bytearray) -> bytes:
        return self._seal.code(place, payload).tobytes() + payload

    def _opened(self, place: int, sealed: bytes | bytearray, sender: str) -> memoryview:
        code, payload = sealed[: 8 * CODE_NUMBERS], memoryview(sealed)[8 * CODE_NUMBERS :]
        self._seal.check(place, bytes(payload), array("q", bytes(code).ljust(8 * CODE_NUMBERS)), sender)
        return payload


def _ping(link: Link) -> int:
    best_ns, offset_ns = 1 << 62, 0
    for _ in range(_PINGS):
        sent_ns = time.monotonic_ns()
        link.send(Frame.MAXIMUM, 0)
        stamp_ns = link.receive(Frame.MAXIMUM)
        round_trip_ns = time.monotonic_ns() - sent_ns
        if round_trip_ns < best_ns:
            best_ns, offset_ns = round_trip_ns, sent_ns + round_trip_ns // 2 - stamp_ns
    return offset_ns


class _Meeting(Rendezvous):
    """A rendezvous over TCP: the callee first sends random bytes, and the caller answers with their keyed hash. That
    proves that the caller knows the secret, and does not reveal the secret to a stranger at the called address."""

    _whose_callers = "this host's ports"
    _stranger_seconds = _STRANGER_SECONDS

    def __init__(
        self,
        listening: socket.socket,
        places: Sequence[Sequence[tuple[str, int]]],
        secret: bytes,
        node: int,
        timeout_seconds: float,
        name: Callable[[int], str],
    ) -> None:
        self._listening, self._places, self._secret, self._node = listening, places, secret, node
        self._challenges: dict[socket.socket, bytes] = {}
        super().__init__(secret.hex(), node, len(places), timeout_seconds, name)

    def _listen(self, rank: int) -> socket.socket:
        return self._listening

    def _try_to_call(self, rank: int, seconds: float) -> socket.socket | None:
        for place in self._places[rank]:
            with contextlib.suppress(OSError):
                stream = socket.create_connection(place, min(seconds, _STRANGER_SECONDS))
                try:
                    challenge = stream.recv(_CHALLENGE_BYTES, socket.MSG_WAITALL)
                    if len(challenge) == _CHALLENGE_BYTES:
                        stream.sendall(_HELLO.pack(self._answer(challenge, self._node), self._node, self._size))
                        _prepare(stream)
                        return stream
                except BaseException:
                    stream.close()
                    raise
                stream.close()
        return None

    def _may_speak(self, stream: socket.socket) -> bool:
        """Challenge a caller, whoever it is."""
        challenge = secrets.token_bytes(_CHALLENGE_BYTES)
        with contextlib.suppress(OSError):
            _prepare(stream)
            if stream.send(challenge, socket.MSG_DONTWAIT) == _CHALLENGE_BYTES:
                self._challenges[stream] = challenge
                return True
        return False

    def _identify(self, stream: socket.socket) -> int:
        challenge = self._challenges.pop(stream)
        try:
            hello = stream.recv(_HELLO.size, socket.MSG_DONTWAIT)  # it was sent in one call, so it arrives whole
        except OSError:
            return -1
        answer, node, size = _HELLO.unpack(hello) if len(hello) == _HELLO.size else (b"", -1, -1)
        ours = size == self._size and hmac.compare_digest(answer, self._answer(challenge, node))
        return int(node) if ours else -1

    def _turn_away(self, stream: socket.socket) -> None:
        self._challenges.pop(stream, None)
        super()._turn_away(stream)

    def _answer(self, challenge: bytes, node: int) -> bytes:
        return hashlib.blake2b(challenge + struct.pack("<q", node), key=self._secret, digest_size=32).digest()


def _prepare(stream: socket.socket) -> None:
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a step's barrier is one small message each way
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        stream.setsockopt(socket.IPPROTO_TCP, option, value)

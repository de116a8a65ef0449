"""Ranks that were started by torchrun, or by whatever sets its variables: the only interface to torch.distributed.

Each process has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The ranks of a host find
each other over Unix sockets. On several hosts the first rank of each, its leader, imports torch and exchanges addresses
and the run's secret with the other leaders through a TCPStore, which torchrun's agent serves, or else rank 0. From then
on the store is not used: the leaders join a tree over TCP, with the calls, deadlines and notices of a host's tree
(`dlemu.comm.tree`), so a lost host is noticed and named the same way. Ports are open to whoever reaches this host: a
caller is accepted as a leader only after it answers a challenge with the run's secret.

Anyone who reaches a store can read and write it. So the secret is removed from it once all leaders have it; and where
`DLEMU_SECRET` is set on all hosts, the store's secret is useless without that one.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import json
import os
import pickle
import secrets
import socket
import struct
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datagen.errors import DlemuError, UserError
from dlemu.comm.comm_base import PeerLostError, name_ranks
from dlemu.comm.launched_comm import CODE_NUMBERS, TO_ALL, HostLeaders, LaunchedComm, Seal
from dlemu.comm.local import Rendezvous, connect_neighbours, dump
from dlemu.comm.process_control import PatienceError, after_fork_in_child, within
from dlemu.comm.tree import Frame, Link, LocalTree

_CHALLENGE_BYTES = 32  # 256 random bits: none is drawn twice, so no answer can be replayed
_HELLO = struct.Struct("<32sqq")  # answer to the challenge, node, number of nodes
_STRANGER_SECONDS = 10.0  # far more than a round trip takes: a caller that has not identified itself by then is dropped
_PINGS = 40  # the quickest of them met no queue: half of its round trip bounds the offset's error
_QUEUE = 4096  # the kernel's own limit (net.core.somaxconn), as between the ranks of a host
# A host that is switched off or cut off closes no connection: the kernel sends a keep-alive probe after 30 s of
# silence, then every 10 s, and drops the connection after six without an answer. Within a call the deadline is sooner.
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 6))
_SECRET_BYTES = 32  # 256 bits, like the digest that is derived from it
_POLL_SECONDS = 0.02  # 50 requests/s per host to rank 0's store while ranks still start


def listen() -> socket.socket:
    """Return a nonblocking socket that listens on a free port of all of this host's addresses."""
    if socket.has_dualstack_ipv6():
        listener = socket.create_server(("", 0), family=socket.AF_INET6, backlog=_QUEUE, dualstack_ipv6=True)
    else:
        listener = socket.create_server(("", 0), backlog=_QUEUE)
    listener.setblocking(False)
    return listener


class TcpLeaders(HostLeaders):
    """The hosts' leaders, in the order of their world ranks; calls raise `PeerLostError` after `timeout_seconds`."""

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

        Of several pings the fastest counts, its answer taken to be stamped half way through the round trip.
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
        self._tree.announce_loss(message)
        self._tree.close()

    def close(self) -> None:
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


@dataclass(frozen=True)
class Place:
    """This process's rank and addresses, by the launcher's variables."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    agent_keeps_store: bool
    start: str
    """Identifies one start of the launcher's processes: torchrun's run id and restart count."""

    @property
    def first(self) -> int:
        return self.rank - self.local_rank

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Place:
        """Read torchrun's variables. Raises UserError where they are not numbers or contradict each other."""
        try:
            rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            local_rank = int(environment.get("LOCAL_RANK", "0"))
            local_size = int(environment.get("LOCAL_WORLD_SIZE") or _local_size(environment, local_rank))
            port = int(environment["MASTER_PORT"])
        except ValueError as error:
            raise UserError(f"the launcher's variables are not numbers ({error}): {_given(environment)}") from error
        if not 0 <= local_rank < local_size <= size or not local_rank <= rank <= size - local_size + local_rank:
            raise UserError(
                f"the launcher's variables contradict each other: {_given(environment)}; wanted RANK below WORLD_SIZE, "
                "LOCAL_RANK below LOCAL_WORLD_SIZE, and the ranks of a host one after the other"
            )
        start = ".".join(environment.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT"))
        keeps = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return cls(rank, size, local_rank, local_size, environment["MASTER_ADDR"], port, keeps, start)


def _local_size(environment: Mapping[str, str], local_rank: int) -> int:
    """Return this host's number of ranks without LOCAL_WORLD_SIZE: srun's, or else 1 if LOCAL_RANK isn't set either."""
    counts = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    if counts and len(set(counts.split(","))) == 1:  # "18(x2)", "18"
        return int(counts.partition("(")[0])
    if "LOCAL_RANK" in environment:
        raise UserError(
            f"LOCAL_RANK={local_rank} is set, and LOCAL_WORLD_SIZE is not: export the number of processes on this host "
            "as LOCAL_WORLD_SIZE (torchrun does)"
        )
    return 1


def _given(environment: Mapping[str, str]) -> str:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    return ", ".join(f"{name}={environment[name]}" for name in names if name in environment)


class StoreComm(LaunchedComm):
    """A `Comm` over the ranks of torchrun."""

    launcher_ends_all = False
    """torchrun ends the processes of its own host, by SIGTERM, and half a minute later by SIGKILL."""

    def __init__(self, timeout_seconds: float, environment: Mapping[str, str] = os.environ) -> None:
        """Find the other ranks; raises PeerLostError, and UserError for several hosts without torch."""
        place = Place.of(environment)
        super().__init__(place.rank, place.size, timeout_seconds)
        members = range(place.first, place.first + place.local_size)
        self._join_host(_host_secret(place, timeout_seconds, lambda rank: f"rank {members[rank]}"), members)
        if place.local_rank == 0 and place.local_size < place.size:
            with self._tree.collective():
                self._leaders = _meet(place, timeout_seconds, environment.get("DLEMU_SECRET", ""))
        self._join_hosts()

    def _finish(self) -> None:
        if isinstance(self._leaders, TcpLeaders):
            self._leaders.close()


def _host_secret(place: Place, timeout_seconds: float, name: Callable[[int], str]) -> str:
    """Return the secret that this host's ranks share: the first draws it and sends it to those of the same user."""
    if place.local_size == 1:
        return secrets.token_hex(_SECRET_BYTES)
    public = f"{place.address} {place.port} {place.start} {place.first} {place.size}"
    rendezvous = Rendezvous(public, place.local_rank, place.local_size, timeout_seconds, name)
    with contextlib.closing(rendezvous):
        if place.local_rank > 0:
            with rendezvous.call(0) as first:
                first.settimeout(timeout_seconds)
                with contextlib.suppress(OSError):
                    if received := first.recv(2 * _SECRET_BYTES, socket.MSG_WAITALL):
                        return received.decode()
            raise PeerLostError(f"{name(0)} ended without a message, or not all ranks of this host arrived")
        streams = {}
        missing = set(range(1, place.local_size))
        with contextlib.ExitStack() as callers:
            while missing:
                local_rank, stream = rendezvous.accept(missing)
                streams[local_rank] = callers.enter_context(stream)
                missing.remove(local_rank)
            secret = secrets.token_hex(_SECRET_BYTES)
            for stream in streams.values():
                stream.sendall(secret.encode())
    return secret


def _meet(place: Place, timeout_seconds: float, given_secret: str) -> TcpLeaders:
    deadline_seconds = time.monotonic() + timeout_seconds
    listening = listen()
    try:
        store = _Store(place, deadline_seconds, timeout_seconds)
        store.write(f"leader/{place.first}", _about(place, listening))
        if place.rank == 0:
            store.write("secret", secrets.token_hex(_SECRET_BYTES))
        hosts = store.read_hosts(place)
        drawn = bytes.fromhex(str(store.read("secret", "rank 0")))
    except BaseException:
        listening.close()
        raise
    key = hashlib.sha256(given_secret.encode()).digest() if given_secret else b""
    secret = hashlib.blake2b(drawn, key=key, digest_size=_SECRET_BYTES).digest()
    firsts = [first for first, _ in hosts]
    names = [f"host {host['name']} ({name_ranks(range(first, first + host['ranks']))})" for first, host in hosts]
    places = [[(str(address), int(host["port"])) for address in host["addresses"]] for _, host in hosts]
    leaders = TcpLeaders(listening, places, firsts.index(place.first), names, secret, timeout_seconds)
    leaders.all_reduce_max(0)
    if place.rank == 0:  # all have read the entries: a restart by the launcher then begins with an empty store
        store.clear([f"leader/{first}" for first in firsts])
    leaders.all_reduce_max(0)  # rank 0 may serve the store: nobody leaves before it is cleared
    return leaders


def _about(place: Place, listening: socket.socket) -> dict[str, object]:
    with open("/proc/sys/kernel/random/boot_id") as boot:
        machine = boot.read().strip()
    addresses = [place.address] * (place.rank == 0) + [_own_address(place), socket.gethostname()]
    return {
        "name": socket.gethostname(),
        "ranks": place.local_size,
        "addresses": list(dict.fromkeys(addresses)),
        "port": listening.getsockname()[1],
        # Containers of one machine count as hosts: each has a network of its own.
        "machine": f"{machine} {os.readlink('/proc/self/ns/net')}",
    }


def _own_address(place: Place) -> str:
    for family, kind, protocol, _, address in socket.getaddrinfo(place.address, place.port, type=socket.SOCK_DGRAM):
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as stream:
            stream.connect(address)
            return str(stream.getsockname()[0])
    return socket.gethostname()


class _Store:
    """torch's TCPStore, with deadlines that a signal may interrupt."""

    def __init__(self, place: Place, deadline_seconds: float, timeout_seconds: float) -> None:
        self._deadline_seconds, self._timeout_seconds = deadline_seconds, timeout_seconds
        self._prefix = f"dlemu/{place.start}/"
        make = _load_torch()
        where = f"the store at {place.address}:{place.port} (MASTER_ADDR, MASTER_PORT)"
        limit = datetime.timedelta(seconds=timeout_seconds)

        def connect() -> Any:
            keeps = place.rank == 0 and not place.agent_keeps_store
            return make(place.address, place.port, is_master=keeps, timeout=limit, wait_for_workers=False)

        try:
            self._store = within(timeout_seconds + 1.0, connect, where)  # torch's own timeout comes first: it says why
        except (PatienceError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise PeerLostError(f"{where} was not reached within {timeout_seconds:g} s: {reason}") from error

    def write(self, key: str, value: object) -> None:
        self._store.set(self._prefix + key, json.dumps(value))

    def read(self, key: str, who: str) -> Any:
        """Wait until `who` has written the key; return its value, unchecked: anybody may have written it."""
        while not self._store.check([self._prefix + key]):
            if time.monotonic() > self._deadline_seconds:
                raise PeerLostError(f"{who} did not arrive within {self._timeout_seconds:g} s")
            time.sleep(_POLL_SECONDS)
        try:
            return json.loads(self._store.get(self._prefix + key))
        except ValueError as error:
            raise DlemuError(f"the store's entry for {who} is not from this run") from error

    def read_hosts(self, place: Place) -> list[tuple[int, dict[str, Any]]]:
        """Return each host's first rank, and what its leader wrote about the host."""
        hosts: list[tuple[int, dict[str, Any]]] = []
        first, machines = 0, dict[str, int]()
        while first < place.size:
            host = self.read(f"leader/{first}", f"rank {first}, the first of its host,")
            try:
                ranks, machine = int(host["ranks"]), str(host["machine"])
                if not 0 < ranks <= place.size - first:
                    raise ValueError(ranks)
            except (KeyError, TypeError, ValueError) as error:
                raise DlemuError(f"the store's entry for rank {first} is not from this run") from error
            if machine in machines:
                raise UserError(
                    f"ranks {machines[machine]} and {first} are on one host, and both are marked as its "
                    "first: export LOCAL_RANK and LOCAL_WORLD_SIZE, as torchrun does"
                )
            machines[machine] = first
            hosts.append((first, host))
            first += ranks
        return hosts

    def clear(self, keys: list[str]) -> None:
        for key in ("secret", *keys):
            self._store.delete_key(self._prefix + key)


def _load_torch() -> Any:
    try:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # its __init__ takes it from C++
    except (ImportError, RuntimeError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            "this process was started by torchrun (RANK, WORLD_SIZE, MASTER_ADDR), and on several hosts that needs "
            f'torch, which cannot be imported ({reason}): `pip install "dlemu[torch]"`, or start the ranks by '
            "`mpirun -np N dlemu ...`, or on one host by `dlemu ... ranks=N`"
        ) from error
    return TCPStore

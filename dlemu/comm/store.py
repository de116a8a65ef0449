"""Ranks that were started by torchrun, or by whatever sets its variables: the only interface to torch.distributed.

Each process has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The ranks of a host find
each other over Unix sockets. On several hosts the first rank of each, its leader, imports torch and exchanges addresses
and the run's secret with the other leaders through a TCPStore, which torchrun's agent serves, or else rank 0. From then
on the store is not used: hosts talk over TCP connections of their own (`dlemu.comm.tcp_leaders`).

Anyone who reaches a store can read and write it. So the secret is removed from it once all leaders have it; and where
`DLEMU_SECRET` is set on all hosts, the store's secret is useless without that one.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from datagen.errors import DlemuError, UserError
from dlemu.comm.comm_base import PeerLostError, name_ranks
from dlemu.comm.launched_comm import LaunchedComm
from dlemu.comm.local import Rendezvous
from dlemu.comm.patience import PatienceError, within
from dlemu.comm.tcp_leaders import TcpLeaders, listen

_SECRET_BYTES = 32  # 256 bits, like the digest that is derived from it
_POLL_SECONDS = 0.02  # 50 requests/s per host to rank 0's store while ranks still start


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
        """The first rank of this host."""
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
        """Find the other ranks; raises PeerLostError when one does not arrive.

        Raises UserError where there are several hosts and torch can't be imported.
        """
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
    """Find the other hosts' leaders; collective over them."""
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
    secret = hashlib.blake2b(drawn, key=_as_key(given_secret), digest_size=_SECRET_BYTES).digest()
    firsts = [first for first, _ in hosts]
    names = [f"host {host['name']} ({name_ranks(range(first, first + host['ranks']))})" for first, host in hosts]
    places = [[(str(address), int(host["port"])) for address in host["addresses"]] for _, host in hosts]
    leaders = TcpLeaders(listening, places, firsts.index(place.first), names, secret, timeout_seconds)
    leaders.all_reduce_max(0)
    if place.rank == 0:  # all have read the entries: a restart by the launcher then begins with an empty store
        store.clear([f"leader/{first}" for first in firsts])
    leaders.all_reduce_max(0)  # rank 0 may serve the store: nobody leaves before it is cleared
    return leaders


def _as_key(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest() if secret else b""


def _about(place: Place, listening: socket.socket) -> dict[str, object]:
    """Return what the other hosts need to know about this one: its name, ranks, addresses and port."""
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
    """Return the address of this host that faces the one of rank 0; no packet is sent."""
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
    """Return torch's TCPStore. Raises UserError, with what to do, where torch can't be imported."""
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

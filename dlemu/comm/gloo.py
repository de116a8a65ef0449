"""The leaders of several hosts, joined by torch.distributed: the only interface to it.

They find each other through a TCPStore, which torchrun's agent serves, or else rank 0, and talk by gloo. Anyone who
reaches a store can read and write it. So the run's secret is removed from it once all leaders have it; and where
`DLEMU_SECRET` is set on all hosts, the store's secret is useless without that one.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch
import torch.distributed as distributed
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # from C++

from datagen.errors import DlemuError
from dlemu.comm.comm_base import PeerLostError
from dlemu.comm.failure import Failure
from dlemu.comm.leaders import Bytes, Leaders, Numbers
from dlemu.comm.process_control import PatienceError, within

_SECRET_BYTES = 32  # 256 bits, like the digest that is derived from it
_POLL_SECONDS = 0.02  # 50 requests/s per host to rank 0's store while ranks still start
_LOOK_SECONDS = 0.3  # between two looks whether another host has failed
_STORE_SECONDS = 5.0  # for one answer of the store: milliseconds, unless it is cut off
_FOREVER = datetime.timedelta(days=365)  # gloo's own time limit: ours come first


@dataclass(frozen=True)
class StorePlace:
    """The store at which the hosts find each other."""

    address: str
    port: int
    prefix: str
    """Of the keys of one start of the launcher's processes."""
    is_kept_here: bool
    """Whether this process serves the store."""
    secret: str
    """Text that the user has set on all hosts; empty without one."""


def meet(place: StorePlace, led: Sequence[int], size: int, timeout_seconds: float) -> GlooLeaders:
    """Find the other leaders of `size` ranks, and tell them which this one leads. Raises PeerLostError, DlemuError."""
    deadline_seconds = time.monotonic() + timeout_seconds
    store = _open_store(place, timeout_seconds)

    def read(key: str, who: str) -> str:
        while not store.check([key]):
            if time.monotonic() > deadline_seconds:
                raise PeerLostError(f"{who} did not arrive within {timeout_seconds:g} s")
            time.sleep(_POLL_SECONDS)
        return str(store.get(key).decode())

    if led[0] == 0:
        store.set("secret", secrets.token_hex(_SECRET_BYTES))
    store.set(f"led/{led[0]}", str(len(led)))
    firsts = [0]
    while firsts[-1] < size:
        ranks = read(f"led/{firsts[-1]}", f"rank {firsts[-1]}, the first of its host,")
        if not ranks.isdecimal() or not 0 < int(ranks) <= size - firsts[-1]:
            raise DlemuError(f"the store's entry for rank {firsts[-1]} is not from this run")
        firsts.append(firsts[-1] + int(ranks))
    node, nodes = firsts.index(led[0]), len(firsts) - 1
    key = hashlib.sha256(place.secret.encode()).digest() if place.secret else b""
    drawn = read("secret", "rank 0").encode()
    secret = hashlib.blake2b(drawn, key=key, digest_size=_SECRET_BYTES).digest()
    if interface := _interface(place):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    leaders = GlooLeaders(store, hashlib.sha256(drawn).hexdigest(), node, nodes, secret, timeout_seconds)
    leaders.barrier()
    if node == 0:  # all have read it: the next command of the same start of torchrun finds nothing
        for name in ("secret", *(f"led/{first}" for first in firsts[:-1])):
            store.delete_key(name)
    leaders.barrier()
    return leaders


def _open_store(place: StorePlace, timeout_seconds: float) -> Any:
    """Return torch's TCPStore, below a prefix of this start."""
    limit = datetime.timedelta(seconds=timeout_seconds)
    try:
        store = TCPStore(place.address, place.port, None, place.is_kept_here, limit, wait_for_workers=False)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise PeerLostError(
            f"the store at {place.address}:{place.port} (MASTER_ADDR, MASTER_PORT) was not reached within "
            f"{timeout_seconds:g} s: {reason}"
        ) from error
    return PrefixStore(place.prefix, store)


def _interface(place: StorePlace) -> str:
    """Return the network interface by which this host reaches the others."""
    family, kind, protocol, _, there = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as stream:
        stream.connect(there)
        own = stream.getsockname()[0]
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, found in interfaces if any(one.address == own for one in found)), "")


class GlooLeaders(Leaders):
    """The leaders as a process group of torch.distributed."""

    def __init__(self, store: Any, name: str, node: int, nodes: int, secret: bytes, timeout_seconds: float) -> None:
        """`name` is a prefix in the store that no other run has."""
        super().__init__(node, nodes, secret, timeout_seconds)
        self._store = PrefixStore(name, store)
        self._failure = ""
        distributed.init_process_group("gloo", store=self._store, rank=node, world_size=nodes, timeout=_FOREVER)
        threading.Thread(target=self._watch_store, name="dlemu-failures", daemon=True).start()

    def leave(self, failure: Failure) -> None:
        with contextlib.suppress(PatienceError, RuntimeError):  # rank 0, which kept the store, is lost
            within(_STORE_SECONDS, lambda: self._store.set("failure", failure.to_json()), "telling the other hosts")

    def _watch_store(self) -> None:
        """Read why another host has failed: in a thread, as a store that is cut off blocks."""
        with contextlib.suppress(RuntimeError):
            while not self._store.check(["failure"]):
                time.sleep(_LOOK_SECONDS)
            self._failure = self._store.get("failure").decode()

    def _read_failure(self) -> str:
        return self._failure

    def _reduce(self, numbers: Numbers, more_seconds: float) -> None:
        tensor, highest = torch.from_numpy(numbers), distributed.ReduceOp.MAX
        self._complete(lambda: distributed.all_reduce(tensor, highest, async_op=True), tensor, more_seconds)

    def _spread(self, data: Bytes) -> None:
        tensor = torch.from_numpy(data)
        self._complete(lambda: distributed.broadcast(tensor, 0, async_op=True), tensor)

    def _collect(self, data: Bytes) -> Sequence[Bytes]:
        tensor = torch.from_numpy(data)
        received = [torch.empty_like(tensor) for _ in range(self.nodes)] if self.node == 0 else None
        self._complete(lambda: distributed.gather(tensor, received, 0, async_op=True), (tensor, received))
        return [one.numpy() for one in received or ()]

    def _ping_all(self, offsets_ns: Numbers) -> None:
        try:
            within(self.timeout_seconds, lambda: self.ping_all(offsets_ns), "comparing clocks with the other hosts")
        except (PatienceError, RuntimeError) as error:
            raise PeerLostError(f"{self.others} was lost while clocks were compared: {error}") from error

    def _send(self, node: int, number: Numbers) -> None:
        distributed.send(torch.from_numpy(number), node)

    def _receive(self, node: int, number: Numbers) -> None:
        distributed.recv(torch.from_numpy(number), node)

    def _complete(self, begin: Callable[[], Any], buffers: object, more_seconds: float = 0.0) -> None:
        try:
            work = begin()
            self._wait(work.is_completed, (work, buffers), more_seconds=more_seconds)
            work.wait()
        except RuntimeError as error:
            for _ in range(4):  # a host that fails says so before it ends
                self.look_now()
                time.sleep(_LOOK_SECONDS)
            raise PeerLostError(f"{self.others} ended without a message") from error

"""The leaders of several hosts, joined by torch.distributed: the only interface to it.

They find each other through a TCPStore, which torchrun's agent serves, or else rank 0, and talk by gloo.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil
import torch
import torch.distributed as distributed
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # from C++

from datagen.errors import DlemuError
from dlemu.ranks.comm_base import PeerLostError
from dlemu.ranks.failure import Failure
from dlemu.ranks.leaders import Bytes, Leaders, Numbers, Test
from dlemu.ranks.process_control import PatienceError, within

_POLL_SECONDS = 0.02  # 50 requests/s per host to rank 0's store while ranks still start
_LOOK_SECONDS = 0.3  # between two looks whether another host has failed
_STORE_SECONDS = 5.0  # for one answer of the store: milliseconds, unless it is cut off
_FOREVER = datetime.timedelta(days=365)  # gloo's own time limit: ours come first


def meet(
    address: str, port: int, prefix: str, led: Sequence[int], size: int, timeout_seconds: float, *, is_kept_here: bool
) -> GlooLeaders:
    """Find the other leaders of `size` ranks, and tell them which this one leads. Raises PeerLostError, DlemuError.

    `address` and `port` are of the store at which the hosts find each other, by keys with a `prefix` of one start of
    the launcher's processes; `is_kept_here`: this process serves it.
    """
    deadline_seconds, limit = time.monotonic() + timeout_seconds, datetime.timedelta(seconds=timeout_seconds)
    try:
        shared = TCPStore(address, port, None, is_kept_here, limit, wait_for_workers=False)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise PeerLostError(
            f"the store at {address}:{port} (MASTER_ADDR, MASTER_PORT) was not reached within {timeout_seconds:g} s: "
            f"{reason}"
        ) from error
    store = PrefixStore(prefix, shared)

    def read(key: str, who: str) -> str:
        while not store.check([key]):
            if time.monotonic() > deadline_seconds:
                raise PeerLostError(f"{who} did not arrive within {timeout_seconds:g} s")
            time.sleep(_POLL_SECONDS)
        return str(store.get(key).decode())

    if led[0] == 0:
        store.set("run", secrets.token_hex(8))
    store.set(f"led/{led[0]}", str(len(led)))
    firsts = [0]
    while firsts[-1] < size:
        ranks = read(f"led/{firsts[-1]}", f"rank {firsts[-1]}, the first of its host,")
        if not ranks.isdecimal() or not 0 < int(ranks) <= size - firsts[-1]:
            raise DlemuError(f"the store's entry for rank {firsts[-1]} is not from this run")
        firsts.append(firsts[-1] + int(ranks))
    node, nodes = firsts.index(led[0]), len(firsts) - 1
    if interface := _interface(address, port):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    run_store = PrefixStore(read("run", "rank 0"), store)
    leaders = GlooLeaders(run_store, node, nodes, timeout_seconds)
    leaders.barrier()
    if node == 0:  # all have read it: the next command of the same start of torchrun finds nothing
        for name in ("run", *(f"led/{first}" for first in firsts[:-1])):
            store.delete_key(name)
    leaders.barrier()
    return leaders


def _interface(address: str, port: int) -> str:
    """Return the network interface by which this host reaches the others."""
    family, kind, protocol, _, there = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as stream:
        stream.connect(there)
        own = stream.getsockname()[0]
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, found in interfaces if any(one.address == own for one in found)), "")


class GlooLeaders(Leaders):
    """The leaders as a process group of torch.distributed."""

    errors = RuntimeError

    def __init__(self, store: Any, node: int, nodes: int, timeout_seconds: float) -> None:
        """`store` is below a prefix that no other run has."""
        super().__init__(node, nodes, timeout_seconds)
        self._store, self._failure = store, ""
        distributed.init_process_group("gloo", store=store, rank=node, world_size=nodes, timeout=_FOREVER)
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._watch_store, name="dlemu-failures", daemon=True)
        self._watch.start()

    def close(self) -> None:
        """End the thread: one that is in torch's code when the interpreter ends aborts the process."""
        self._closing.set()
        self._watch.join(_STORE_SECONDS)

    def leave(self, failure: Failure) -> None:
        with contextlib.suppress(PatienceError, RuntimeError):  # rank 0, which kept the store, is lost
            within(_STORE_SECONDS, lambda: self._store.set("failure", failure.to_json()), "telling the other hosts")

    def _watch_store(self) -> None:
        """Read why another host has failed: in a thread, as a store that is cut off blocks."""
        with contextlib.suppress(RuntimeError):
            while not self._closing.wait(_LOOK_SECONDS):
                if self._store.check(["failure"]):
                    self._failure = self._store.get("failure").decode()
                    return

    def _read_failure(self) -> str:
        return self._failure

    def _begin_maximum(self, numbers: Numbers, highest: Numbers) -> Test:
        highest[:] = numbers
        tensor, operation = torch.from_numpy(highest), distributed.ReduceOp.MAX
        return _test_of(distributed.all_reduce(tensor, operation, async_op=True), tensor)

    def _begin_broadcast(self, data: Bytes) -> Test:
        tensor = torch.from_numpy(data)
        return _test_of(distributed.broadcast(tensor, 0, async_op=True), tensor)

    def _begin_gather(self, data: Bytes, received: Bytes) -> Test:
        tensor, rows = torch.from_numpy(data), [torch.from_numpy(row) for row in received]
        return _test_of(distributed.gather(tensor, rows or None, 0, async_op=True), tensor, rows)


def _test_of(work: Any, *tensors: object) -> Test:
    """Return what tests a request, and raises what has ended it; the tensors live as long."""

    def is_done() -> bool:
        return bool(work.is_completed()) and bool((work.wait(), tensors))

    return is_done

"""Processes started by torchrun, or by another program that sets its variables: the only use of torch.distributed.

The leaders of several hosts find each other through a TCPStore (of torchrun's agent, or else of rank 0), and exchange
messages by gloo. Placeholders, and the processes of a single host, do not import torch.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import psutil

from datagen.errors import UserError
from dlemu.ranks.comm import PeerLostError
from dlemu.ranks.failure import Failure
from dlemu.ranks.launcher import Bytes, IsDone, LauncherProcess, Numbers
from dlemu.ranks.messages import encode
from dlemu.ranks.process_control import PatienceError, within

_POLL_SECONDS = 0.02  # 50 requests/s per host to the store while ranks start
_CHECK_SECONDS = 0.3  # interval of checks whether another host has failed
_STORE_SECONDS = 5.0  # timeout of an answer of the store, which takes milliseconds unless its host is cut off
_FOREVER = datetime.timedelta(days=365)  # gloo's own timeout, which must not expire before ours
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")


class TorchrunProcess(LauncherProcess):
    """A process described by torchrun's variables."""

    ends_all = False  # torchrun ends only the processes of its own host, by SIGTERM, 30 s later by SIGKILL
    errors = RuntimeError

    def __init__(self, timeout_seconds: float, environment: Mapping[str, str] = os.environ) -> None:
        """Raises UserError if a variable is missing or not a number, or if the variables contradict each other."""
        try:
            rank, size, local_rank, local_size, port = (int(environment[name]) for name in _VARIABLES)
            self._address = environment["MASTER_ADDR"], port
            first = rank - local_rank
            if not 0 <= local_rank < local_size or not 0 <= first <= size - local_size:
                raise ValueError("they contradict each other")
        except (KeyError, ValueError) as error:
            variables = ", ".join(f"{name}={environment[name]}" for name in _VARIABLES if name in environment)
            raise UserError(
                f"this process was started by torchrun, or what sets its variables, but these make no sense ({error}): "
                f"{variables}; wanted RANK below WORLD_SIZE, LOCAL_RANK below LOCAL_WORLD_SIZE (how many processes "
                "this host has), and the ranks of a host one after the other"
            ) from error
        self._keeps_store = rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        self._start = ".".join(environment.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT"))
        meeting_name = hashlib.sha256(f"{self._address} {self._start} {first} {size}".encode()).hexdigest()[:32]
        super().__init__(rank, size, range(first, first + local_size), meeting_name, timeout_seconds)
        self._failure = b""
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._watch_store, name="dlemu-failures", daemon=True)

    def connect(self, led_ranks: Sequence[int]) -> None:
        if not led_ranks or len(led_ranks) == self.size:
            return
        try:
            import torch.distributed
        except (ImportError, RuntimeError, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise UserError(
                "this process was started by torchrun (RANK, WORLD_SIZE, MASTER_ADDR), and on several hosts that needs "
                f'torch, which cannot be imported ({reason}): `pip install "dlemu[torch]"`, or start the ranks by '
                "`mpirun -np N dlemu ...`, or on one host by `dlemu ... ranks=N`"
            ) from error
        self._tensor = torch.from_numpy
        self._gloo: Any = torch.distributed
        try:
            within(self.timeout_seconds + 1.0, lambda: self._find_leaders(led_ranks), "meeting the other hosts")
        except PatienceError as error:
            raise PeerLostError(f"not all hosts arrived within {self.timeout_seconds:g} s") from error

    def _find_leaders(self, led_ranks: Sequence[int]) -> None:
        """Publish this leader's ranks in the store, find the other leaders there, and connect to them by gloo."""
        address, port = self._address
        seconds = self.timeout_seconds
        deadline_seconds, limit = time.monotonic() + seconds, datetime.timedelta(seconds=seconds)
        try:
            shared = self._gloo.TCPStore(address, port, None, self._keeps_store, limit, wait_for_workers=False)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise PeerLostError(
                f"the store at {address}:{port} (MASTER_ADDR, MASTER_PORT) was not reached within {seconds:g} s: "
                f"{reason}"
            ) from error
        # One start of torchrun may run several dlemu commands. All leaders count them and so get the same number.
        command_number = shared.add(f"dlemu/{self._start}/{led_ranks[0]}", 1)
        self._store: Any = self._gloo.PrefixStore(f"dlemu/{self._start}/{command_number}", shared)
        self._store.set(f"led/{led_ranks[0]}", str(len(led_ranks)))
        first_ranks: list[int] = []  # the first rank of each host
        rank = 0
        while rank < self.size:
            while not self._store.check([f"led/{rank}"]):
                if time.monotonic() > deadline_seconds:
                    raise PeerLostError(f"rank {rank}, the first of its host, did not arrive within {seconds:g} s")
                time.sleep(_POLL_SECONDS)
            first_ranks.append(rank)
            rank += int(self._store.get(f"led/{rank}"))
        self.node, self.nodes = first_ranks.index(led_ranks[0]), len(first_ranks)
        if interface := _interface(address, port):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        self._gloo.init_process_group(
            "gloo", store=self._store, rank=self.node, world_size=self.nodes, timeout=_FOREVER
        )
        self._watch.start()
        self.all_reduce_max(0)

    def finish(self) -> None:
        """End the watching thread: if it ran torch's code while the interpreter exits, the process would abort."""
        self._closing.set()
        if self._watch.is_alive():
            self._watch.join(_STORE_SECONDS)

    def report_failure(self, failure: Failure) -> None:
        with contextlib.suppress(PatienceError, RuntimeError):  # the host of the store is lost
            within(_STORE_SECONDS, lambda: self._store.set("failure", encode(failure)), "telling the other hosts")

    def _watch_store(self) -> None:
        """Poll the store for a failure of another host, in a thread: a request blocks while the store is cut off."""
        with contextlib.suppress(RuntimeError):
            while not self._closing.wait(_CHECK_SECONDS):
                if self._store.check(["failure"]):
                    self._failure = self._store.get("failure")
                    return

    def _read_failure(self) -> bytes:
        return self._failure

    def _begin_maximum(self, numbers: Numbers, highest: Numbers) -> IsDone:
        highest[:] = numbers
        return partial(_is_done, self._gloo.all_reduce(self._tensor(highest), self._gloo.ReduceOp.MAX, async_op=True))

    def _begin_broadcast(self, data: Bytes) -> IsDone:
        return partial(_is_done, self._gloo.broadcast(self._tensor(data), 0, async_op=True))

    def _begin_gather(self, data: Bytes, received: Bytes) -> IsDone:
        rows = [self._tensor(row) for row in received]
        return partial(_is_done, self._gloo.gather(self._tensor(data), rows or None, 0, async_op=True))


def _is_done(work: Any) -> bool:
    """Return whether a request is done; raises its error."""
    is_completed = bool(work.is_completed())
    if is_completed:
        work.wait()  # returns at once or raises the error
    return is_completed


def _interface(address: str, port: int) -> str:
    """Return the network interface to an address: connecting a UDP socket only selects a route and sends nothing."""
    family, kind, protocol, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        own_address = probe.getsockname()[0]
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, entries in interfaces if any(entry.address == own_address for entry in entries)), "")

"""The processes that a launcher (mpirun, srun, torchrun) started, and the calls between the leaders of hosts.

A leader is the process that forks the ranks of its host. The launcher's library carries messages between hosts. The
library's own waits may spin on a core and miss signals, so leaders poll: they sleep 50 us to 1 ms between two tests.
"""

from __future__ import annotations

import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dlemu.ranks.comm import Connection, Frame, HostRanks, PeerLostError
from dlemu.ranks.failure import Failure
from dlemu.ranks.messages import decode, encode

Launcher = Literal["none", "mpi", "store"]  # none; mpirun or srun; torchrun, or another program that sets its variables

_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PALS_SIZE", "SLURM_STEP_NUM_TASKS")
_STORE_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_TORCHRUN = "TORCHELASTIC_RUN_ID"
_MIN_SLEEP_SECONDS, _MAX_SLEEP_SECONDS, _SLEEP_GROWTH = 50e-6, 1e-3, 1.2  # between two tests; the growth saves CPU
_CHUNK_BYTES = 64 << 20  # far below 2^31, the largest count that every MPI library supports
_PINGS = 40  # the fastest counts, because it waited in no queue; the offset's error is at most half of its round trip
_CHECK_SECONDS = 0.5  # interval of checks whether another host has failed
_LAST_CHECKS, _LAST_CHECK_SECONDS = 4, 0.3  # once contact is lost: checks for the report of the host that failed
Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
IsDone = Callable[[], bool]  # tests whether a request is done


class LauncherProcess(ABC):
    """This process as one of a launcher's processes, and the collective calls of the leaders.

    A leader's `node` is its index among the leaders, by their first ranks. Leaders make calls after `connect`. On a
    single host (`nodes` is 1), calls return at once. They raise PeerLostError after `timeout_seconds`, or when another
    host reports that it has failed.
    """

    ends_all: bool  # whether the launcher ends the other hosts when one fails
    errors: type[Exception]  # the library's exception when contact is lost

    def __init__(self, rank: int, size: int, members: Sequence[int], socket_name: str, timeout_seconds: float) -> None:
        """`members` are the ranks of this host's processes, ascending; these meet at the Unix socket `socket_name`."""
        self.rank, self.size, self.members, self.socket_name = rank, size, members, socket_name
        self.timeout_seconds = timeout_seconds
        self.node, self.nodes = 0, 1
        self.pause: Callable[[float], None] = time.sleep  # called while waiting for other hosts; may raise
        self.remote_failure: Failure | None = None  # reported by another host
        self.peers_name = "another host"  # the other hosts in messages
        self._check_due_seconds = 0.0
        self._offset_ns = 0  # to add to this host's clock to get node 0's
        self._unfinished: list[object] = []  # requests and their buffers, into which the library may still write

    @abstractmethod
    def connect(self, led_ranks: Sequence[int]) -> None:
        """Connect to the other leaders if this process leads any ranks. Collective over the launcher's processes."""

    @abstractmethod
    def finish(self) -> None:
        """Disconnect from the launcher, after the last call of all processes."""

    def end(self, status: int) -> None:
        """Make the launcher end all processes, if its library has a call for that. This may not return."""
        self.finish()

    def all_reduce_max(self, value_ns: int) -> int:
        """Return the maximum over the hosts of a time by CLOCK_MONOTONIC (ns), converted to this host's clock."""
        highest = self._maximum(np.array([value_ns + self._offset_ns]))  # by node 0's clock
        return int(highest[0]) - self._offset_ns

    def gather(self, payload: bytes) -> list[bytes]:
        """Return every host's bytes on node 0, an empty list elsewhere."""
        sizes = np.zeros(self.nodes, np.int64)
        sizes[self.node] = len(payload)
        sizes = self._maximum(sizes)
        padded = np.zeros(sizes.max(), np.uint8)
        padded[: len(payload)] = np.frombuffer(payload, np.uint8)
        starts = range(0, padded.size, _CHUNK_BYTES)
        chunks = [self._gather_arrays(padded[start : start + _CHUNK_BYTES]) for start in starts]
        if self.node != 0:
            return []
        rows = np.concatenate([np.empty((self.nodes, 0), np.uint8), *chunks], axis=1)  # one per host, padded
        return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]

    def broadcast(self, payload: bytes | bytearray) -> bytes:
        """Return node 0's bytes on every host."""
        size = np.array([len(payload)], np.int64)
        self._broadcast_array(size.view(np.uint8))
        data = np.frombuffer(payload, np.uint8).copy() if self.node == 0 else np.empty(size[0], np.uint8)
        for start in range(0, data.size, _CHUNK_BYTES):
            self._broadcast_array(data[start : start + _CHUNK_BYTES])
        return data.tobytes()

    def all_values(self, value: Any) -> list[Any]:
        """Return the values of all hosts, in node order, on every host."""
        messages: list[bytes] = decode(self.broadcast(encode(self.gather(encode(value)))))
        return [decode(message) for message in messages]

    def clock_offsets(self) -> tuple[int, ...]:
        """Return for each host the nanoseconds to add to its CLOCK_MONOTONIC to get node 0's.

        Node 0 pings the others, which answer with the time by their clocks. The fastest of several pings counts, and
        its answers are assumed to be from the middle of its round trip.
        """
        self.all_reduce_max(0)
        stamp = np.zeros(1, np.int64)
        offsets_ns = np.zeros(self.nodes, np.int64)
        fastest_ns = 1 << 62
        for _ in range(_PINGS):
            sent_ns = time.monotonic_ns()
            self._broadcast_array(stamp.view(np.uint8), spin=True)
            stamp[0] = time.monotonic_ns()
            stamps = self._gather_arrays(stamp.view(np.uint8), spin=True)
            round_trip_ns = time.monotonic_ns() - sent_ns
            if self.node == 0 and round_trip_ns < fastest_ns:
                fastest_ns = round_trip_ns
                offsets_ns = sent_ns + round_trip_ns // 2 - stamps.view(np.int64)[:, 0]
        offsets_ns[0] = 0
        self._broadcast_array(offsets_ns.view(np.uint8))
        self._offset_ns = int(offsets_ns[self.node])
        return tuple(map(int, offsets_ns))

    def check_other_hosts(self, *, now: bool = False) -> None:
        """Raise PeerLostError if another host has reported a failure; checks at most twice a second, unless `now`."""
        if now or time.monotonic() >= self._check_due_seconds:
            self._check_due_seconds = time.monotonic() + _CHECK_SECONDS
            if self.remote_failure is None and (message := self._read_failure()):
                self.remote_failure = decode(message)
            if self.remote_failure is not None:
                error = PeerLostError(self.remote_failure.message)
                error.exit_status = self.remote_failure.status
                raise error

    def answer(self, link: Connection) -> bool:
        """Make the call that this host's first rank requests, and send the rank the result; False if it has ended."""
        try:
            kind, number = link.receive_head(Frame.BARRIER)
        except PeerLostError:
            return False
        frame = Frame(kind)
        if frame == Frame.BARRIER:
            link.send(frame, self.all_reduce_max(number))
        else:
            payload = bytes(link.receive_bytes(number, frame))
            match frame:
                case Frame.GATHER:
                    payload = encode(self.gather(payload))
                case Frame.BROADCAST:
                    payload = self.broadcast(payload)
                case Frame.CLOCKS:
                    payload = encode(self.clock_offsets())
            link.send(frame, payload)
        return True

    @abstractmethod
    def report_failure(self, failure: Failure) -> None:
        """Send the other hosts the failure of this one, without waiting."""

    @abstractmethod
    def _read_failure(self) -> bytes:
        """Return the encoded failure that another leader has sent; empty without one."""

    @abstractmethod
    def _begin_maximum(self, numbers: Numbers, highest: Numbers) -> IsDone:
        """Begin to fill `highest` with the element-wise maximum of the hosts' `numbers`."""

    @abstractmethod
    def _begin_broadcast(self, data: Bytes) -> IsDone:
        """Begin to replace `data` by node 0's."""

    @abstractmethod
    def _begin_gather(self, data: Bytes, received: Bytes) -> IsDone:
        """Begin to fill node 0's `received`, a row per host, with the hosts' `data` of equal length."""

    def _maximum(self, numbers: Numbers) -> Numbers:
        highest = numbers.copy()
        self._complete(lambda: self._begin_maximum(numbers, highest), numbers, highest)
        return highest

    def _broadcast_array(self, data: Bytes, *, spin: bool = False) -> None:
        self._complete(lambda: self._begin_broadcast(data), data, spin=spin)

    def _gather_arrays(self, data: Bytes, *, spin: bool = False) -> Bytes:
        received = np.tile(data, (self.nodes if self.node == 0 else 0, 1))  # a row per host, on node 0 alone
        self._complete(lambda: self._begin_gather(data, received), data, received, spin=spin)
        return received

    def _complete(self, begin: Callable[[], IsDone], *buffers: Bytes | Numbers, spin: bool = False) -> None:
        """Begin a request, and sleep (or `spin`) until it is done. Its `buffers` are kept alive until then."""
        if self.nodes == 1:  # the buffers contain the result already
            return
        deadline_seconds, sleep_seconds = time.monotonic() + self.timeout_seconds, _MIN_SLEEP_SECONDS
        try:
            is_done = begin()
            self._unfinished.append((is_done, buffers))
            while not is_done():
                if time.monotonic() > deadline_seconds:
                    raise PeerLostError(f"{self.peers_name} did not arrive within {self.timeout_seconds:g} s")
                if spin:
                    os.sched_yield()
                    continue
                self.check_other_hosts()
                self.pause(sleep_seconds)
                sleep_seconds = min(sleep_seconds * _SLEEP_GROWTH, _MAX_SLEEP_SECONDS)
            self._unfinished.pop()
        except self.errors as error:
            for _ in range(_LAST_CHECKS):
                with contextlib.suppress(self.errors):
                    self.check_other_hosts(now=True)
                time.sleep(_LAST_CHECK_SECONDS)
            reason = str(error).partition("\n")[0]
            raise PeerLostError(f"{self.peers_name} ended without a message ({reason})") from error


@dataclass(frozen=True, kw_only=True)
class LedRanks(HostRanks):
    """The ranks of a host whose leader communicates with other hosts on their behalf."""

    launcher: LauncherProcess
    on_start: Callable[[int], object]  # called first in each rank's process, with the rank's number on this host


def launcher_size(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes that mpirun or srun started (the larger one if both did); 1 without them."""
    sizes = [environment.get(name, "") for name in _SIZE_VARIABLES]
    return max((int(size) for size in sizes if size.isdecimal()), default=1)


def on_one_host(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the launcher's variables say that all processes are on this host; False if they say nothing."""
    size = str(launcher_size(environment))
    local_sizes = [environment.get(name) for name in ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")]
    is_own_step = environment.get("SLURM_STEP_NUM_TASKS") == size  # not that of the shell in which mpirun was started
    return size in local_sizes or (is_own_step and environment.get("SLURM_STEP_NUM_NODES") == "1")


def detect_launcher(environment: Mapping[str, str] = os.environ) -> Launcher:
    """Return the launcher of this process, by its environment variables; "none" if it started a single process.

    torchrun's variables take precedence: if mpirun or srun started torchrun, theirs are only inherited. A script under
    srun, or a Kubernetes operator, may set torchrun's variables except TORCHELASTIC_RUN_ID. These count only if no MPI
    launcher started several ranks. A bare PMIx launcher sets a rank but no size: it is "mpi", unless another variable
    gives a size of 1.
    """
    has_ranks = all(environment.get(name) for name in _STORE_VARIABLES)
    mpi_size = launcher_size({name: size for name, size in environment.items() if name != "SLURM_STEP_NUM_TASKS"})
    if has_ranks and (_TORCHRUN in environment or (mpi_size == 1 and "PMIX_RANK" not in environment)):
        return "none" if environment["WORLD_SIZE"] == "1" else "store"
    if launcher_size(environment) > 1:
        return "mpi"
    is_size_known = any(name in environment for name in _SIZE_VARIABLES)
    return "mpi" if "PMIX_RANK" in environment and not is_size_known else "none"

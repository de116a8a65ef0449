"""Ranks that mpirun or srun started: the only interface to mpi4py.

MPI starts the processes, finds who shares a host, and carries what crosses hosts: one process of each host, its leader,
communicates for all ranks there. With one host, MPI is idle between start and end.

MPI_Init spins forever for ranks that never come, and nothing in this process can end that wait: MPI_Init holds the
interpreter. So a child that was forked before acts as the timer (`start_within`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from datagen.errors import SpaceError, UserError
from dlemu.machine.cgroup_limits import shared_memory_problem
from dlemu.ranks.comm_base import PeerLostError, launcher_rank, launcher_size, on_one_host
from dlemu.ranks.process_control import flush_output, fork_process, name_process

if TYPE_CHECKING:  # placeholders import little
    from dlemu.ranks.mpi_leaders import MpiLeaders

_SECRET_BYTES = 16  # 128 bits: beyond guessing
_LOOPBACK = {"UCX_NET_DEVICES": "lo", "FI_TCP_IFACE": "lo"}
"""Environment that keeps MPICH's transports (UCX, libfabric's tcp) on loopback; else they listen on all interfaces."""
_TURN_SECONDS = 0.6  # processes report a common failure this far apart: the first makes the launcher end the others
_MOST_TURNS = 5  # so the last one waits 3 s, however many there are
_MPI_MEMORY = ("mpich_shm", "sm_segment", "vader_segment")
_STALE_SECONDS = 60.0  # a process maps what it makes at once
_HOST_PROCESSES = 0xEFFFFFFC  # inode of the host's own namespace of processes: PROC_PID_INIT_INO of Linux


@contextlib.contextmanager
def _contact(mpi: Any) -> Iterator[None]:
    try:
        yield
    except mpi.Exception as error:
        raise PeerLostError(f"MPI lost contact with another rank: {error}") from error


class MpiProcess:
    """One of the processes of MPI_COMM_WORLD."""

    ends_all = True

    def __init__(self, timeout_seconds: float, split: Callable[[int], int] | None = None) -> None:
        """Start MPI and find the other ranks; `split` maps a world rank to its node, in place of MPI's answer.

        Raises UserError when there is no usable MPI library, PeerLostError when a rank does not arrive. If another rank
        never starts MPI, this process is ended by SIGTERM (`start_within`).
        """
        self.timeout_seconds = timeout_seconds
        self._mpi = mpi = load_mpi()
        self._started_here = _start(mpi, timeout_seconds)
        self._world: Any = mpi.COMM_WORLD
        self._leaders: MpiLeaders | None = None
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        with _contact(mpi):
            self._meet()  # the calls below spin while they wait, so start them together
            remove_shared_memory(names=_MPI_MEMORY[:1])
            secret = bytearray(secrets.token_bytes(_SECRET_BYTES))
            self._world.Bcast([secret, mpi.BYTE], root=0)
            if split is None:
                node = self._world.Split_type(mpi.COMM_TYPE_SHARED, key=self.rank)
            else:
                node = self._world.Split(split(self.rank), key=self.rank)
            ranks = range(node.Get_size())
            members = mpi.Group.Translate_ranks(node.Get_group(), list(ranks), self._world.Get_group())
            node.Free()
        self.members: Sequence[int] = [int(rank) for rank in members]
        self.door = f"{secret.hex()}-{self.members[0]}"

    def connect(self, led: Sequence[int]) -> MpiLeaders | None:
        with _contact(self._mpi):
            self._meet()
            comm = self._world.Split(0 if led else self._mpi.UNDEFINED, key=self.rank)
        if not led or comm.Get_size() == 1:
            return None
        from dlemu.ranks.mpi_leaders import MpiLeaders

        self._leaders = MpiLeaders(self._mpi, comm, self.timeout_seconds)
        return self._leaders

    def finish(self) -> None:
        if self._started_here:
            self._mpi.Finalize()  # spins until all processes call it: soon, as all were just told to

    def end(self, status: int) -> None:
        if not self._mpi.Is_finalized():
            if self._leaders is not None:
                self._leaders.wait_for_end()
            remove_shared_memory()
            self._world.Abort(status)

    def _meet(self) -> None:
        request, deadline_seconds = self._world.Ibarrier(), time.monotonic() + self.timeout_seconds
        while not request.Test():
            if time.monotonic() > deadline_seconds:
                raise PeerLostError(f"not all of {self.size} ranks started MPI within {self.timeout_seconds:g} s")
            time.sleep(0.001)


def load_mpi() -> Any:
    """Import mpi4py.MPI without starting MPI. Raises UserError that says what to install."""
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
        "MPI module and `pip install --no-binary mpi4py mpi4py`; `dlemu doctor` names both libraries"
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
        _remove_stale()
        with start_within(timeout_seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # mpi4py only warns of another MPI's launcher; we raise
            mpi.Init_thread(mpi.THREAD_FUNNELED)  # only the main thread calls MPI
    if mpi.COMM_WORLD.Get_size() == 1 and launcher_size(os.environ) > 1:
        if started_here:
            mpi.Finalize()
        raise _foreign(vendor, os.environ)
    return started_here


@contextlib.contextmanager
def start_within(seconds: float) -> Iterator[None]:
    """Send this process SIGTERM, and say why on stderr, when the body of the `with` takes longer than `seconds`."""
    theirs, ours = os.pipe()
    child = fork_process(lambda: _keep_time(theirs, ours, seconds))
    os.close(theirs)
    try:
        yield
    finally:
        os.close(ours)  # the child sees that and ends
        os.waitpid(child, 0)


def _keep_time(channel: int, other_end: int, seconds: float) -> int:
    os.close(other_end)
    name_process("dlemu-start")
    turn_seconds = _TURN_SECONDS * min(launcher_rank(), _MOST_TURNS)
    if not select.select([channel], [], [], seconds + turn_seconds)[0]:
        print(
            f"dlemu: MPI did not start within {seconds:g} s (timeout_seconds): a rank that the launcher started "
            "hangs before that, or MPI can't reach it; check the other hosts, or raise timeout_seconds",
            file=sys.stderr,
            flush=True,
        )
        flush_output()
        if not select.select([channel], [], [], 0)[0]:
            remove_shared_memory(os.getppid())
            os.kill(os.getppid(), signal.SIGTERM)
    return 0


def remove_shared_memory(process: int | str = "self", names: tuple[str, ...] = _MPI_MEMORY) -> None:
    """Unlink the MPI library's files in /dev/shm that a process has mapped.

    Those of MPICH are unlinked once all processes have them: none is left, however the job ends.
    """
    for path in (path for path in _mapped(process, names) if path.startswith("/dev/shm/")):
        with contextlib.suppress(OSError):  # another rank was faster
            os.unlink(path)


def stale_shared_memory(folder: str = "/dev/shm") -> list[str]:
    """Return the paths of MPI libraries' files of this user, older than a minute, that no process here has mapped."""
    oldest, old = time.time() - _STALE_SECONDS, set[str]()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if entry.name.startswith(_MPI_MEMORY) and status.st_uid == os.geteuid() and status.st_mtime < oldest:
                old.add(entry.path)
    for process in os.listdir("/proc") if old else ():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            old -= _mapped(process, _MPI_MEMORY) if process.isdigit() else set()
    return sorted(old)


def _remove_stale() -> None:
    """Remove what this user's dead MPI processes left, but in a container: it sees no others that share /dev/shm."""
    if os.stat("/proc/self/ns/pid").st_ino == _HOST_PROCESSES:
        for path in stale_shared_memory():
            with contextlib.suppress(OSError):  # another rank was faster
                os.unlink(path)


def _mapped(process: int | str, names: tuple[str, ...]) -> set[str]:
    with open(f"/proc/{process}/maps", errors="surrogateescape") as maps:
        paths = {line.rstrip("\n").partition("/")[2] for line in maps if "/" in line}
    return {f"/{path}" for path in paths if os.path.basename(path).startswith(names)}

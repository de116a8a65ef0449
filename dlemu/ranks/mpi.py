"""Processes that mpirun or srun started: the only interface to mpi4py.

MPI says which processes share a host, and carries messages between hosts. On a single host, it is idle during the run.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from datagen.errors import SpaceError, UserError
from dlemu.machine.cgroup_limits import shared_memory_problem
from dlemu.ranks.comm import PeerLostError
from dlemu.ranks.failure import Failure
from dlemu.ranks.launcher import Bytes, IsDone, LauncherProcess, Numbers, launcher_size, on_one_host
from dlemu.ranks.messages import encode
from dlemu.ranks.process_control import die_with_parent, flush_output, fork_process, name_process

_FAILURE, _CLEAN = 1, 2  # message tags: the failure of a host; a host has cleaned up after a failure
_CLEAN_SECONDS = 10.0  # time for the other hosts to remove unfinished files, before MPI kills them
SAVING_SECONDS = 120.0  # time for node 0 to save the measurements and end all processes, before another host does
_TURN_SECONDS, _TURNS = 0.6, 6  # processes report a common failure in turns, as the launcher ends all after the first
_MPI_MEMORY = ("mpich_shm", "sm_segment", "vader_segment")  # prefixes of the libraries' files in /dev/shm
_STALE_SECONDS = 60.0  # an unmapped file of this age is stale: processes map their files as soon as they create them
_HOST_PID_NAMESPACE = 0xEFFFFFFC  # inode of the namespace outside of containers: PROC_PID_INIT_INO of Linux


class MpiProcess(LauncherProcess):
    """A process of MPI_COMM_WORLD. Calls between hosts are nonblocking and polled, because MPI's own waits spin."""

    ends_all = True

    def __init__(self, timeout_seconds: float, split: Callable[[int], int] | None = None) -> None:
        """Start MPI and find the other ranks. `split`, if given, maps a world rank to its host, instead of MPI.

        Raises UserError if no MPI library is usable, PeerLostError if a rank does not arrive. If another rank never
        starts MPI, SIGTERM ends this process (`start_within`).
        """
        self._mpi = mpi = load_mpi()
        self.errors = mpi.Exception
        self._started_here = _start(mpi, timeout_seconds)
        self._comm = self._world = world = mpi.COMM_WORLD
        rank = world.Get_rank()
        self._wait_for_all(timeout_seconds)  # the calls below spin while they wait, so start them together
        remove_shared_memory(names=_MPI_MEMORY[:1])
        secret = bytearray(secrets.token_bytes(16))  # 128 bits can't be guessed
        world.Bcast([secret, mpi.BYTE], root=0)
        node = world.Split(split(rank), key=rank) if split else world.Split_type(mpi.COMM_TYPE_SHARED, key=rank)
        members = np.empty(node.Get_size(), np.int64)
        node.Allgather(np.array([rank]), members)
        socket_name = f"{secret.hex()}-{members[0]}"
        super().__init__(rank, world.Get_size(), members.tolist(), socket_name, timeout_seconds)

    def connect(self, led_ranks: Sequence[int]) -> None:
        self._wait_for_all(self.timeout_seconds)
        comm = self._world.Split(0 if led_ranks else self._mpi.UNDEFINED, key=self.rank)
        if led_ranks:
            self._comm, self.node, self.nodes = comm, comm.Get_rank(), comm.Get_size()

    def finish(self) -> None:
        if self._started_here:
            self._mpi.Finalize()  # spins, but only briefly: all processes call it now

    def end(self, status: int) -> None:
        """Abort all processes; with several hosts, node 0 first waits until the others have cleaned up."""
        if self._mpi.Is_finalized():
            return
        with contextlib.suppress(self._mpi.Exception):
            if self.node != 0:
                self._comm.Isend(np.zeros(1, np.uint8), dest=0, tag=_CLEAN)
                time.sleep(SAVING_SECONDS)  # meanwhile node 0 aborts this process, unless it is lost
            acks = [self._comm.Irecv(np.zeros(1, np.uint8), source=node, tag=_CLEAN) for node in range(1, self.nodes)]
            deadline_seconds = time.monotonic() + _CLEAN_SECONDS
            while self.node == 0 and not self._mpi.Request.Testall(acks) and time.monotonic() < deadline_seconds:
                time.sleep(0.01)
        remove_shared_memory()
        self._world.Abort(status)

    def report_failure(self, failure: Failure) -> None:
        message = np.frombuffer(encode(failure), np.uint8)
        for node in range(self.nodes):
            if node != self.node:
                self._unfinished.append((self._comm.Isend(message, dest=node, tag=_FAILURE), message))

    def _wait_for_all(self, timeout_seconds: float) -> None:
        """Wait for all processes without spinning, in place of MPI_Barrier. Raises PeerLostError."""
        request = self._world.Ibarrier()
        deadline_seconds = time.monotonic() + timeout_seconds
        while not request.Test():
            if time.monotonic() > deadline_seconds:
                raise PeerLostError(f"not all ranks started MPI within {timeout_seconds:g} s")
            time.sleep(0.001)

    def _read_failure(self) -> bytes:
        status = self._mpi.Status()
        if not self._comm.Iprobe(tag=_FAILURE, status=status):
            return b""
        message = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
        self._comm.Recv(message, source=status.Get_source(), tag=_FAILURE)
        return message.tobytes()

    def _begin_maximum(self, numbers: Numbers, highest: Numbers) -> IsDone:
        return self._comm.Iallreduce(numbers, highest, op=self._mpi.MAX).Test  # type: ignore[no-any-return]

    def _begin_broadcast(self, data: Bytes) -> IsDone:
        return self._comm.Ibcast(data, root=0).Test  # type: ignore[no-any-return]

    def _begin_gather(self, data: Bytes, received: Bytes) -> IsDone:
        return self._comm.Igather(data, received, root=0).Test  # type: ignore[no-any-return]


def load_mpi() -> Any:
    """Import mpi4py.MPI without starting MPI; raises UserError with advice what to install."""
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


def is_foreign(vendor: str, environment: Mapping[str, str]) -> bool:
    """Return whether mpi4py's library (`vendor`, by mpi4py.MPI.get_vendor()) certainly is not the launcher's.

    Open MPI finds its peers only through PMIx, and MPICH's wheel only through PMI. A site's own build may support both,
    so unclear cases count as the launcher's.
    """
    under_pmi = "PMI_SIZE" in environment
    if vendor == "Open MPI":
        return under_pmi and "PMIX_RANK" not in environment
    return vendor == "MPICH" and "OMPI_COMM_WORLD_SIZE" in environment and not under_pmi


def _start(mpi: Any, timeout_seconds: float) -> bool:
    """Start MPI unless the program did so before; return whether it was started here. Raises UserError, SpaceError."""
    vendor = mpi.get_vendor()[0]
    foreign = is_foreign(vendor, os.environ)
    starts_here = not mpi.Is_initialized()
    if starts_here and not foreign:
        if problem := shared_memory_problem():
            raise SpaceError(f"MPI can't start: {problem}; or start dlemu by itself with ranks=N, which needs none")
        if on_one_host():  # MPICH's transports, UCX and libfabric's tcp, would listen on all interfaces
            os.environ.setdefault("UCX_NET_DEVICES", "lo")
            os.environ.setdefault("FI_TCP_IFACE", "lo")
        if os.stat("/proc/self/ns/pid").st_ino == _HOST_PID_NAMESPACE:  # a container can't see all users of /dev/shm
            _remove(stale_shared_memory())
        with start_within(timeout_seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # mpi4py only warns of another MPI's launcher; we raise
            mpi.Init_thread(mpi.THREAD_FUNNELED)  # only the main thread calls MPI
        foreign = mpi.COMM_WORLD.Get_size() == 1 and launcher_size() > 1
        if foreign:
            mpi.Finalize()
    if foreign:
        raise UserError(
            f"the launcher started {launcher_size()} processes, but the MPI library that mpi4py loads ({vendor}) is "
            "not the launcher's, so each process is alone. Use the mpirun that belongs to the library (with the mpich "
            "package: the one next to `python`; under srun, `--mpi=pmi2` for MPICH or `--mpi=pmix` for Open MPI), or "
            "load your site's MPI module and `pip install --no-binary mpi4py mpi4py`; `dlemu doctor` names both "
            "libraries"
        )
    return starts_here


@contextlib.contextmanager
def start_within(seconds: float) -> Iterator[None]:
    """Context that ends this process by SIGTERM, with a message on stderr, if the body takes longer than `seconds`.

    A forked child keeps the time, because MPI_Init spins until all ranks are there, and holds the interpreter lock.
    """
    process = os.getpid()

    def keep_time() -> int:
        die_with_parent(process)
        name_process("dlemu-start")
        time.sleep(seconds + _TURN_SECONDS * (process % _TURNS))
        print(
            f"dlemu: MPI did not start within {seconds:g} s (timeout_seconds): a rank that the launcher started hangs "
            "before that, or MPI can't reach it; check the other hosts, or raise timeout_seconds",
            file=sys.stderr,
        )
        flush_output()
        remove_shared_memory(process)
        os.kill(process, signal.SIGTERM)
        return 0

    child = fork_process(keep_time)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def remove_shared_memory(process: int | str = "self", names: tuple[str, ...] = _MPI_MEMORY) -> None:
    """Unlink the MPI library's files in /dev/shm that a process has mapped.

    MPICH's files are unlinked as soon as all processes have mapped them, so they do not outlive the job.
    """
    _remove(path for path in _mapped(process, names) if path.startswith("/dev/shm/"))


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # another rank has unlinked it
            os.unlink(path)


def stale_shared_memory(folder: str = "/dev/shm") -> list[str]:
    """Return the paths of this user's files of MPI libraries, older than a minute, that no process here has mapped."""
    newest_stale_seconds = time.time() - _STALE_SECONDS
    stale: set[str] = set()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            is_own = entry.name.startswith(_MPI_MEMORY) and status.st_uid == os.geteuid()
            if is_own and status.st_mtime < newest_stale_seconds:
                stale.add(entry.path)
    for process in filter(str.isdigit, os.listdir("/proc") if stale else ()):
        with contextlib.suppress(OSError):  # the process has ended, or is another user's
            stale -= _mapped(process, _MPI_MEMORY)
    return sorted(stale)


def _mapped(process: int | str, names: tuple[str, ...]) -> set[str]:
    with open(f"/proc/{process}/maps", errors="surrogateescape") as maps:
        paths = {line.rstrip("\n").partition("/")[2] for line in maps if "/" in line}
    return {f"/{path}" for path in paths if os.path.basename(path).startswith(names)}

"""First steps of a process that a launcher (mpirun, srun, torchrun) started: it connects to the other processes.

Placeholders, of which the first process of their host runs the ranks, only wait: so this module imports little. A
failure is an echo if it is only the loss of a rank that failed for another reason.
"""

from __future__ import annotations

import contextlib
import functools
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from datagen.errors import UserError
from dlemu.comm import Interrupted, detect_launcher, interrupt_on
from dlemu.comm.failure import Failure, describe
from dlemu.config.schema import Workload

if TYPE_CHECKING:  # most runs have no launcher
    from dlemu.comm.launched_comm import LaunchedComm

ECHO_SECONDS = 2.0
"""A rank waits this long before it reports an echo, so that the rank with the cause can report first."""

_TIMEOUT = re.compile(r"(?:\+\+?)?(?:workload\.)?timeout_seconds=([0-9.]+)")


@dataclass(frozen=True)
class Joined:
    """This process's connection to the launcher's other processes."""

    comm: LaunchedComm
    hosted: bool
    """Whether the first process of each host runs all ranks of the host."""


class RefusedError(UserError):
    """A UserError of rank 0 before any rank began, raised in all leading processes, so that they exit together."""

    def __init__(self, error: UserError) -> None:
        super().__init__(error)
        self.error = error


@functools.cache
def join(timeout_seconds: float) -> Joined:
    """Connect to the launcher's other processes, once per process. Raises UserError, PeerLostError."""
    from dlemu.comm.hosted import are_alike

    comm = _comm_of_launcher(timeout_seconds)
    interrupt_on(signal.SIGINT, signal.SIGTERM)
    return Joined(comm, are_alike(comm))


def _comm_of_launcher(timeout_seconds: float) -> LaunchedComm:
    if detect_launcher() == "store":
        from dlemu.comm.store import StoreComm

        return StoreComm(timeout_seconds)
    from dlemu.comm.mpi import MpiComm

    return MpiComm(timeout_seconds)


def run_as_placeholder(overrides: Sequence[str], report: Callable[[str], None]) -> bool:
    """If another process runs this one's rank, wait for that rank to end and return True; else return False.

    A command calls it before its other imports, which take longer. A failure of the rank is passed to `report`, and
    ends all ranks.
    """
    if detect_launcher() == "none":
        return False
    joined = join(start_seconds(overrides))
    if not joined.hosted or joined.comm.local_rank == 0:
        return False
    from dlemu.comm.hosted import serve_placeholder

    with ending_all(joined.comm, report):
        serve_placeholder(joined.comm)
    return True


@contextlib.contextmanager
def ending_all(comm: LaunchedComm, report: Callable[[str], None]) -> Iterator[None]:
    """Close the connection at the end. An exception is reported and ends all ranks; this process by SystemExit.

    After a `RefusedError` all exit as after a successful run: after an abort, the launcher prints messages of its own.
    """
    try:
        yield
    except RefusedError as refused:  # the command has printed it
        comm.close()
        raise SystemExit(refused.exit_status) from None
    except BaseException as error:
        failure = describe(comm.rank, error)
        if _should_report(comm, failure):
            notes = () if failure.traceback else getattr(error, "__notes__", ())  # a traceback has them
            text = "\n".join([failure.text, *notes])
            report(f"{socket.gethostname()}: {text}" if comm.rank else text)
        comm.abort(failure.status, failure.message)
        raise SystemExit(failure.status) from None
    comm.close()


def _should_report(comm: LaunchedComm, failure: Failure) -> bool:
    """Return whether this process should report its rank's failure; waits, if it is an echo, for the cause's report.

    Where a launcher ends only the failing host, of the others' echoes one per host counts, and rank 0's interruption.
    """
    interrupted = failure.kind == Interrupted.__name__
    if comm.launcher_ends_all:
        if failure.echo:
            from dlemu.comm.guardian import turn_seconds

            time.sleep(ECHO_SECONDS + turn_seconds())
        return True
    if interrupted or (failure.echo and comm.local_rank > 0):
        return interrupted and comm.rank == 0
    if failure.echo:
        try:
            time.sleep(ECHO_SECONDS)
        except Interrupted:  # the launcher has seen a rank of this host fail, which has reported
            return False
    return True


def start_seconds(overrides: Sequence[str]) -> float:
    """Return how long ranks may wait for each other until rank 0 has read the workload: as the command line says."""
    given = [match[1] for match in map(_TIMEOUT.fullmatch, overrides) if match]
    try:
        return float(given[-1]) or Workload.timeout_seconds
    except (IndexError, ValueError):
        return Workload.timeout_seconds

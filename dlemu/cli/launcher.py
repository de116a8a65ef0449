"""Running something on every rank, forked here or started by mpirun or srun, and telling the first failure once."""

from __future__ import annotations

import re
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence

from datagen.errors import DlemuError
from dlemu.cli import complain
from dlemu.comm import Comm, PeerLostError, interrupt_once, open_comm
from dlemu.comm.comm_base import Interrupted
from dlemu.comm.failure import Failure, first_failure
from dlemu.comm.launch import run_ranks
from dlemu.config.schema import Workload

_TIMEOUT = re.compile(r"(?:\+\+?)?(?:workload\.)?timeout_seconds=([0-9.]+)")

ECHO_SECONDS = 2.0
"""How long a rank that only lost a peer lets the rank with the cause speak first."""


def forked(ranks: int, main: Callable[[Comm], int], timeout_seconds: float) -> Failure | None:
    """Run `main` on forked ranks; return what failed, told on stderr, or None."""
    failure = first_failure(run_ranks(ranks, main, timeout_seconds=timeout_seconds))
    if failure is not None:
        if failure.traceback:
            complain(failure.traceback.rstrip())
        complain(failure.message)
    return failure


def start_seconds(overrides: Sequence[str]) -> float:
    """Return how long ranks may wait for each other before the configuration is known.

    What the command line says of `timeout_seconds`, else its default: a workload's file is read by rank 0 alone, later.
    """
    said = [match[1] for match in map(_TIMEOUT.fullmatch, overrides) if match]
    try:
        return float(said[-1]) or Workload.timeout_seconds
    except (IndexError, ValueError):
        return Workload.timeout_seconds


def under_mpi(overrides: Sequence[str], main: Callable[[Comm], int]) -> int:
    """Run `main` on every rank of the launcher; the first failure is told on stderr and ends all ranks."""
    comm = open_comm(start_seconds(overrides))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt_once())
    try:
        status = main(comm)
    except BaseException as error:
        status = _tell(comm, error)
        comm.abort(status)
        return status
    comm.close()
    return status


def _tell(comm: Comm, error: BaseException) -> int:
    """Say on stderr why this rank ends, and return the status it ends with."""
    if isinstance(error, PeerLostError):
        time.sleep(ECHO_SECONDS)
    where = f"rank {comm.rank} on {socket.gethostname()}: " if comm.size > 1 and comm.rank else ""
    if isinstance(error, DlemuError):
        complain(where + str(error))
        return error.exit_status
    if isinstance(error, Interrupted):
        complain(f"{where}interrupted by {signal.Signals(error.signal_number).name}")
        return error.exit_status
    complain(where + traceback.format_exc().rstrip())
    return DlemuError.exit_status

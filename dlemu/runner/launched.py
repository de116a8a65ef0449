"""What a process started by a launcher does; it imports as little as it can, for most of them are only placeholders."""

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
from dlemu.comm import Interrupted, detect_launcher, interrupt_once
from dlemu.comm.failure import Failure, describe
from dlemu.config.schema import Workload

if TYPE_CHECKING:  # most runs have no launcher
    from dlemu.comm.launched_comm import LaunchedComm

ECHO_SECONDS = 2.0
"""How long a rank that only lost a peer lets the rank with the cause report first; after that one reports for all."""

_TIMEOUT = re.compile(r"(?:\+\+?)?(?:workload\.)?timeout_seconds=([0-9.]+)")


@dataclass(frozen=True)
class Joined:
    """This process among the launcher's."""

    comm: LaunchedComm
    hosted: bool
    """The first process of each host runs all of its ranks."""


class RefusedError(UserError):
    """What rank 0 found wrong before any rank began, known to all processes that take part: they leave together."""

    def __init__(self, error: UserError) -> None:
        super().__init__(error)
        self.error = error


@functools.cache
def join(timeout_seconds: float) -> Joined:
    """Find the launcher's other processes, by MPI or torchrun's store; a process can do it once.

    Raises UserError when there is no usable MPI library or torch, PeerLostError when a rank does not arrive in time.
    """
    from dlemu.comm.hosted import are_alike

    comm = _comm_of_launcher(timeout_seconds)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt_once())
    return Joined(comm, are_alike(comm))


def _comm_of_launcher(timeout_seconds: float) -> LaunchedComm:
    if detect_launcher() == "store":
        from dlemu.comm.store import StoreComm

        return StoreComm(timeout_seconds)
    from dlemu.comm.mpi import MpiComm

    return MpiComm(timeout_seconds)


def run_as_placeholder(overrides: Sequence[str], tell: Callable[[str], None]) -> bool:
    """Wait in place of the rank that another process runs for this one, if one does; return whether that was so.

    A command calls it before its imports: they take longer than all else that such a process does. How the rank failed
    is reported, and ends all ranks. Raises what `join` raises.
    """
    if detect_launcher() == "none":
        return False
    joined = join(start_seconds(overrides))
    if not joined.hosted or joined.comm.local_rank == 0:
        return False
    from dlemu.comm.hosted import serve_placeholder

    with ending_all(joined.comm, tell):
        serve_placeholder(joined.comm)
    return True


@contextlib.contextmanager
def ending_all(comm: LaunchedComm, tell: Callable[[str], None]) -> Iterator[None]:
    """Leave the launcher at the end; report what is raised and end all ranks with it, this process by SystemExit.

    After a `RefusedError`, which is reported already, all leave as they do after a run: an abort would have the
    launcher add lines of its own.
    """
    try:
        yield
    except RefusedError as refused:  # a front end has shown it
        comm.close()
        raise SystemExit(refused.exit_status) from None
    except BaseException as error:
        failure = describe(comm.rank, error)
        if _speaks(comm, failure):
            tell(f"{socket.gethostname()}: {failure.text}" if comm.rank else failure.text)
        comm.abort(failure.status, failure.message)
        raise SystemExit(failure.status) from None
    comm.close()


def _speaks(comm: LaunchedComm, failure: Failure) -> bool:
    """Return whether this process reports its rank's failure; one that only lost a peer lets the cause's rank go first.

    A launcher that ends no other host and lets go by SIGTERM leaves time for every process to say the same: there the
    first of each host reports what it received from another rank, and rank 0 alone that all were interrupted.
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
        except Interrupted:  # the launcher has seen the failure of a rank of this host, which spoke
            return False
    return True


def start_seconds(overrides: Sequence[str]) -> float:
    """Return how long ranks may wait for each other before the configuration is known.

    What the command line says of `timeout_seconds`, else its default: a workload's file is read by rank 0 alone, later.
    """
    given = [match[1] for match in map(_TIMEOUT.fullmatch, overrides) if match]
    try:
        return float(given[-1]) or Workload.timeout_seconds
    except (IndexError, ValueError):
        return Workload.timeout_seconds

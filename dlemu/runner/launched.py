"""First steps of a process that a launcher (mpirun, srun, torchrun) started: it connects to the other processes.

Placeholders, of which the first process of their host runs the ranks, only wait: so this module imports little.
"""

from __future__ import annotations

import contextlib
import functools
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from datagen.errors import UserError
from dlemu.comm import PeerLostError, detect_launcher
from dlemu.comm.failure import Failure, describe
from dlemu.config.schema import Workload

if TYPE_CHECKING:  # most runs have no launcher
    from dlemu.comm.host import Host, Placeholder

_TIMEOUT = re.compile(r"(?:\+\+?)?(?:workload\.)?timeout_seconds=([0-9.]+)")


class RefusedError(UserError):
    """A UserError of rank 0's host before any rank began, raised by all leaders, so that they exit together."""

    def __init__(self, error: UserError) -> None:
        super().__init__(error)
        self.error = error


@functools.cache
def join(timeout_seconds: float) -> Host | Placeholder:
    """Connect to the launcher's other processes, once per process. Raises UserError, PeerLostError."""
    from dlemu.comm.host import join

    return join(timeout_seconds)


def run_as_placeholder(overrides: Sequence[str], report: Callable[[str], None]) -> bool:
    """If another process runs this one's rank, wait for that rank to end and return True; else return False.

    A command calls it before its other imports, which take longer. Raises SystemExit where the rank failed.
    """
    if detect_launcher() == "none":
        return False
    process = join(start_seconds(overrides))
    from dlemu.comm.host import Placeholder

    if not isinstance(process, Placeholder):
        return False
    try:
        status = process.serve()
    except PeerLostError as error:
        report(str(error))
        raise SystemExit(error.exit_status) from None
    if status:
        raise SystemExit(status)
    return True


@contextlib.contextmanager
def ending_all(host: Host, report: Callable[[str], None]) -> Iterator[None]:
    """End the launcher's processes with this one. An exception is reported and ends all ranks; this process by
    SystemExit.

    After a `RefusedError` all exit as after a successful run: after an abort, the launcher prints messages of its own.
    """
    try:
        yield
        host.close()
    except RefusedError as refused:  # the command has printed it
        host.close()
        raise SystemExit(refused.exit_status) from None
    except BaseException as error:
        failure = failure_of(host, error)
        host.leave(failure)
        if text := _text(host, error, failure):
            report(f"{socket.gethostname()}: {text}" if host.node else text)
        host.end(failure.status)
        raise SystemExit(failure.status) from None


def failure_of(host: Host, error: BaseException) -> Failure:
    """Return why a host fails: for a RunFailedError the failure of its rank."""
    failure = getattr(error, "failure", None)
    return failure if isinstance(failure, Failure) else describe(host.place.members[0], error)


def _text(host: Host, error: BaseException, failure: Failure) -> str:
    """Return what to report of a failure: only what was kept, where another host's report is in the same output."""
    if host.ends_all and (host.knows_cause or (failure.echo and host.node > 0)):
        kept = getattr(error, "kept", None)
        return kept.sentence if kept else ""
    if hasattr(error, "failure") or not failure.traceback:
        return "\n".join([str(error) or failure.message, *getattr(error, "__notes__", ())])
    return failure.text  # the traceback has the notes


def start_seconds(overrides: Sequence[str]) -> float:
    """Return how long ranks may wait for each other until rank 0 has read the workload: as the command line says."""
    given = [match[1] for match in map(_TIMEOUT.fullmatch, overrides) if match]
    try:
        return float(given[-1]) or Workload.timeout_seconds
    except (IndexError, ValueError):
        return Workload.timeout_seconds

"""A forked rank's side: from its birth to the last word it sends to the supervisor."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from datagen.errors import DlemuError
from dlemu.comm.comm_base import Comm, Interrupted, PeerLostError
from dlemu.comm.failure import Failure
from dlemu.comm.local import LocalComm
from dlemu.comm.process import Handler, die_with_parent, interrupt_once

UNFORESEEN_STATUS = DlemuError.exit_status
"""Exit status of a rank that raised what is not a `DlemuError`; not Python's 1, which says that a run did not pass."""

_LONGEST_TEXT = 30_000  # characters of a message or traceback; a datagram of 200 KiB is the kernel's default limit


@dataclass(frozen=True)
class RankJob:
    """What every forked rank is given; all of it was made before the fork."""

    main: Callable[[Comm], int]
    ranks: int
    token: str
    timeout_seconds: float
    grace_seconds: float
    supervisor: int
    """Process id."""
    reports: socket.socket
    """Where a failure goes, one JSON datagram each."""
    parents_only: tuple[socket.socket, ...]
    """Sockets to close at birth."""


def live(job: RankJob, rank: int, signal_mask: set[int | signal.Signals]) -> NoReturn:
    """Be rank `rank` until the end of the process; `signal_mask` is what to unblock to once handlers stand."""
    status = 128 + signal.SIGTERM
    try:
        status = _live(job, rank, signal_mask)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    finally:
        os._exit(status)  # whatever happened, the caller's stack is not ours to return into


def _live(job: RankJob, rank: int, signal_mask: set[int | signal.Signals]) -> int:
    try:
        _be_born(job, signal_mask)
        return _work(job, rank)
    except BaseException as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if isinstance(error, SystemExit) and not error.code:
            return 0
        failure = _describe(rank, error)
        with contextlib.suppress(OSError):
            job.reports.send(failure.to_json().encode())
        return failure.status


def _be_born(job: RankJob, signal_mask: set[int | signal.Signals]) -> None:
    signal.set_wakeup_fd(-1)
    for end in job.parents_only:
        end.close()
    for number in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C reaches the whole group; the supervisor passes it on
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, _until_orphaned(interrupt_once(), job.supervisor, job.grace_seconds))
    os.register_at_fork(after_in_child=lambda: _forget(job))
    die_with_parent(job.supervisor, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)


def _work(job: RankJob, rank: int) -> int:
    comm = LocalComm(rank, job.ranks, token=job.token, timeout_seconds=job.timeout_seconds)
    try:
        status = job.main(comm)
    except BaseException as error:
        comm.abort(_describe(rank, error).status)
        raise
    comm.close()
    return status


def _until_orphaned(handler: Handler, supervisor: int, grace_seconds: float) -> Handler:
    """Wrap a handler so that the kernel kills a rank which outlives its supervisor by more than the grace."""

    def handle(signal_number: int, frame: FrameType | None) -> None:
        if os.getppid() != supervisor:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, max(grace_seconds, 0.001))
        handler(signal_number, frame)

    return handle


def _forget(job: RankJob) -> None:
    """In a rank's own forked children (a loader's workers): SIGTERM simply ends them, and reports are not theirs."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    job.reports.close()


def _describe(rank: int, error: BaseException) -> Failure:
    text = ""
    if isinstance(error, DlemuError):
        message, status = str(error), error.exit_status
    elif isinstance(error, Interrupted):
        message, status = (
            f"rank {rank} was told to stop ({signal.Signals(error.signal_number).name})",
            error.exit_status,
        )
    elif isinstance(error, SystemExit) and isinstance(error.code, int):
        message, status = f"rank {rank} ended with exit status {error.code}", error.code
    else:
        message, status = f"rank {rank}: {type(error).__name__}: {error}", UNFORESEEN_STATUS
        text = "".join(traceback.format_exception(error))
    return Failure(
        rank=rank,
        kind=type(error).__name__,
        message=message[:_LONGEST_TEXT],
        status=status,
        at_ns=time.monotonic_ns(),
        echo=isinstance(error, PeerLostError),
        traceback=text[-_LONGEST_TEXT:],
    )

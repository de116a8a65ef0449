"""Fork the ranks of one host from this process, and stay until all of them and all they started have ended."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from datagen.errors import SpaceError
from dlemu.comm.comm_base import Comm
from dlemu.comm.descendants import children_of_this_process, end_adopted
from dlemu.comm.failure import RankEnd
from dlemu.comm.process import adopt_orphans
from dlemu.comm.rank_process import RankJob, live
from dlemu.comm.supervise import Supervisor

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_ranks(
    ranks: int,
    main: Callable[[Comm], int],
    *,
    timeout_seconds: float,
    grace_seconds: float = 5.0,
    on_start: Callable[[Sequence[int]], None] | None = None,
) -> list[RankEnd]:
    """Run `main(comm)` in `ranks` forked processes and return how each of them ended, in rank order.

    `main` returns its rank's exit status; anything but 0 counts as a failure, as does an exception or a signal. After
    the first failure the other ranks have `grace_seconds`: a fifth of it to notice by themselves, then they get
    SIGTERM (`Interrupted` is raised in them once), at the end SIGKILL. Ctrl-C, SIGTERM and SIGHUP to this process
    tell the ranks to stop at once and show as failures of kind `Interrupted` with status 130, 143 or 129.
    `first_failure(ends)` picks the cause. `on_start` gets the ranks' process ids once all are there.

    Call it from the main thread, after the imports that ranks share. While it runs, this process adopts the orphans
    of its descendants: no child that appears meanwhile outlives the call.

    Raises SpaceError when the system has no room for that many processes.
    """
    known = children_of_this_process()
    receiver, sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.ExitStack() as stack:
        stack.enter_context(receiver)
        stack.enter_context(sender)
        wakeups, waker = stack.enter_context(_signals_as_bytes())
        stack.callback(adopt_orphans, adopt_orphans(True))
        stack.callback(end_adopted, known, wakeups, grace_seconds)
        job = RankJob(
            main=main,
            ranks=ranks,
            token=secrets.token_hex(16),
            timeout_seconds=timeout_seconds,
            grace_seconds=grace_seconds,
            supervisor=os.getpid(),
            reports=sender,
            parents_only=(receiver, wakeups, waker),
        )
        supervisor = Supervisor(receiver, wakeups, grace_seconds)
        stack.callback(supervisor.end)
        processes = _fork_all(job, supervisor)
        if on_start is not None:
            on_start(processes)
        return supervisor.wait()


def _fork_all(job: RankJob, supervisor: Supervisor) -> list[int]:
    """Fork the ranks and return their process ids. They share this process's pages as long as none is written."""
    processes: list[int] = []
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.freeze()  # else the collector's marks would copy every page in every rank
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOP_SIGNALS, signal.SIGCHLD))
    try:
        for rank in range(job.ranks):
            process = os.fork()
            if process == 0:
                live(job, rank, mask)
            supervisor.add(process, rank)
            processes.append(process)
    except OSError as error:
        raise SpaceError(
            f"rank {len(processes)} of {job.ranks} could not be started ({error}): use fewer ranks, or raise the "
            "limit on processes (`ulimit -u`) or memory"
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        gc.unfreeze()
    return processes


@contextlib.contextmanager
def _signals_as_bytes() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Turn the stop signals and SIGCHLD into bytes on the first socket of the pair, and put back what was before.

    A stop signal that this process ignores (nohup, a background job of a script) stays ignored.
    """
    wakeups, waker = socket.socketpair()
    waker.setblocking(False)
    numbers = [number for number in _STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _note) for number in [*numbers, signal.SIGCHLD]}
    fd_before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    try:
        yield wakeups, waker
    finally:
        signal.set_wakeup_fd(fd_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        wakeups.close()
        waker.close()


def _note(signal_number: int, frame: FrameType | None) -> None:
    """Do nothing: the byte on the wakeup socket says it all, but Python writes it only for signals with a handler."""

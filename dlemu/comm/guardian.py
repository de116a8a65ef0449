"""Processes that watch over a launcher's rank, for when the launcher kills or blocks it and its own handlers can't run.

mpirun answers one rank's death by killing all others with SIGKILL. A guardian is a tiny process, forked early and
detached from the launcher's session: when the rank is gone without having released it, it saves what was measured
(the step logs are in files mapped into memory, so they survive their rank) and removes what MPI left in /dev/shm.

MPI_Init spins forever for ranks that never come, and nothing in this process can end that wait: MPI_Init holds the
interpreter. So a child that was forked before acts as the timer (`start_within`).
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from dlemu.comm.comm_base import launcher_rank
from dlemu.comm.process_control import after_fork_in_child, flush_output, name_process, stands_still

_SAVING_SECONDS = 300  # `on_loss` may take this long; then SIGALRM ends the guardian, so that none stays forever
_READY, _RELEASED = b"g", b"r"
_LOOK_SECONDS = 1.0  # how often to check whether the rank is stopped (SIGSTOP)
_TURN_SECONDS = 0.3  # ranks report a common failure this far apart: the first report makes the launcher end the others
_MOST_TURNS = 10  # so the last rank waits 3 s, however many there are
_MPI_MEMORY = ("mpich_shm", "sm_segment", "vader_segment")


class Guardian:
    """The rank's handle on its guardian process. Release it once nothing is left to save."""

    def __init__(self, process: int, channel: socket.socket) -> None:
        self._process, self._channel = process, channel
        after_fork_in_child(channel.close)  # the guardian sees its rank's end only once no process holds the channel

    def release(self) -> None:
        """End the guardian without `on_loss`; further calls do nothing."""
        with contextlib.suppress(OSError):  # released before, or it was killed
            self._channel.sendall(_RELEASED)
        self._channel.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._process, 0)

    def save(self) -> None:
        """Have the guardian call `on_loss` now, and wait until it has ended."""
        self._channel.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._process, 0)


def watch(on_loss: Callable[[], None], stopped_seconds: float = math.inf) -> Guardian:
    """Fork a guardian, which calls `on_loss` when this process (a rank) has ended without `release()`.

    It kills this process once it has been stopped (SIGSTOP) for `stopped_seconds`: other ranks might wait for it
    forever.

    Call it before heavy imports (the guardian would keep their pages), and after MPI has started: it also removes the
    shared memory of a killed MPI job. `on_loss` runs without standard input and output, for five minutes at most. Keep
    the returned object: when it is garbage-collected, the guardian takes that for the end of the rank.
    """
    ours, theirs = socket.socketpair()
    process = os.fork()
    if process == 0:
        _stand_guard(theirs.fileno(), on_loss, stopped_seconds)
    theirs.close()
    ours.recv(1)  # the guardian has left the launcher's session
    return Guardian(process, ours)


def _stand_guard(channel: int, on_loss: Callable[[], None], stopped_seconds: float) -> NoReturn:
    status = 1
    try:
        _leave_the_launcher(channel)
        os.write(0, _READY)
        if not _is_released(stopped_seconds):
            signal.alarm(_SAVING_SECONDS)
            remove_shared_memory()
            on_loss()
        status = 0
    finally:
        os._exit(status)


def _is_released(stopped_seconds: float) -> bool:
    """Wait for the release, or the end of the rank; a rank that stays stopped for too long is killed.

    Time is counted in checks: none passes while the whole job is suspended, guardian included.
    """
    rank, stood_seconds = os.getppid(), 0.0
    while not select.select([0], [], [], _LOOK_SECONDS)[0]:
        stood_seconds = stood_seconds + _LOOK_SECONDS if stands_still(rank) else 0.0
        if stood_seconds > stopped_seconds:
            os.kill(rank, signal.SIGKILL)
    try:
        return os.read(0, 1) == _RELEASED
    except ConnectionResetError:
        return False


def _leave_the_launcher(channel: int) -> None:
    """Leave the launcher's session and close every descriptor it might wait on; the channel becomes descriptor 0."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    os.dup2(channel, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    name_process("dlemu-guardian")


@contextlib.contextmanager
def start_within(seconds: float) -> Iterator[None]:
    """Send this process SIGTERM, and say why on stderr, when the body of the `with` takes longer than `seconds`."""
    theirs, ours = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        _keep_time(theirs, seconds)
    os.close(theirs)
    try:
        yield
    finally:
        os.close(ours)  # the child sees that and ends
        os.waitpid(child, 0)


def _keep_time(channel: int, seconds: float) -> NoReturn:
    try:
        name_process("dlemu-start")
        if not select.select([channel], [], [], seconds + turn_seconds())[0]:
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
    finally:
        os._exit(0)


def turn_seconds() -> float:
    """Return how long this rank waits before it reports what every rank would: the first report ends the others."""
    return _TURN_SECONDS * min(launcher_rank(), _MOST_TURNS)


def remove_shared_memory(process: int | str = "self") -> None:
    """Unlink the MPI library's files in /dev/shm that a process has mapped, of a job that is lost."""
    for path in _mapped(process):
        with contextlib.suppress(OSError):  # another rank was faster
            os.unlink(path)


def _mapped(process: int | str) -> set[str]:
    with open(f"/proc/{process}/maps", errors="surrogateescape") as maps:
        paths = {line.rstrip("\n").partition("/")[2] for line in maps if "/dev/shm/" in line}
    return {f"/{path}" for path in paths if os.path.basename(path).startswith(_MPI_MEMORY)}

"""A witness for a rank that may be killed without warning.

mpirun answers one rank's death by killing all others with SIGKILL, and no handler runs then. A guardian is a tiny
process that was forked off early and outside the launcher's reach: when the rank is gone without having released it,
it saves what was measured (the step logs lie in files mapped into memory, so they survive their rank).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from typing import NoReturn

from dlemu.comm.leftovers import remove_shared_memory
from dlemu.comm.process import after_fork_in_child, name_process

_LONGEST_SECONDS = 300  # what `on_loss` may take before the kernel ends the guardian, so that none stays for ever
_READY, _RELEASED = b"g", b"r"


class Guardian:
    """The rank's side. Release it once nothing is left to save."""

    def __init__(self, process: int, line: socket.socket) -> None:
        self._process, self._line = process, line
        after_fork_in_child(line.close)  # a worker that held the line would hide its rank's end

    def release(self) -> None:
        """End the guardian without `on_loss`; further calls do nothing."""
        with contextlib.suppress(OSError):  # released before, or somebody killed it
            self._line.sendall(_RELEASED)
        self._line.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._process, 0)


def watch(on_loss: Callable[[], None]) -> Guardian:
    """Fork a process that calls `on_loss` when this one has ended without `release()`.

    Call it before heavy imports (it keeps their pages), and after MPI has started: the guardian then also removes the
    shared memory that a killed MPI job leaves behind. `on_loss` runs without standard input and output, may import what
    it needs, and is ended after five minutes. Keep the result: a guardian that is garbage-collected takes that for
    the end of its rank.
    """
    ours, theirs = socket.socketpair()
    process = os.fork()
    if process == 0:
        _stand_guard(theirs.fileno(), on_loss)
    theirs.close()
    ours.recv(1)  # it is out of the launcher's reach now
    return Guardian(process, ours)


def _stand_guard(line: int, on_loss: Callable[[], None]) -> NoReturn:
    status = 1
    try:
        _leave_the_launcher(line)
        os.write(0, _READY)
        if not _is_released():
            signal.alarm(_LONGEST_SECONDS)
            remove_shared_memory()
            on_loss()
        status = 0
    finally:
        os._exit(status)


def _is_released() -> bool:
    """Wait for the rank's word, or its end."""
    try:
        return os.read(0, 1) == _RELEASED
    except ConnectionResetError:
        return False


def _leave_the_launcher(line: int) -> None:
    """Get out of reach of the launcher's signals and let go of all it could wait for; the line becomes descriptor 0."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    os.dup2(line, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    name_process("dlemu-guardian")

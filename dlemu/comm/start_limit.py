"""A time limit for starting MPI, whose own start waits for ever, on a busy core, for ranks that never come.

Nothing in this process could end that wait: MPI_Init holds the interpreter. So a child that was forked off before keeps
the time.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterator
from typing import NoReturn

from dlemu.comm.comm_base import launcher_rank
from dlemu.comm.leftovers import remove_shared_memory
from dlemu.comm.process import let_output_leave, name_process

_TURN_SECONDS = 0.3  # between ranks, so that the launcher has ended them all when the first has spoken
_MOST_TURNS = 10


@contextlib.contextmanager
def start_within(seconds: float) -> Iterator[None]:
    """End this process by SIGTERM, and say why on stderr, when what is inside takes longer."""
    theirs, ours = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        _keep_time(theirs, seconds)
    os.close(theirs)
    try:
        yield
    finally:
        os.close(ours)  # it ends at that
        os.waitpid(child, 0)


def _keep_time(line: int, seconds: float) -> NoReturn:
    try:
        name_process("dlemu-start")
        turn_seconds = _TURN_SECONDS * min(launcher_rank(), _MOST_TURNS)
        if not select.select([line], [], [], seconds + turn_seconds)[0]:
            print(
                f"dlemu: MPI did not start within {seconds:g} s (timeout_seconds): a rank that the launcher started "
                "hangs before it, or MPI can't reach it; look at the other hosts, or raise timeout_seconds",
                file=sys.stderr,
                flush=True,
            )
            let_output_leave()
            if not select.select([line], [], [], 0)[0]:
                remove_shared_memory(os.getppid())
                os.kill(os.getppid(), signal.SIGTERM)
    finally:
        os._exit(0)

"""Nothing may outlive a run: find what ended ranks left behind and end it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time

import psutil

_LEAST_GIVE_UP_SECONDS = 2.0
_LOOK_AGAIN_MILLISECONDS = 50  # a process further down is adopted only after the one above it has ended


def children_of_this_process() -> frozenset[int]:
    """Return the process ids of the direct children."""
    return frozenset(child.pid for child in psutil.Process().children())


def end_adopted(known: frozenset[int], wakeups: socket.socket, grace_seconds: float) -> int:
    """End every descendant of this process that does not descend from `known`; return how many there were.

    They get SIGTERM, and SIGKILL after the grace; those that are about to end by themselves (a resource tracker
    that cleans up when its last user is gone ignores SIGTERM) have that time to do so. `wakeups` gets a byte for each
    SIGCHLD. This process must be the one that adopts orphans (`dlemu.comm.process.adopt_orphans`).
    """
    kill_seconds = time.monotonic() + grace_seconds
    told: set[int] = set()
    while adopted := [child for child in psutil.Process().children() if child.pid not in known]:
        for process in [*adopted, *_below(adopted)]:
            if time.monotonic() >= kill_seconds:
                _signal(process, signal.SIGKILL)
            elif process.pid not in told:
                _signal(process, signal.SIGTERM)
            told.add(process.pid)
        reaped = [child for child in adopted if _reap(child)]
        if not reaped and time.monotonic() >= kill_seconds + give_up_seconds(grace_seconds):
            break
        if not reaped:
            select.select([wakeups], [], [], _LOOK_AGAIN_MILLISECONDS / 1000)
            with contextlib.suppress(BlockingIOError):
                wakeups.recv(4096, socket.MSG_DONTWAIT)
    return len(told)


def give_up_seconds(grace_seconds: float) -> float:
    """Return how long to wait for the end of a killed process.

    A process that waits in the kernel for a storage that hangs cannot be killed, and must not hold the rest.
    """
    return max(grace_seconds, _LEAST_GIVE_UP_SECONDS)


def _below(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += process.children(recursive=True)
    return found


def _reap(child: psutil.Process) -> bool:
    """Reap a child if it has ended; what it leaves is adopted by then, so the next look finds it."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(child.pid, os.WNOHANG)[0] != 0
    return True


def _signal(process: psutil.Process, signal_number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal_number)

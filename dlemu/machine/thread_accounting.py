"""The kernel's accounting of a thread: its CPU time, its time waiting for a core, and bytes fetched from storage.

No privilege is needed. The clock of a thread (CLOCK_THREAD_CPUTIME_ID), `schedstat` (Documentation/scheduler/
sched-stats.rst: time waiting on a runqueue, in ns) and getrusage(2)'s `ru_inblock` (what the task really caused to be
fetched from the storage layer, in units of 512 bytes: the counter that proc(5) shows as `read_bytes`, read in a fifth
of the time) are those of the calling thread; reading all three costs a few microseconds.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

_MOST_BYTES = 512  # to read at most of schedstat, which is shorter than 200 bytes
_BLOCK_BYTES = 512  # unit of `ru_inblock`, whatever the device's block size (include/linux/task_io_accounting_ops.h)


class Account(NamedTuple):
    """What a thread has used so far; zeros where the kernel does not account for it."""

    cpu_ns: int = 0
    cpu_wait_ns: int = 0
    storage_bytes: int = 0


class ThreadAccounting(threading.local):
    """The kernel's account of whichever thread calls; several threads may share one object."""

    def __init__(self) -> None:
        """Called in each thread when it first uses the object."""
        self._schedule = _Schedule()

    def look(self) -> Account:
        storage_bytes = resource.getrusage(resource.RUSAGE_THREAD).ru_inblock * _BLOCK_BYTES
        return Account(*self.scheduled(), storage_bytes)

    def scheduled(self) -> tuple[int, int]:
        """Return the calling thread's cpu_ns and cpu_wait_ns alone, in half the time that `look` takes."""
        try:
            words = os.pread(self._schedule.descriptor, _MOST_BYTES, 0).split()
        except OSError:
            return 0, 0
        # schedstat's first number, the CPU time, is only updated at a timer tick (4 ms) or when the thread sleeps: most
        # of the time of shorter batches would be missing. So the thread's clock is read instead.
        return time.thread_time_ns(), int(words[1])


class _Schedule:
    """A thread's own schedstat, open until the thread has ended."""

    def __init__(self) -> None:
        self.descriptor = -1  # where the kernel has none
        with contextlib.suppress(OSError):
            self.descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


def process_storage_bytes() -> int:
    """Return how many bytes all threads of this process have fetched from storage; 0 where that is not known."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock * _BLOCK_BYTES


def thread_cpu_ns(chosen: Callable[[str], bool]) -> int:
    """Return the CPU time, in ns, of this process's threads whose names `chosen` accepts."""
    total = 0
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # the thread has ended
            if chosen(_read(f"/proc/self/task/{thread}/comm").decode(errors="replace").strip()):
                total += int(_read(f"/proc/self/task/{thread}/schedstat").split()[0])
    return total


def _read(path: str) -> bytes:
    """Read a file of /proc in half the time of a text file: a loader asks for each thread, twice a batch."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)

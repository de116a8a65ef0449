"""The kernel's accounting of a thread: its CPU time, its time waiting for a core, and bytes fetched from storage.

The calling thread reads its own clock (CLOCK_THREAD_CPUTIME_ID), `schedstat` (nanoseconds of waiting on a runqueue:
Documentation/scheduler/sched-stats.rst) and `ru_inblock` of getrusage(2), the 512-byte units fetched from storage for
it. These are `read_bytes` of proc(5), in a fifth of the time. All three take a few microseconds and no privilege.
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

_READ_BYTES = 512  # maximum to read of schedstat, which is shorter than 200 bytes
_BLOCK_BYTES = 512  # unit of `ru_inblock`, whatever the device's block size (include/linux/task_io_accounting_ops.h)


class Account(NamedTuple):
    """A thread's use of resources so far; a field is 0 if the kernel does not account for it."""

    cpu_ns: int = 0
    cpu_wait_ns: int = 0
    storage_bytes: int = 0


class ThreadAccounting(threading.local):
    """Reads the kernel's account of the calling thread; several threads may share one object."""

    def __init__(self) -> None:
        """Called in each thread at its first use of the object (`threading.local`)."""
        self._schedule = _Schedule()

    def look(self) -> Account:
        storage_bytes = resource.getrusage(resource.RUSAGE_THREAD).ru_inblock * _BLOCK_BYTES
        return Account(*self.scheduled(), storage_bytes)

    def scheduled(self) -> tuple[int, int]:
        """Return the calling thread's cpu_ns and cpu_wait_ns only, in half the time of `look`."""
        try:
            words = os.pread(self._schedule.descriptor, _READ_BYTES, 0).split()
        except OSError:
            return 0, 0
        # The thread's clock replaces the first number of schedstat, the CPU time, which the kernel updates only at a
        # timer tick (4 ms) or when the thread sleeps: most of the time of shorter batches would be missing.
        return time.thread_time_ns(), int(words[1])


class _Schedule:
    """A thread's own schedstat file, kept open until the thread has ended."""

    def __init__(self) -> None:
        self.descriptor = -1  # for kernels without schedstat
        with contextlib.suppress(OSError):
            self.descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self.descriptor)


def process_storage_bytes() -> int:
    """Return the bytes that all threads of this process have fetched from storage; 0 if the kernel does not count."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_inblock * _BLOCK_BYTES


def thread_cpu_ns(is_chosen: Callable[[str], bool]) -> int:
    """Return the CPU time (ns) of this process's threads whose names satisfy `is_chosen`."""
    total = 0
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # the thread has ended
            if is_chosen(_read(f"/proc/self/task/{thread}/comm").decode(errors="replace").strip()):
                total += int(_read(f"/proc/self/task/{thread}/schedstat").split()[0])
    return total


def _read(path: str) -> bytes:
    """Read a file of /proc without buffering, in half the time: a loader reads those of all threads twice per batch."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _READ_BYTES)
    finally:
        os.close(descriptor)

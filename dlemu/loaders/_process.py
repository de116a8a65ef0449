"""Rules for reading processes: they yield the core to trainers, never outlive their rank, and keep freed memory."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from dlemu.ranks import die_with_parent

# glibc's malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_MAX_INT = (1 << 31) - 1  # mallopt(3) takes an int
_GROW_BYTES = 64 << 20  # the step in which the heap grows: with small steps every large batch costs system calls
_MAX_ARENAS = 4
"""Number of malloc arenas. With one, threads wait for each other; each further one held 25 MB in a fast pipeline."""


def init_worker(nice: int, rank_process: int, worker: int) -> None:
    """Lower this worker's priority, ignore Ctrl-C (the rank handles it), and die when the rank dies for any reason.

    A worker that a fork server started dies with the server, which ends with the rank. Worker 0, which makes each
    epoch's first batch, gets a higher priority than the others: the rank waits for that batch, and at the start of an
    epoch all workers wake, often more than there are cores. In a real job each rank has a core, so waiting for a core
    must not count as waiting for the storage.
    """
    has_server = multiprocessing.get_start_method(allow_none=True) == "forkserver"
    die_with_parent(os.getppid() if has_server else rank_process)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(nice if worker else nice // 4)
    gc.freeze()  # objects inherited from the rank stay on pages shared with it


T = TypeVar("T")


def call_niced(call: Callable[[], T], nice: int) -> T:
    """Call in a thread whose niceness is raised by `nice`; threads that the call starts inherit it (Linux)."""
    with ThreadPoolExecutor(1, "dlemu-starter", initializer=os.nice, initargs=(nice,)) as starter:
        return starter.submit(call).result()


def keep_freed_memory() -> None:
    """Have malloc keep the memory that this process frees, for its next requests.

    By default glibc returns large blocks to the kernel as they are freed, and the kernel zeroes each page again at the
    next touch: in a pipeline that allocates each batch anew this took more than half of all CPU time. The price is that
    the heap stays at its peak size. Does nothing with other C libraries.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, _MAX_INT)
    mallopt(_TOP_PAD, _GROW_BYTES)
    mallopt(_ARENA_MAX, min(_MAX_ARENAS, len(os.sched_getaffinity(0))))

"""How processes that read behave: they yield the core to trainers, never outlive their rank, keep freed memory."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

from dlemu.comm import die_with_parent

# glibc's malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_MOST = (1 << 31) - 1  # mallopt(3) takes an int
_GROW_BYTES = 64 << 20  # how far the heap grows at once: in small steps every large batch costs system calls
_MOST_ARENAS = 4
"""Heaps side by side. With a single one threads wait for each other; each more kept 25 MB of a fast pipeline."""


def init_worker(nice: int, rank_process: int) -> None:
    """Lower this worker's priority, leave Ctrl-C to the rank, and die with the rank whatever ends it.

    A worker that a fork server made dies with the server, which ends with the rank.
    """
    parent = os.getppid()
    die_with_parent(parent if _is_fork_server_child(parent, rank_process) else rank_process)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(nice)
    gc.freeze()  # what came from the rank stays on pages shared with it


T = TypeVar("T")


def lowered(call: Callable[[], T], nice: int) -> T:
    """Make a call in a thread of lower priority, which all threads inherit that it starts (Linux)."""
    made: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        os.nice(nice)
        try:
            made.append(call())
        except BaseException as error:  # carried to the caller, whatever it is
            failed.append(error)

    starter = threading.Thread(target=run, name="dlemu-starter")
    starter.start()
    starter.join()
    if failed:
        raise failed[0]
    return made[0]


def _is_fork_server_child(parent: int, rank_process: int) -> bool:
    return parent != rank_process and multiprocessing.get_start_method(allow_none=True) == "forkserver"


def keep_freed_memory() -> None:
    """Have malloc keep what this process frees, for what it requests next.

    By default glibc gives large blocks back as they are freed, and the kernel makes each page again, zeroed, when it is
    touched again: of a pipeline that makes its batches in fresh memory that was more than half of all CPU time. The
    heap then stays as large as it was at its fullest. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    arenas = min(_MOST_ARENAS, len(os.sched_getaffinity(0)))
    for setting, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _MOST), (_TOP_PAD, _GROW_BYTES), (_ARENA_MAX, arenas)):
        mallopt(setting, value)

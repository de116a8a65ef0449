"""Threads that are there before anything is measured: on a busy host one can take tens of milliseconds to start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class StartedPool:
    """So many threads, the caller's own among them, of which all run."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(max(1, threads - 1), name)
        started = threading.Barrier(threads)
        for _ in range(threads - 1):
            self._pool.submit(started.wait)
        started.wait()

    def run(self, work: Callable[[int], None], threads: int | None = None) -> None:
        """Do the work on each thread, which gets its number; raises what it raised once all have ended.

        With `threads` on so many of them: one that is woken for nothing costs as much as a small read.
        """
        others = [self._pool.submit(work, number) for number in range(1, threads or self._threads)]
        try:
            work(0)
        finally:
            failures = [failure for other in others if (failure := other.exception())]
        if failures:
            raise failures[0]

    def shutdown(self) -> None:
        """End the threads."""
        self._pool.shutdown()

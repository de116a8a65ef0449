"""A thread pool whose threads all run before a measurement: on a busy host starting one can take tens of ms."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class StartedPool:
    """A pool of `threads` running threads, one of which is the caller's own."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(max(1, threads - 1), name)
        started = threading.Barrier(threads)
        for _ in range(threads - 1):
            self._pool.submit(started.wait)
        started.wait()

    def run(self, work: Callable[[int], None], threads: int | None = None) -> None:
        """Call `work(number)` on every thread; when all have returned, raise the first exception.

        `threads` limits it to fewer: waking a thread that has nothing to do costs as much as a small read.
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

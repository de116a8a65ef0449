"""Threads that are there before anything is measured: on a busy host one can take tens of milliseconds to start."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor


def started_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """Return a pool whose threads all run; of none it is a pool that nothing is given to."""
    pool = ThreadPoolExecutor(max(1, threads), name)
    started = threading.Barrier(threads + 1)
    for _ in range(threads):
        pool.submit(started.wait)
    started.wait()
    return pool

"""The threads that move a file's bytes between memory and storage, and measure the columns of its row (`io_rows`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dlemu.machine.thread_accounting import ThreadAccounting, process_storage_bytes

Columns = dict[str, int]
"""A file's columns of a row of `io_rows`."""
Done = Callable[[int, Columns], None]
"""Called after each file with its number and its columns."""
_SUMMED = ("bytes", "call_ns", "starved_ns", "mover_cpu_ns", "mover_cpu_wait_ns")  # sums over the threads


def add_call(share: Columns, began_ns: int, size_bytes: int) -> None:
    """Add one write or read call, which ends now, to a thread's share of a file's columns."""
    share["call_ns"] += time.monotonic_ns() - began_ns
    share["bytes"] += size_bytes


class Movers:
    """Threads, the caller's among them, that move files one after another: call `begin`, `run`, `columns` for each."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(max(1, threads - 1), name)
        self._accounting = ThreadAccounting()
        started = threading.Barrier(threads)
        for _ in range(threads - 1):
            self._pool.submit(started.wait)
        started.wait()

    def begin(self) -> None:
        """Start the measurement of a file."""
        self._shares: list[Columns] = []
        self._storage_bytes = process_storage_bytes()
        self._cpu_ns, self._started_ns = time.process_time_ns(), time.monotonic_ns()

    def run(self, work: Callable[[int, Columns], None], stop: Callable[[], None], threads: int | None = None) -> None:
        """Call `work(thread, share)` on every thread, to add to its share of the columns; raise the first exception.

        When a thread raises one, `stop` is called, to end the work of the others. `threads` is how many threads work,
        by default all: waking a thread that has nothing to do costs as much as a small read.
        """

        def move(thread: int) -> None:
            share = dict.fromkeys(_SUMMED, 0)
            cpu_ns, (_, wait_ns) = time.thread_time_ns(), self._accounting.scheduled()
            try:
                work(thread, share)
            except BaseException:
                stop()
                raise
            share["mover_cpu_ns"] = time.thread_time_ns() - cpu_ns
            share["mover_cpu_wait_ns"] = self._accounting.scheduled()[1] - wait_ns
            self._shares.append(share)

        futures = [self._pool.submit(move, thread) for thread in range(1, threads or self._threads)]
        try:
            move(0)
        finally:
            failures = [future.exception() for future in futures]  # waits for each
        first_failure = next(filter(None, failures), None)
        if first_failure is not None:
            raise first_failure

    def columns(self, moved_ns: int, synced_ns: int) -> Columns:
        """Return the columns of a closed file whose bytes were moved at `moved_ns` and synced at `synced_ns`."""
        return {
            **{name: sum(share[name] for share in self._shares) for name in _SUMMED},
            "started_ns": self._started_ns,
            "moved_ns": moved_ns,
            "synced_ns": synced_ns,
            "ended_ns": time.monotonic_ns(),
            "threads": self._threads,
            "cpu_ns": time.process_time_ns() - self._cpu_ns,
            "storage_bytes": process_storage_bytes() - self._storage_bytes,
        }

    def close(self) -> None:
        self._pool.shutdown()

"""Movers: threads that write or read the bytes of files, and measure the columns of `io_rows`. Also their buffers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

from datagen.buffers import AlignedBuffer, round_up
from dlemu.machine.thread_accounting import ThreadAccounting, process_storage_bytes

Columns = dict[str, int]  # columns of a row of `io_rows`, by name
OnFile = Callable[[int, Columns], None]  # called after each file with its number and its columns
RING_BYTES = 128 << 20  # maximum memory for one rank's buffers, whatever the model's size
_COUNTERS = ("bytes", "call_ns", "starved_ns", "mover_cpu_ns", "mover_cpu_wait_ns")  # columns summed over threads


def make_buffers(threads: int, piece_bytes: int, largest_file_bytes: int) -> list[memoryview]:
    """Return 2 * threads + 2 aligned buffers for pieces of files; fewer to fit RING_BYTES, but at least threads + 1."""
    piece_bytes = min(piece_bytes, round_up(max(1, largest_file_bytes), 4096))
    count = min(2 * threads + 2, RING_BYTES // piece_bytes)
    return split_buffer(max(threads + 1, count), piece_bytes)


def split_buffer(count: int, piece_bytes: int) -> list[memoryview]:
    """Return `count` aligned buffers, cut from one allocation so that it can use huge pages."""
    buffer = AlignedBuffer(count * piece_bytes)
    buffer.take_pages()
    view = buffer.view(count * piece_bytes)
    return [view[start : start + piece_bytes] for start in range(0, len(view), piece_bytes)]


class Movers:
    """Threads, among them the caller's, that move one file after another. For each file, call `run` in `measured`."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(max(1, threads - 1), name)
        self._accounting = ThreadAccounting()
        started = threading.Barrier(threads)
        for _ in range(threads - 1):
            self._pool.submit(started.wait)
        started.wait()

    @contextmanager
    def measured(self) -> Iterator[Columns]:
        """Context in which a file is opened, moved and closed: yield its columns, which are complete when it ends."""
        storage_bytes_before = process_storage_bytes()
        cpu_ns_before = time.process_time_ns()
        columns = dict.fromkeys(_COUNTERS, 0) | {"threads": self._threads, "started_ns": time.monotonic_ns()}
        yield columns
        columns["ended_ns"] = time.monotonic_ns()
        columns["cpu_ns"] = time.process_time_ns() - cpu_ns_before
        columns["storage_bytes"] = process_storage_bytes() - storage_bytes_before

    def run(
        self,
        work: Callable[[int, Columns], None],
        columns: Columns,
        cancel: Callable[[], None],
        threads: int | None = None,
    ) -> None:
        """Call `work(thread, counters)` on each thread, and add up their counters in `columns`.

        If a thread raises an exception, `cancel` is called to end the work of the others, and the exception is raised.
        `threads` limits how many threads are woken (default: all), because waking one costs as much as a small read.
        """

        def move(thread: int) -> Columns:
            counters = dict.fromkeys(_COUNTERS, 0)
            cpu_ns_before = time.thread_time_ns()
            _, wait_ns_before = self._accounting.scheduled()
            try:
                work(thread, counters)
            except BaseException:
                cancel()
                raise
            counters["mover_cpu_ns"] = time.thread_time_ns() - cpu_ns_before
            counters["mover_cpu_wait_ns"] = self._accounting.scheduled()[1] - wait_ns_before
            return counters

        futures = [self._pool.submit(move, thread) for thread in range(1, threads or self._threads)]
        try:
            by_thread = [move(0)]
        finally:
            wait(futures)
        by_thread += [future.result() for future in futures]
        columns |= {name: sum(counters[name] for counters in by_thread) for name in _COUNTERS}
        columns["moved_ns"] = columns["synced_ns"] = time.monotonic_ns()  # an fsync sets the latter again

    def close(self) -> None:
        self._pool.shutdown()

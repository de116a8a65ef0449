"""Threads and buffers that move a file's bytes between memory and storage, and measure the columns of `io_rows`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

from datagen.buffers import AlignedBuffer
from dlemu.machine.thread_accounting import ThreadAccounting, process_storage_bytes

Columns = dict[str, int]
"""A file's columns of a row of `io_rows`."""
Done = Callable[[int, Columns], None]
"""Called after each file with its number and its columns."""
RING_BYTES = 128 << 20  # maximum memory for one rank's buffers, whatever the model's size
_SUMMED = ("bytes", "call_ns", "starved_ns", "mover_cpu_ns", "mover_cpu_wait_ns")  # sums over the threads


def make_buffers(threads: int, piece_bytes: int, largest_file_bytes: int) -> list[memoryview]:
    """Return 2 * threads + 2 aligned buffers; fewer if `RING_BYTES` requires it, but at least threads + 1."""
    piece_bytes = min(piece_bytes, -(-max(1, largest_file_bytes) // 4096) * 4096)
    return split_buffer(max(threads + 1, min(2 * threads + 2, RING_BYTES // piece_bytes)), piece_bytes)


def split_buffer(count: int, piece_bytes: int) -> list[memoryview]:
    """Return aligned buffers from one allocation, which is large enough for huge pages."""
    buffer = AlignedBuffer(count * piece_bytes)
    buffer.take_pages()
    view = buffer.view(count * piece_bytes)
    return [view[start : start + piece_bytes] for start in range(0, len(view), piece_bytes)]


class Movers:
    """Threads, the caller's among them, that move files one after another: `run` in the context `measured` of each."""

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
        """Context: yield the columns of a file, which are complete at the end; it is closed by then."""
        storage_bytes, cpu_ns = process_storage_bytes(), time.process_time_ns()
        columns = dict.fromkeys(_SUMMED, 0) | {"threads": self._threads, "started_ns": time.monotonic_ns()}
        yield columns
        columns["ended_ns"] = time.monotonic_ns()
        columns["cpu_ns"] = time.process_time_ns() - cpu_ns
        columns["storage_bytes"] = process_storage_bytes() - storage_bytes

    def run(
        self,
        work: Callable[[int, Columns], None],
        columns: Columns,
        stop: Callable[[], None],
        threads: int | None = None,
    ) -> None:
        """Call `work(thread, share)` on every thread, to add to its share of the `columns`; raise the first exception.

        When a thread raises one, `stop` is called, to end the work of the others. `threads` is how many threads work,
        by default all: waking a thread that has nothing to do costs as much as a small read.
        """

        def move(thread: int) -> Columns:
            share = dict.fromkeys(_SUMMED, 0)
            cpu_ns, (_, wait_ns) = time.thread_time_ns(), self._accounting.scheduled()
            try:
                work(thread, share)
            except BaseException:
                stop()
                raise
            share["mover_cpu_ns"] = time.thread_time_ns() - cpu_ns
            share["mover_cpu_wait_ns"] = self._accounting.scheduled()[1] - wait_ns
            return share

        futures = [self._pool.submit(move, thread) for thread in range(1, threads or self._threads)]
        try:
            shares = [move(0)]
        finally:
            wait(futures)
        shares += [future.result() for future in futures]
        columns |= {name: sum(share[name] for share in shares) for name in _SUMMED}
        columns["moved_ns"] = columns["synced_ns"] = time.monotonic_ns()

    def close(self) -> None:
        self._pool.shutdown()

"""Buffers that one thread fills with content ahead of the writing threads, so that writes are timed without filling.

generating thread: free buffers -> fill -> `_filled` queue -> writing threads, in `pieces` -> free buffers
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue

from datagen.buffers import AlignedBuffer
from dlemu.checkpoints.movers import Columns
from dlemu.ranks.process_control import start_thread

RING_BYTES = 128 << 20  # maximum memory for one rank's buffers, whatever the model's size
Fill = Callable[[memoryview, int], None]  # fills a buffer with a file's bytes from an offset on


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


class PieceRing:
    """Pieces of files in order, generated ahead of their use as far as the buffers reach.

    The generating thread ends after the last piece, or at `close`.
    """

    def __init__(self, files: Sequence[tuple[int, Fill]], buffers: Sequence[memoryview], takers: int) -> None:
        """`files` are (bytes, fill), in order. For each, each of `takers` threads iterates over `pieces` to its end."""
        self._files, self._takers, self._piece_bytes = files, takers, len(buffers[0])
        self._free: SimpleQueue[memoryview | None] = SimpleQueue()
        for buffer in buffers:
            self._free.put(buffer)
        self._filled: SimpleQueue[tuple[memoryview, int, memoryview] | BaseException | None] = SimpleQueue()
        self._is_full = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="checkpoint-content", daemon=True)
        start_thread(self._thread)

    def wait_full(self) -> None:
        """Wait until all buffers are filled, or all content is generated."""
        self._is_full.wait()

    def pieces(self, share: Columns) -> Iterator[tuple[memoryview, int]]:
        """Yield pieces of the current file, with their offsets; add the time spent waiting to the thread's `share`.

        A piece is valid until the next one is requested.
        """
        while True:
            began_ns = time.monotonic_ns()
            filled = self._filled.get()
            if isinstance(filled, BaseException):
                raise filled
            if filled is None:
                return
            share["starved_ns"] += time.monotonic_ns() - began_ns
            piece, offset, buffer = filled
            yield piece, offset
            self._free.put(buffer)

    def close(self) -> None:
        """End the generating thread, and `pieces` in the threads that wait there."""
        self._closed = True
        self._free.put(None)
        self._thread.join()
        self._end_file(None)

    def _end_file(self, error: BaseException | None) -> None:
        """End `pieces` in each thread, by `error` if there is one."""
        for _ in range(self._takers):
            self._filled.put(error)

    def _run(self) -> None:
        try:
            for size_bytes, fill in self._files:
                for offset in range(0, size_bytes, self._piece_bytes):
                    if self._free.empty():
                        self._is_full.set()
                    buffer = self._free.get()
                    if buffer is None or self._closed:
                        return
                    piece = buffer[: size_bytes - offset]
                    fill(piece, offset)
                    self._filled.put((piece, offset, buffer))
                self._end_file(None)
        except BaseException as error:
            self._end_file(error)
        finally:
            self._is_full.set()

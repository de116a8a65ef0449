"""Buffers that one thread fills with content ahead of the writing threads, so that writes are measured without it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from datagen.buffers import AlignedBuffer
from dlemu.ranks.process_control import start_thread

RING_BYTES = 128 << 20
"""Maximum memory for one rank's buffers, whatever the model's size."""

Fill = Callable[[memoryview, int], None]
"""Fills a buffer with a file's bytes from an offset on."""
Piece = tuple[memoryview, int]
"""Consecutive bytes of a file, and their offset in it."""


def make_buffers(threads: int, piece_bytes: int, largest_file_bytes: int) -> list[memoryview]:
    """Return 2 * threads + 2 aligned buffers: fewer to stay within `RING_BYTES`, but at least threads + 1."""
    piece_bytes = min(piece_bytes, -(-max(1, largest_file_bytes) // 4096) * 4096)
    count = max(threads + 1, min(2 * threads + 2, RING_BYTES // piece_bytes))
    whole = AlignedBuffer(count * piece_bytes)
    whole.take_pages()
    view = whole.view(count * piece_bytes)
    return [view[start : start + piece_bytes] for start in range(0, len(view), piece_bytes)]


class PieceRing:
    """Pieces of files in order, generated ahead of their use as far as the buffers reach.

    The generating thread ends after the last piece, or at `close`.
    """

    def __init__(self, files: Sequence[tuple[int, Fill]], buffers: Sequence[memoryview], takers: int) -> None:
        """`files` are (size, content); `takers` threads each call `take` for a file until it returns None."""
        self._files, self._takers = files, takers
        self._free: SimpleQueue[memoryview | None] = SimpleQueue()
        self._whole = {id(buffer): buffer for buffer in buffers}
        self._piece_bytes = len(buffers[0])
        for buffer in buffers:
            self._free.put(buffer)
        self._filled: list[SimpleQueue[Piece | BaseException | None]] = [SimpleQueue() for _ in files]
        self._is_full = threading.Event()
        self._closed = False
        self.cpu_ns = 0
        """CPU time of filling buffers so far."""
        self._thread = threading.Thread(target=self._run, name="checkpoint-content", daemon=True)
        start_thread(self._thread)

    def wait_full(self) -> None:
        """Wait until all buffers are filled, or all content is generated."""
        self._is_full.wait()

    def take(self, file: int) -> tuple[Piece, memoryview] | None:
        """Return the next piece of a file, and its buffer for `give_back`; None after the last piece."""
        piece = self._filled[file].get()
        if isinstance(piece, BaseException):
            raise piece
        if piece is None:
            return None
        buffer = piece[0]
        return (buffer[: min(len(buffer), self._files[file][0] - piece[1])], piece[1]), buffer

    def give_back(self, buffer: memoryview) -> None:
        """Return a buffer to the ring to be filled again."""
        self._free.put(buffer)

    def close(self) -> None:
        """End the generating thread; threads waiting in `take` get None."""
        self._closed = True
        self._free.put(None)
        self._thread.join()
        for filled in self._filled:
            for _ in range(self._takers):
                filled.put(None)

    def _run(self) -> None:
        try:
            for file, (size_bytes, fill) in enumerate(self._files):
                for offset in range(0, size_bytes, self._piece_bytes):
                    buffer = self._next_free()
                    if buffer is None:
                        return
                    fill(buffer[: min(len(buffer), size_bytes - offset)], offset)
                    self.cpu_ns = time.thread_time_ns()
                    self._filled[file].put((buffer, offset))
                for _ in range(self._takers):
                    self._filled[file].put(None)
        except BaseException as error:
            for filled in self._filled:
                for _ in range(self._takers):
                    filled.put(error)
        finally:
            self._is_full.set()

    def _next_free(self) -> memoryview | None:
        try:
            buffer = self._free.get_nowait()
        except Empty:
            self._is_full.set()
            buffer = self._free.get()
        return None if self._closed else buffer

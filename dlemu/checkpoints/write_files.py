"""Writes a rank's files of one checkpoint: content is generated ahead; write calls and fsync are timed separately.

Buffers circulate: `_free` queue -> generating thread fills one -> `_filled` queue -> writing thread -> `_free` queue.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue

from datagen.storage.storage_base import StorageBase
from dlemu.checkpoints.file_content import FileContent
from dlemu.checkpoints.movers import Columns, Movers, OnFile
from dlemu.checkpoints.stored import user_error
from dlemu.config.schema import Checkpoint
from dlemu.ranks import PatienceError, within
from dlemu.ranks.process_control import start_thread

Fill = Callable[[memoryview, int], None]  # fills a buffer with a file's bytes from an offset on


class PieceRing:
    """Generates files piece by piece in a thread of its own, ahead of their use by as many pieces as there are buffers.

    The thread ends after the last piece, or at `close`.
    """

    def __init__(self, files: Sequence[tuple[int, Fill]], buffers: Sequence[memoryview], consumers: int) -> None:
        """Take (size in bytes, fill) of each file; each of the consumer threads must exhaust `pieces` once per file."""
        self._files = files
        self._consumers = consumers
        self._piece_bytes = len(buffers[0])
        self._free: SimpleQueue[memoryview | None] = SimpleQueue()
        for buffer in buffers:
            self._free.put(buffer)
        # (piece, its offset in the file, its buffer); at the end of a file None for each consumer; or an exception
        self._filled: SimpleQueue[tuple[memoryview, int, memoryview] | BaseException | None] = SimpleQueue()
        self._is_full = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="checkpoint-content", daemon=True)
        start_thread(self._thread)

    def wait_full(self) -> None:
        """Wait until all buffers are filled, or all content is generated."""
        self._is_full.wait()

    def pieces(self, counters: Columns) -> Iterator[tuple[memoryview, int]]:
        """Yield pieces of the current file with their offsets, until its end; add the waits to `starved_ns`.

        Each piece is valid until the next one is requested, because its buffer is then filled again.
        """
        while True:
            began_ns = time.monotonic_ns()
            filled = self._filled.get()
            if isinstance(filled, BaseException):
                raise filled
            if filled is None:
                return
            counters["starved_ns"] += time.monotonic_ns() - began_ns
            piece, offset, buffer = filled
            yield piece, offset
            self._free.put(buffer)

    def close(self) -> None:
        """End the generating thread, and with it `pieces` in all consumers."""
        self._closed = True
        self._free.put(None)
        self._thread.join()
        self._end_file(None)

    def _end_file(self, error: BaseException | None) -> None:
        """End `pieces` in all consumers, with an exception if one is given."""
        for _ in range(self._consumers):
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


class CheckpointWriter:
    """Writes the files of one checkpoint, one after another, each with several threads.

    The constructor fills the buffers with content, so that none of that time is measured. A file gets its name when it
    is complete.
    """

    def __init__(
        self,
        storage: StorageBase,
        files: Sequence[FileContent],
        buffers: Sequence[memoryview],
        settings: Checkpoint,
        sync_seconds: float = math.inf,
    ) -> None:
        """Take a rank's files, the buffers for their content, and the timeout of an fsync."""
        self._storage, self._files = storage, files
        self._fsync, self._sync_seconds = settings.fsync, sync_seconds
        self._ring = PieceRing([(file.size_bytes, file.fill) for file in files], buffers, settings.writers)
        self._movers = Movers(settings.writers, "checkpoint-writer")
        self._ring.wait_full()

    def write(self, on_file: OnFile) -> None:
        """Write all files, and call `on_file` after each. After an error, remove the incomplete file.

        Raises SpaceError, UserError; PatienceError for an fsync that takes too long.
        """
        try:
            for number, file in enumerate(self._files):
                try:
                    on_file(number, self._write(file))
                except OSError as error:
                    raise user_error(error, file.path, file.size_bytes) from error
        finally:
            self._movers.close()
            self._ring.close()

    def _write(self, file: FileContent) -> Columns:
        with self._movers.measured() as columns:
            writer = self._storage.create(file.path)

            def write_pieces(_: int, counters: Columns) -> None:
                for piece, offset in self._ring.pieces(counters):
                    began_ns = time.monotonic_ns()
                    writer.write_at(piece, offset)
                    counters["call_ns"] += time.monotonic_ns() - began_ns
                    counters["bytes"] += len(piece)

            try:
                self._movers.run(write_pieces, columns, self._ring.close)
                if self._fsync:
                    within(self._sync_seconds, writer.sync, f"fsync of {file.path}")
                    columns["synced_ns"] = time.monotonic_ns()
                writer.commit()
            except PatienceError:
                raise  # the storage hangs, and so would removing the file
            except BaseException:
                writer.discard()
                raise
        return columns

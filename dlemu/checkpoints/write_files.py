"""Writing a rank's files of one checkpoint: content is generated ahead; write calls and fsync are timed separately.

generating thread: free buffers -> fill -> `_filled` queue -> writing threads, in `pieces` -> free buffers
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue

from datagen.storage.storage_base import StorageBase
from dlemu.checkpoints.file_content import FileContent
from dlemu.checkpoints.movers import Columns, Done, Movers
from dlemu.checkpoints.stored import explained
from dlemu.config.schema import Checkpoint
from dlemu.ranks import PatienceError, within
from dlemu.ranks.process_control import start_thread

Fill = Callable[[memoryview, int], None]  # fills a buffer with a file's bytes from an offset on


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


class CheckpointWriter:
    """Writes the files of one checkpoint, one after another, each with several threads.

    The constructor returns when the buffers are full of generated content: measurements begin after it. Each file
    appears under its name when it is complete.
    """

    def __init__(
        self,
        storage: StorageBase,
        files: Sequence[FileContent],
        buffers: Sequence[memoryview],
        settings: Checkpoint,
        sync_seconds: float = math.inf,
    ) -> None:
        """An fsync that takes longer than `sync_seconds` raises PatienceError."""
        self._storage, self._files, self._fsync, self._sync_seconds = storage, files, settings.fsync, sync_seconds
        self._ring = PieceRing([(file.size_bytes, file.fill) for file in files], buffers, settings.writers)
        self._movers = Movers(settings.writers, "checkpoint-writer")
        self._ring.wait_full()

    def write(self, done: Done) -> None:
        """Write all files, and call `done` after each; raises SpaceError, UserError.

        After an error, the incomplete file is removed.
        """
        try:
            for number, file in enumerate(self._files):
                try:
                    done(number, self._write(file))
                except OSError as error:
                    raise explained(error, file.path, file.size_bytes) from error
        finally:
            self._movers.close()
            self._ring.close()

    def _write(self, file: FileContent) -> Columns:
        with self._movers.measured() as columns:
            writer = self._storage.create(file.path)

            def work(_: int, share: Columns) -> None:
                for data, offset in self._ring.pieces(share):
                    began_ns = time.monotonic_ns()
                    writer.write_at(data, offset)
                    share["call_ns"] += time.monotonic_ns() - began_ns
                    share["bytes"] += len(data)

            try:
                self._movers.run(work, columns, self._ring.close)
                if self._fsync:
                    within(self._sync_seconds, writer.sync, f"fsync of {file.path}")
                    columns["synced_ns"] = time.monotonic_ns()
                writer.commit()
            except PatienceError:
                raise  # removing a file of a storage that hangs would hang, too
            except BaseException:
                writer.discard()
                raise
        return columns

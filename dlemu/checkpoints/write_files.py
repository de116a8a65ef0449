"""Writing a rank's files of one checkpoint: content is generated ahead; write calls and fsync are timed separately."""

from __future__ import annotations

import contextlib
import errno
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from datagen.errors import DlemuError, SpaceError, UserError, no_space
from datagen.storage.storage_base import StorageBase, Writer
from dlemu.checkpoints.file_content import FileContent
from dlemu.checkpoints.io_rows import FileTimings
from dlemu.checkpoints.piece_ring import PieceRing
from dlemu.machine.thread_accounting import ThreadAccounting
from dlemu.ranks import PatienceError, within
from dlemu.ranks.process_control import start_thread

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, kw_only=True)
class FileToWrite:
    """One file of a checkpoint, ready to be written."""

    path: str
    content: FileContent

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return self.content.layout.size_bytes


Done = Callable[[int, dict[str, int]], None]
"""Called after each file with its number and its columns of a row of `io_rows`."""


class CheckpointWriter:
    """Writes the files of one checkpoint, one after another, each with several threads.

    Content generation begins with the constructor. Each file appears under its name when it is complete; `discard`
    removes the files written so far.
    """

    def __init__(
        self,
        storage: StorageBase,
        files: Sequence[FileToWrite],
        buffers: Sequence[memoryview],
        *,
        threads: int,
        fsync: bool,
        sync_seconds: float = math.inf,
    ) -> None:
        """An fsync that takes longer than `sync_seconds` raises PatienceError."""
        self._storage, self._files, self._threads, self._fsync = storage, files, threads, fsync
        self._sync_seconds = sync_seconds
        self._ring = PieceRing([(file.size_bytes, file.content.fill) for file in files], buffers, threads)
        self._pool = StartedPool(threads, "checkpoint-writer")
        self._accounting = ThreadAccounting()
        self._written: list[str] = []

    def wait_ready(self) -> None:
        """Wait until the buffers are full of generated content, before the measurement begins."""
        self._ring.wait_full()

    def write(self, done: Done) -> None:
        """Write all files, and call `done` after each; raises SpaceError, UserError.

        After an error, the incomplete file is removed.
        """
        try:
            for number, file in enumerate(self._files):
                done(number, self._write(number, file))
        finally:
            self._pool.shutdown()
            self._ring.close()

    def discard(self) -> None:
        """Remove the files written so far: an incomplete checkpoint only takes space."""
        with contextlib.suppress(DlemuError):  # of a server: the failure that led here is the one to report
            for path in self._written:
                with contextlib.suppress(OSError):
                    self._storage.remove(path)

    def _write(self, number: int, file: FileToWrite) -> dict[str, int]:
        content_cpu_ns = self._ring.cpu_ns
        timings = FileTimings(self._threads)
        try:
            writer = self._storage.create(file.path)
            try:
                self._pool.run(lambda _: self._move(number, writer, timings))
                moved_ns = time.monotonic_ns()
                if self._fsync:
                    within(self._sync_seconds, writer.sync, f"fsync of {file.path}")
                synced_ns = time.monotonic_ns()
                writer.commit()
            except PatienceError:
                self._written.clear()  # removing files of a storage that hangs would hang, too
                raise
            except BaseException:
                writer.discard()
                raise
        except OSError as error:
            raise explained(error, file.path, file.size_bytes) from error
        self._written.append(file.path)
        return timings.written(moved_ns, synced_ns, self._ring.cpu_ns - content_cpu_ns)

    def _move(self, number: int, writer: Writer, timings: FileTimings) -> None:
        """Write pieces of a file until none is left; an error ends the other threads, too."""
        try:
            with timings.mover(self._accounting):
                while True:
                    wait_began_ns = time.monotonic_ns()
                    taken = self._ring.take(number)
                    if taken is None:
                        return
                    (data, offset), buffer = taken
                    began_ns = time.monotonic_ns()
                    timings.starved_ns.append(began_ns - wait_began_ns)
                    writer.write_at(data, offset)
                    timings.add(began_ns, len(data))
                    self._ring.give_back(buffer)
        except BaseException:
            self._ring.close()
            raise


def explained(error: OSError, path: str, size_bytes: int) -> UserError:
    """Return the error to report when a file of a checkpoint can't be written; `size_bytes` 0: size unknown."""
    if error.errno in NO_SPACE:
        wants = f"needs {size_bytes} bytes" if size_bytes else "could not be written"
        return SpaceError(
            f"{no_space(error)}: checkpoint {path} {wants}; free some space or set "
            "checkpoint.checkpoint_folder to another disk"
        )
    return UserError(
        f"checkpoint {path} can't be written: {error.strerror or error}; set "
        "checkpoint.checkpoint_folder to a writable folder"
    )


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


class Drain:
    """A thread that writes a checkpoint while training goes on."""

    def __init__(self, write: Callable[[], int]) -> None:
        """Begin to call `write`, which returns when it ended, ns."""
        self._write, self._ended_ns = write, 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="checkpoint-drain", daemon=True)
        start_thread(self._thread)

    def _run(self) -> None:
        try:
            self._ended_ns = self._write()
        except BaseException as error:
            self._failure = error

    def wait(self) -> int:
        """Wait until it is written; return when that was, or raise why it could not be."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._ended_ns

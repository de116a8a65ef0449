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
from dlemu.comm import PatienceError, within
from dlemu.comm.thread_accounting import ThreadAccounting

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


@dataclass(frozen=True, kw_only=True)
class MovedFile:
    """Times and counts of one file that was written or read; see `IO_COLUMNS` in `io_rows` for each field."""

    bytes: int
    started_ns: int
    moved_ns: int
    synced_ns: int
    ended_ns: int
    threads: int
    cpu_ns: int
    content_cpu_ns: int
    storage_bytes: int
    timings: FileTimings

    def columns(self) -> dict[str, int]:
        """Return this file's columns of a row of `io_rows`."""
        names = ("bytes", "started_ns", "moved_ns", "synced_ns", "ended_ns", "threads", "cpu_ns")
        return {
            **{name: getattr(self, name) for name in names},
            "content_cpu_ns": self.content_cpu_ns,
            "storage_bytes": self.storage_bytes,
            "call_ns": sum(self.timings.calls_ns),
            "starved_ns": sum(self.timings.starved_ns),
            "mover_cpu_ns": sum(self.timings.mover_cpu_ns),
            "mover_cpu_wait_ns": sum(self.timings.mover_cpu_wait_ns),
        }


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

    def write(self, done: Callable[[int, MovedFile], None]) -> None:
        """Write all files, and call `done(index, file)` after each; raises SpaceError, UserError.

        After an error, the incomplete file is removed.
        """
        try:
            for number, file in enumerate(self._files):
                done(number, self._write(number, file))
        finally:
            self._pool.shutdown()
            self._ring.close()

    @property
    def content_cpu_ns(self) -> int:
        """CPU time of generating content, including that before the first write."""
        return self._ring.cpu_ns

    def discard(self) -> None:
        """Remove the files written so far: an incomplete checkpoint only takes space."""
        with contextlib.suppress(DlemuError):  # of a server: the failure that led here is the one to report
            for path in self._written:
                with contextlib.suppress(OSError):
                    self._storage.remove(path)

    def _write(self, number: int, file: FileToWrite) -> MovedFile:
        timings = FileTimings()
        content_cpu_ns = self._ring.cpu_ns
        cpu_ns, started_ns = time.process_time_ns(), time.monotonic_ns()
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
        return MovedFile(
            bytes=file.size_bytes,
            started_ns=started_ns,
            moved_ns=moved_ns,
            synced_ns=synced_ns,
            ended_ns=time.monotonic_ns(),
            threads=self._threads,
            cpu_ns=time.process_time_ns() - cpu_ns,
            content_cpu_ns=self._ring.cpu_ns - content_cpu_ns,
            storage_bytes=0,
            timings=timings,
        )

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
                    timings.add(began_ns, time.monotonic_ns(), len(data))
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

"""The log of a rank's checkpoints: one row per file, one for the rank's whole checkpoint, and progress over time.

Each row is appended at once to a file in the run's live folder, so that it survives a killed rank. Times are
nanoseconds, points in time on CLOCK_MONOTONIC of the rank's host. A mover is a thread that writes or reads file data.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dlemu.comm.row_log import RowLog, read_row_logs
from dlemu.comm.thread_accounting import ThreadAccounting

WRITE, READ = 0, 1
WHOLE = -1
"""File number of the row for a rank's whole checkpoint."""

IO_COLUMNS = {
    "rank": "rank of the run",
    "phase": "0 written, 1 read",
    "checkpoint": "number of the checkpoint, from 1",
    "file": "number of the file among the rank's, from 0; -1 is the row of the rank's whole checkpoint",
    "bytes": "bytes of the file that this rank moved",
    "began_ns": "when the ranks had synchronized and the checkpoint began; if asynchronous, after its snapshot",
    "started_ns": "when opening the file began",
    "moved_ns": "when all its bytes had been passed to the storage, or read from it",
    "synced_ns": "when fsync had returned",
    "ended_ns": "when it was closed and renamed into place; file -1: when the rank was done",
    "call_ns": "time in these calls, summed over the rank's threads",
    "starved_ns": "time that threads waited for bytes to be generated, summed over them",
    "threads": "threads that wrote or read",
    "cpu_ns": "CPU time of the rank's process meanwhile, all threads",
    "content_cpu_ns": "part of cpu_ns that generated the bytes",
    "mover_cpu_ns": "CPU time of the writing or reading threads alone",
    "mover_cpu_wait_ns": "time that these threads were runnable but waited for a core",
    "storage_bytes": "bytes read from storage meanwhile, by the kernel's accounting; 0 for writes",
    "fsync_ns": "file -1 only: time in fsync of all files and of the folder",
    "folder_sync_ns": "part of fsync_ns for the folder, by the rank that finishes last on its host: it alone syncs it",
    "asked_ns": "file -1 only: when the emulated computation had ended and the rank was ready for the checkpoint",
    "waited_ns": "file -1 only, with checkpoint.asynchronous: time that the next checkpoint waited for this one",
    "released_ns": "file -1 only: when training could go on; with checkpoint.asynchronous before ended_ns",
}
"""Column -> meaning; all are int64."""
IO_DTYPE = np.dtype([(name, np.int64) for name in IO_COLUMNS])
IoRows = NDArray[np.void]
"""Rows of IO_DTYPE, shape (rows,)."""

PROGRESS_COLUMNS = {
    "rank": "rank of the run",
    "phase": "0 written, 1 read",
    "checkpoint": "number of the checkpoint, from 1",
    "at_ns": "time of this row",
    "bytes": "bytes written or read since the row before",
}
PROGRESS_DTYPE = np.dtype([(name, np.int64) for name in PROGRESS_COLUMNS])
PARTS = ("rows", "progress")
PROGRESS_NS = 100_000_000
"""Minimum time between two rows of progress."""


@dataclass
class FileTimings:
    """Timings of one file's transfer; the movers append concurrently, and they are read when all movers are done."""

    calls_ns: list[int] = field(default_factory=list)
    """Duration of each write or read call."""
    ends_ns: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    starved_ns: list[int] = field(default_factory=list)
    mover_cpu_ns: list[int] = field(default_factory=list)
    mover_cpu_wait_ns: list[int] = field(default_factory=list)

    @contextlib.contextmanager
    def mover(self, accounting: ThreadAccounting) -> Iterator[None]:
        """Record this thread's CPU time, and its time waiting for a core, inside the context."""
        cpu_ns, (_, wait_ns) = time.thread_time_ns(), accounting.scheduled()
        try:
            yield
        finally:
            self.mover_cpu_ns.append(time.thread_time_ns() - cpu_ns)
            self.mover_cpu_wait_ns.append(accounting.scheduled()[1] - wait_ns)

    def add(self, began_ns: int, ended_ns: int, size_bytes: int) -> None:
        """Record one write or read call."""
        self.calls_ns.append(ended_ns - began_ns)
        self.ends_ns.append(ended_ns)
        self.sizes.append(size_bytes)


class IoLog:
    """One rank's rows and progress, kept in memory and, if a folder is given, appended to files there as well."""

    def __init__(self, rank: int, folder: str | None = None) -> None:
        self._rank = rank
        paths = ("", "") if folder is None else tuple(rows_path(folder, rank, part) for part in PARTS)
        self._rows, self._progress = RowLog(IO_DTYPE, paths[0]), RowLog(PROGRESS_DTYPE, paths[1])
        self.add = self._rows.add

    def add_progress(self, phase: int, checkpoint: int, files: Iterable[FileTimings]) -> None:
        """Add the progress of one checkpoint's files, with the calls of each 0.1 s merged into one row."""
        rows = [
            (self._rank, phase, checkpoint, at_ns, size_bytes)
            for file in files
            for at_ns, size_bytes in _merged(file.ends_ns, file.sizes)
        ]
        self._progress.extend(np.array(rows, PROGRESS_DTYPE))

    @property
    def rows(self) -> IoRows:
        """The rows so far."""
        return self._rows.rows

    @property
    def progress(self) -> IoRows:
        """The progress so far."""
        return self._progress.rows

    def close(self) -> None:
        """Close the files; later rows are kept in memory only."""
        self._rows.close()
        self._progress.close()


def rows_path(folder: str, rank: int, name: str) -> str:
    """Return the path of a rank's `rows` or `progress` in a run's live folder."""
    return os.path.join(folder, f"checkpoint_{rank:05d}.{name}")


def finished_path(folder: str, node: int) -> str:
    """Return the path of the file, in a run's live folder, in which a host's ranks count the checkpoints they wrote."""
    return os.path.join(folder, f"checkpoint_{node:05d}.finished")


def count_finished(path: str) -> int:
    """Count a checkpoint that this rank wrote; return the count, which no other rank gets (an atomic increment)."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        os.write(descriptor, b".")
        return os.lseek(descriptor, 0, os.SEEK_CUR)  # the end of our own byte, even if others append now
    finally:
        os.close(descriptor)


def _merged(ends_ns: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    first_ns = 0
    for at_ns, size_bytes in sorted(zip(ends_ns, sizes, strict=True)):
        if kept and at_ns - first_ns < PROGRESS_NS:
            kept[-1] = at_ns, kept[-1][1] + size_bytes
        else:
            kept.append((at_ns, size_bytes))
            first_ns = at_ns
    return kept


def read_logs(folder: str) -> tuple[IoRows, IoRows]:
    """Return the rows and the progress of all ranks from a run's live folder."""
    names = [name for name in os.listdir(folder) if name.startswith("checkpoint_")]
    rows, progress = ([name for name in names if name.endswith(f".{part}")] for part in PARTS)
    return read_row_logs(folder, rows, IO_DTYPE), read_row_logs(folder, progress, PROGRESS_DTYPE)


@dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """One checkpoint as rank 0 recorded it, from its start until the last rank's fsync."""

    epoch: int
    block: int
    bytes: int
    """Bytes written by all ranks."""
    started_ns: int
    ended_ns: int
    released_ns: int | None = None
    """When training went on, if the checkpoint was asynchronous; None: at `ended_ns`."""

    @property
    def seconds(self) -> float:
        """Duration of the checkpoint."""
        return (self.ended_ns - self.started_ns) / 1e9

    @property
    def writing_seconds(self) -> float:
        """Duration without an asynchronous checkpoint's snapshot, which is no time of the storage."""
        return (self.ended_ns - (self.released_ns or self.started_ns)) / 1e9

    @property
    def stall_seconds(self) -> float:
        """How long training stalled for the checkpoint."""
        return ((self.released_ns or self.ended_ns) - self.started_ns) / 1e9

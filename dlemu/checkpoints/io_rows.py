"""What a rank notes of a checkpoint: a row for each file and one for the whole, and how far it was when.

Rows go to a file in the run's live folder as they come to be, so that what was measured outlives the rank. Times are
nanoseconds of CLOCK_MONOTONIC of the rank's host, unless they are differences.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from datagen.errors import SpaceError
from datagen.owned import create_new
from dlemu.comm.thread_accounting import ThreadAccounting

WRITE, READ = 0, 1
WHOLE = -1
"""In place of a file's number: the rank's part of the checkpoint as a whole."""

IO_COLUMNS = {
    "rank": "rank of the run",
    "phase": "0 written, 1 read",
    "checkpoint": "number of the checkpoint, from 1",
    "file": "number of the file among the rank's, from 0; -1 is the row of the rank's whole checkpoint",
    "bytes": "bytes of the file that this rank moved",
    "began_ns": "the ranks had synchronized and the checkpoint began",
    "started_ns": "the file was about to be opened",
    "opened_ns": "it was open",
    "moved_ns": "all its bytes were passed to the storage, or had been read from it",
    "synced_ns": "fsync had returned",
    "ended_ns": "it was closed and renamed into place; of the whole: the rank was done",
    "calls": "write or read calls",
    "call_ns": "time in these calls, added up over the rank's threads",
    "longest_call_ns": "the longest of them",
    "starved_ns": "time in which threads waited for bytes to be generated, added up",
    "threads": "threads that wrote or read",
    "cpu_ns": "CPU time of the rank meanwhile, all its threads",
    "content_cpu_ns": "of cpu_ns: what making the bytes took",
    "mover_cpu_ns": "CPU time of the threads that wrote or read alone",
    "mover_cpu_wait_ns": "time in which they waited for a core",
    "storage_bytes": "bytes fetched from storage meanwhile by the kernel's accounting; of writes 0",
    "fsync_ns": "of the whole: time in fsync of its files, and of the folder",
    "folder_sync_ns": "of fsync_ns: that of the folder, by the rank of each host that was done last",
    "asked_ns": "of the whole: the accelerators had computed and were ready for the checkpoint",
    "waited_ns": "of the whole, with checkpoint.asynchronous: training waited with the next for this one to end",
    "released_ns": "of the whole: training could continue; with checkpoint.asynchronous before the checkpoint ended",
}
"""Column -> meaning; all are int64."""
ADDED_COLUMNS = frozenset({"content_cpu_ns", "folder_sync_ns"})
"""Which older results have not."""
IO_DTYPE = np.dtype([(name, np.int64) for name in IO_COLUMNS])
IoRows = NDArray[np.void]
"""Rows of IO_DTYPE, shape (rows,)."""

PROGRESS_COLUMNS = {
    "rank": "rank of the run",
    "phase": "0 written, 1 read",
    "checkpoint": "number of the checkpoint, from 1",
    "at_ns": "a moment",
    "bytes": "bytes moved since the moment before",
}
PROGRESS_DTYPE = np.dtype([(name, np.int64) for name in PROGRESS_COLUMNS])
PARTS = ("rows", "progress")
PROGRESS_NS = 100_000_000
"""Least time between two rows of progress."""


@dataclass
class FileNotes:
    """What threads note while they move one file's bytes; each appends, nobody else looks before they are done."""

    calls_ns: list[int] = field(default_factory=list)
    ends_ns: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    starved_ns: list[int] = field(default_factory=list)
    mover_cpu_ns: list[int] = field(default_factory=list)
    mover_cpu_wait_ns: list[int] = field(default_factory=list)

    @contextlib.contextmanager
    def mover(self, accounting: ThreadAccounting) -> Iterator[None]:
        """Note what this thread has of the cores while it moves bytes."""
        cpu_ns, (_, wait_ns) = time.thread_time_ns(), accounting.scheduled()
        try:
            yield
        finally:
            self.mover_cpu_ns.append(time.thread_time_ns() - cpu_ns)
            self.mover_cpu_wait_ns.append(accounting.scheduled()[1] - wait_ns)

    def add(self, began_ns: int, ended_ns: int, size_bytes: int) -> None:
        """Note one call."""
        self.calls_ns.append(ended_ns - began_ns)
        self.ends_ns.append(ended_ns)
        self.sizes.append(size_bytes)


class IoLog:
    """One rank's rows and progress, kept in memory and, where a folder is given, on disk as well.

    The files stay open until `close`: closing one on a file system of a network takes its time.
    """

    def __init__(self, rank: int, folder: str | None = None) -> None:
        self._rank = rank
        self._rows: list[tuple[int, ...]] = []
        self._progress: list[tuple[int, ...]] = []
        names = () if folder is None else PARTS
        self._paths = [rows_path(folder or "", rank, name) for name in names]
        self._outs = [create_new(path, flags=os.O_WRONLY | os.O_APPEND) for path in self._paths]

    def add(self, **columns: int) -> None:
        """Add a row; what is not given is 0."""
        row = tuple(columns.get(name, 0) for name in IO_COLUMNS)
        self._rows.append(row)
        self._append(0, np.array([row], IO_DTYPE))

    def note_progress(self, phase: int, checkpoint: int, notes: Iterable[FileNotes]) -> None:
        """Add what one checkpoint's files noted, the calls of 0.1 s together."""
        rows = [
            (self._rank, phase, checkpoint, at_ns, size_bytes)
            for file in notes
            for at_ns, size_bytes in _thinned(file.ends_ns, file.sizes)
        ]
        self._progress += rows
        self._append(1, np.array(rows, PROGRESS_DTYPE))

    @property
    def rows(self) -> IoRows:
        """The rows so far."""
        return np.array(self._rows, IO_DTYPE)

    @property
    def progress(self) -> IoRows:
        """The progress so far."""
        return np.array(self._progress, PROGRESS_DTYPE)

    def close(self) -> None:
        """Write no further rows to the folder."""
        for out in self._outs:
            os.close(out)
        self._outs = []

    def _append(self, which: int, rows: IoRows) -> None:
        if not self._outs:
            return
        data = rows.tobytes()
        try:
            if os.write(self._outs[which], data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise SpaceError(
                f"{self._paths[which]} could not be written: {error.strerror}; free some space, or set output.folder "
                "to a writable folder"
            ) from error


def rows_path(folder: str, rank: int, name: str) -> str:
    """Return where a rank's `rows` or `progress` lie in a run's live folder."""
    return os.path.join(folder, f"checkpoint_{rank:05d}.{name}")


def finished_path(folder: str, node: int) -> str:
    """Return where the ranks of a host note, in a run's live folder, that they have written a checkpoint's files."""
    return os.path.join(folder, f"checkpoint_{node:05d}.finished")


def note_finished(path: str) -> int:
    """Note that a rank has written its files; return how many notes there are now: no two ranks get the same number."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        os.write(descriptor, b".")
        return os.lseek(descriptor, 0, os.SEEK_CUR)  # the end of this very note, whoever else appends
    finally:
        os.close(descriptor)


def _thinned(ends_ns: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, int]]:
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
    """Return the rows and the progress that the ranks of a run left in its live folder."""
    found = []
    for ending, kind in ((".rows", IO_DTYPE), (".progress", PROGRESS_DTYPE)):
        names = sorted(name for name in os.listdir(folder) if name.startswith("checkpoint_") and name.endswith(ending))
        found.append(np.concatenate([np.empty(0, kind), *(_read(os.path.join(folder, name), kind) for name in names)]))
    return found[0], found[1]


def _read(path: str, kind: np.dtype[np.void]) -> IoRows:
    with open(path, "rb") as file:
        data = file.read()
    return np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)  # the last may be half written

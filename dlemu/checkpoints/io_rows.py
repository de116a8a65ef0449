"""The log of a rank's checkpoints: for each checkpoint a row per file, and one for all of the rank's files.

A row is appended to a file in the run's live folder at once, so that it survives a killed rank. Times are in ns; points
in time are on CLOCK_MONOTONIC of the rank's host. A mover is a thread that writes or reads file data.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WRITE, READ = 0, 1
WHOLE = -1  # file number of the row for all of a rank's files

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
    "mover_cpu_ns": "CPU time of the writing or reading threads alone",
    "mover_cpu_wait_ns": "time that these threads were runnable but waited for a core",
    "storage_bytes": "bytes read from storage meanwhile, by the kernel's accounting",
    "fsync_ns": "file -1 only: time in fsync of all files and of the folder",
    "folder_sync_ns": "part of fsync_ns for the folder, by the rank that finishes last on its host: it alone syncs it",
    "asked_ns": "file -1 only: when the rank was ready for the checkpoint, less what it waited for the one before",
    "waited_ns": "file -1 only, with checkpoint.asynchronous: time that the next checkpoint waited for this one",
    "released_ns": "file -1 only: when training could go on; with checkpoint.asynchronous before ended_ns",
}
"""Column -> meaning; all are int64."""
IO_DTYPE = np.dtype([(name, np.int64) for name in IO_COLUMNS])
IoRows = NDArray[np.void]  # rows of IO_DTYPE, shape (rows,)


def finished_name(node: int) -> str:
    """Return the name of a file in the live folder, in which the ranks of a host count the checkpoints they wrote."""
    return f"finished_{node:05d}"


def count_finished(path: str) -> int:
    """Increment the host's count of checkpoints written, atomically; return the count, which is unique to this rank."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        os.write(descriptor, b".")
        return os.lseek(descriptor, 0, os.SEEK_CUR)  # the end of our own byte, even if other ranks append now
    finally:
        os.close(descriptor)


@dataclass(frozen=True, kw_only=True)
class SavedCheckpoint:
    """One checkpoint of a training run, as recorded by rank 0 from its start until the last rank's fsync."""

    epoch: int
    block: int
    bytes: int  # written by all ranks
    started_ns: int
    ended_ns: int
    released_ns: int | None = None
    """When training resumed after the snapshot of an asynchronous checkpoint; None for a synchronous one."""

    @property
    def seconds(self) -> float:
        return (self.ended_ns - self.started_ns) / 1e9

    @property
    def stall_seconds(self) -> float:
        """How long training stalled for the checkpoint."""
        return ((self.released_ns or self.ended_ns) - self.started_ns) / 1e9

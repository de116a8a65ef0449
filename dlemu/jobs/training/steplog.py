"""The step log: one fixed row for each rank and step, written as it happens, from which every number can be recomputed.

A rank's rows are in a file mapped into its memory: writing one is a store, and what was measured outlives the rank.
All times are nanoseconds of CLOCK_MONOTONIC of the rank's host, unless they are differences.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datagen.errors import SpaceError
from datagen.owned import create_new
from dlemu.loaders.loader_base import BatchTrace

STEP_COLUMNS = {
    # Which step
    "rank": "rank",
    "phase": "0 training, 1 evaluation",
    "epoch": "epoch, from 1",
    "block": "range of steps between the start of the epoch and checkpoints, from 1 in each epoch",
    "step": "step within its epoch, from 1",
    # The accelerator's own timeline: wait + compute + sync = next_free - free, exactly
    "free_ns": "the previous step was over on every accelerator; for the first step of a block: its start",
    "wait_ns": "the accelerator waited for its batch",
    "compute_ns": "the accelerator computed (nominal time, never stretched by the host)",
    "sync_ns": "the accelerator waited for the slowest one",
    # The host's stamps, for comparison
    "asked_ns": "the host began to wait for the batch",
    "got_ns": "the host had the batch",
    "slept_ns": "the host woke after the computation",
    "met_ns": "the host left the all-reduce of all ranks",
    # The batch's trace: how it came about
    "ready_ns": "the batch was in the trainer's hands",
    "started_ns": "a worker began to fetch the batch",
    "finished_ns": "a worker had the batch complete",
    "read_ns": "time spent opening and reading files",
    "decode_ns": "time spent decoding and preprocessing",
    "worker": "the worker that made the batch",
    "samples": "samples in the batch",
    "app_bytes": "bytes read from storage for the batch",
    "read_calls": "read calls made for the batch",
    "sample_hash": "sum of a 64-bit hash of each sample's number, modulo 2^64 (as a signed integer)",
    "cpu_ns": "time the worker ran on a core while it made the batch",
    "cpu_wait_ns": "time the worker waited for a core while it made the batch",
    "storage_bytes": "bytes fetched from storage for the batch, by the kernel's accounting; the rest came from memory",
    "preprocess_cpu_ns": "the part of cpu_ns that `reader.preprocess=burn` used up on purpose",
}
"""Column -> meaning; all are int64. A row is in the log once its step is over, and `step` = 0 marks an unused row."""
ADDED_COLUMNS = frozenset({"preprocess_cpu_ns"})
"""Those that results of older versions lack: there they are 0."""


class StepRecord(NamedTuple):
    """What the loop saw of one step; with the batch's trace it is a row, in the order of STEP_COLUMNS."""

    rank: int
    phase: int
    epoch: int
    block: int
    step: int
    free_ns: int
    wait_ns: int
    compute_ns: int
    sync_ns: int
    asked_ns: int
    got_ns: int
    slept_ns: int
    met_ns: int
    ready_ns: int


STEP_DTYPE = np.dtype([(name, np.int64) for name in STEP_COLUMNS])
_ROW, _STEP = struct.Struct(f"={len(STEP_COLUMNS)}q"), struct.Struct("=q")
_STEP_OFFSET = _STEP.size * list(STEP_COLUMNS).index("step")
"""Packing a row of plain numbers takes a third of the time that NumPy takes to assign one."""

StepRows = NDArray[np.void]
"""Rows of STEP_DTYPE, shape (rows,)."""

TRAINING, EVALUATION = 0, 1


_GIVE_BACK_ROWS = 4096
"""Rows after which their memory is given back."""


class StepLog:
    """One rank's rows, in file-backed memory when a path is given."""

    def __init__(self, capacity: int, path: str | None = None) -> None:
        size_bytes = max(1, capacity) * STEP_DTYPE.itemsize
        fd = -1 if path is None else _allocate(path, size_bytes)
        self._memory = mmap.mmap(fd, size_bytes)
        self._rows = np.frombuffer(self._memory, dtype=STEP_DTYPE)
        self._in_file = fd >= 0
        if fd >= 0:
            os.close(fd)
        self._used = 0

    def add(self, record: StepRecord, trace: BatchTrace) -> None:
        """Add a row.

        The rank may be killed between any two stores: the row counts from the last one on, which gives it its step.
        """
        rank, phase, epoch, block, step, *times = record
        offset = self._used * STEP_DTYPE.itemsize
        _ROW.pack_into(self._memory, offset, rank, phase, epoch, block, 0, *times, *trace[2:])
        _STEP.pack_into(self._memory, offset + _STEP_OFFSET, step)
        self._used += 1
        if self._in_file and self._used % _GIVE_BACK_ROWS == 0:
            self._give_back()

    def _give_back(self) -> None:
        """Take the full pages out of this process's memory: the kernel keeps them for the file, and drops them written.

        Else a rank of a million steps would hold 200 MB more in the end than at its start.
        """
        full = self._used * STEP_DTYPE.itemsize // mmap.PAGESIZE * mmap.PAGESIZE
        self._memory.madvise(mmap.MADV_DONTNEED, 0, full)  # from the first: those that were looked at are back

    @property
    def rows(self) -> StepRows:
        """The rows so far."""
        return self._rows[: self._used]


def _allocate(path: str, size_bytes: int) -> int:
    """Create the file with all its blocks: a full disk must show here, not as a SIGBUS in the middle of a run."""
    fd = create_new(path)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as error:
        os.close(fd)
        raise SpaceError(
            f"no space for the step log {path}: {error.strerror}; it needs {size_bytes} bytes; free some space or "
            "set output.folder to another disk"
        ) from error
    return fd


def log_name(rank: int) -> str:
    """Return the name of a rank's log in a run's live folder."""
    return f"rank_{rank:05d}.steps"


def read_log(path: str) -> StepRows:
    """Return the rows a rank left in its file, whether or not it ended well."""
    rows = np.fromfile(path, dtype=STEP_DTYPE)
    return rows[rows["step"] > 0]

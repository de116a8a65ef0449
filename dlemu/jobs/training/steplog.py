"""The step log: one row for each rank and step, from which all of a run's numbers can be recomputed.

A rank writes its log to a memory-mapped file, so rows survive if it is killed; steps.parquet has the rows of all ranks.
Times are ns of the host's CLOCK_MONOTONIC, or differences of such times.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from datagen.atomic import write_file
from datagen.errors import SpaceError, UserError
from datagen.owned import create_new
from dlemu.loaders.loader_base import BatchTrace
from dlemu.metrics.rows import Rows, table_of
from dlemu.results import ADVICE
from dlemu.results.tables import integer_column, read_table, rows_table

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
    "ready_ns": "the batch was in the trainer's hands",
    # The batch's trace: how it came about
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
"""Column -> meaning; all are int64. A row is written when its step is over; `step` = 0 marks an unused row."""


class StepRecord(NamedTuple):
    """The loop's part of a row; the fields of the batch's trace follow it, in the order of STEP_COLUMNS."""

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
# A row and its `step`: packing takes a third of the time of an assignment to a NumPy array
_ROW, _STEP = struct.Struct(f"={len(STEP_COLUMNS)}q"), struct.Struct("=q")
_STEP_OFFSET = _STEP.size * list(STEP_COLUMNS).index("step")

StepRows = NDArray[np.void]  # rows of STEP_DTYPE, shape (rows,)
TRAINING, EVALUATION = 0, 1  # values of the column `phase`
_RELEASE_ROWS = 4096  # the memory of full pages is released whenever this many rows have been added


class StepLog:
    """One rank's rows, in a mapped file when a path is given, else in memory."""

    def __init__(self, capacity: int, path: str = "") -> None:
        size_bytes = max(1, capacity) * STEP_DTYPE.itemsize
        fd = _allocate(path, size_bytes) if path else -1
        self._memory = mmap.mmap(fd, size_bytes)
        self._rows = np.frombuffer(self._memory, dtype=STEP_DTYPE)
        self._in_file = fd >= 0
        if fd >= 0:
            os.close(fd)
        self._used = 0

    def add(self, record: StepRecord, trace: BatchTrace) -> None:
        """Add a row. Its `step` is stored last, so that a row that a kill cuts off stays marked as unused."""
        rank, phase, epoch, block, step, *times = record
        offset = self._used * STEP_DTYPE.itemsize
        _ROW.pack_into(self._memory, offset, rank, phase, epoch, block, 0, *times, *trace[2:])  # no slot and places
        _STEP.pack_into(self._memory, offset + _STEP_OFFSET, step)
        self._used += 1
        if self._in_file and self._used % _RELEASE_ROWS == 0:
            # Release this process's memory for full pages; else a rank would use 200 MB more after a million steps.
            # From 0, because pages that were released before may have been read again since.
            full = self._used * STEP_DTYPE.itemsize // mmap.PAGESIZE * mmap.PAGESIZE
            self._memory.madvise(mmap.MADV_DONTNEED, 0, full)

    @property
    def rows(self) -> StepRows:
        """The rows written so far, without a copy."""
        return self._rows[: self._used]


def _allocate(path: str, size_bytes: int) -> int:
    """Create the file with all its blocks allocated: a full disk raises SpaceError here, not SIGBUS during the run."""
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
    """Return the rows that a rank wrote to its file, whether or not it was killed."""
    rows = np.fromfile(path, dtype=STEP_DTYPE)
    return rows[rows["step"] > 0]


STEPS = "steps.parquet"
_MAX_VALUE = 1 << 60  # in nanoseconds, 36 years after the host's start; sums of larger numbers would overflow
_FROM_0 = ("free_ns", "wait_ns", "compute_ns", "samples", "app_bytes")  # columns with values from 0 to _MAX_VALUE


def write_steps(folder: str, rows: Rows) -> None:
    """Write the step rows to a run's folder, if there are any; raises SpaceError."""
    if not len(rows):
        return
    table = rows_table(rows, STEP_COLUMNS)
    # Consecutive timestamps of a rank differ little. Compared with pyarrow's default, which tries a dictionary though
    # values hardly repeat, this takes a third of the CPU to write and to read, and a quarter less space.
    options = {"compression": "zstd", "use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"}
    write_file(folder, STEPS, lambda out: pq.write_table(table, out, **options), advice=ADVICE)


def read_steps(folder: str) -> Rows:
    """Return the step rows of a folder, in order; raises UserError for a damaged file."""
    table = read_table(folder, STEPS)
    if table is None:
        return np.empty(0, STEP_DTYPE)
    return table_of({name: integer_column(os.path.join(folder, STEPS), table, name) for name in STEP_COLUMNS})


def check_steps(path: str, rows: Rows, ranks: int, epochs: int) -> None:
    """Raise UserError for rows that the run can't have, as analysing them could take any amount of memory and time."""
    bounds = dict.fromkeys(_FROM_0, (0, _MAX_VALUE)) | {"block": (1, _MAX_VALUE), "step": (1, _MAX_VALUE)}
    bounds |= {"rank": (0, ranks - 1), "phase": (0, 1), "epoch": (1, epochs)}
    for name, (least, most) in bounds.items() if len(rows) else ():
        lowest, highest = int(rows[name].min()), int(rows[name].max())
        if lowest < least or highest > most:
            wanted = f"wanted {least} or more" if lowest < least and most == _MAX_VALUE else f"wanted {least} to {most}"
            raise UserError(f"{path} is damaged: its column {name} ranges from {lowest} to {highest}, {wanted}")

"""Writes and reads steps.parquet, the step rows of all ranks: integer columns, a row per rank and step."""

from __future__ import annotations

import os
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from datagen.atomic import write_file
from datagen.errors import UserError
from dlemu.comm.cgroup_limits import host_memory
from dlemu.jobs.training.steplog import STEP_COLUMNS, STEP_DTYPE
from dlemu.metrics.rows import ColumnStore, Rows, StepTable, in_order
from dlemu.results.answer_files import open_untrusted
from dlemu.results.file_names import ADVICE
from dlemu.results.tables import MOST_TABLE_BYTES

STEPS = "steps.parquet"
_MAX_VALUE = 1 << 60
"""As nanoseconds, 36 years after the host was started; sums of larger numbers would overflow."""
_BOUNDED = ("free_ns", "wait_ns", "compute_ns", "samples", "app_bytes")
"""Columns whose values must be from 0 to _MAX_VALUE."""
_ROW_BYTES = 8 * 2 * len(STEP_COLUMNS)
"""Memory per row: the columns, and as much again while they are sorted or computed with."""


def write_steps(folder: str, rows: Rows) -> None:
    """Write the step rows, if there are any; raises SpaceError."""
    if len(rows):
        write_file(folder, STEPS, lambda out: _write(rows, out), advice=ADVICE)


def _write(rows: Rows, out: BinaryIO) -> None:
    fields = [
        pa.field(name, pa.int64(), nullable=False, metadata={"meaning": text}) for name, text in STEP_COLUMNS.items()
    ]
    # Differences of a rank's consecutive timestamps are small. Beside pyarrow's default, which tries a dictionary of
    # values that hardly repeat, this takes a third of the CPU to write and to read, and a quarter less space.
    encoding = "DELTA_BINARY_PACKED"
    schema = pa.schema(fields)
    with pq.ParquetWriter(out, schema, compression="zstd", use_dictionary=False, column_encoding=encoding) as file:
        file.write_table(pa.table([pa.array(rows[name]) for name in STEP_COLUMNS], schema=schema))


def read_steps(folder: str) -> Rows:
    """Return the step rows of a folder, in order; raises UserError for a damaged file."""
    path = os.path.join(folder, STEPS)
    if not os.path.lexists(path):
        return np.empty(0, STEP_DTYPE)
    try:
        file = _StepFile(path)
        return StepTable(ColumnStore({name: file.column(name) for name in STEP_COLUMNS}))
    except MemoryError as error:
        raise UserError(f"{path} needs more memory than is available: read it on another host") from error


class _StepFile:
    """An open steps.parquet, whose columns are read and checked one by one."""

    def __init__(self, path: str) -> None:
        """Raises UserError for a file that is no Parquet file, or not one of step rows."""
        self._path = path
        descriptor = open_untrusted(path, MOST_TABLE_BYTES)
        try:  # opened through the descriptor: still the checked file if its name is reused; pyarrow closes its own
            self._file = pq.ParquetFile(pa.OSFile(f"/proc/self/fd/{descriptor}"))
        except (OSError, pa.ArrowException, ValueError) as error:
            raise UserError(f"{path} is damaged ({error}): copy it again or move it away") from error
        finally:
            os.close(descriptor)
        self.rows = self._file.metadata.num_rows
        schema = self._file.schema_arrow
        missing = [name for name in STEP_COLUMNS if schema.get_field_index(name) < 0]
        if missing:
            raise UserError(f"{path} is damaged: it lacks the columns {', '.join(missing)}")
        for name in STEP_COLUMNS:
            if not pa.types.is_integer(schema.field(name).type):
                raise UserError(
                    f"{path} is damaged: its column {name} holds {schema.field(name).type}, wanted whole numbers"
                )
        needed = _ROW_BYTES * self.rows  # even of a small file: a column of equal values takes hardly any bytes in it
        if needed > host_memory().available_bytes:
            raise UserError(
                f"{path} needs {needed / 2**30:.1f} GiB of memory, more than is available: read it on another host, "
                "or copy it again if no run of yours had that many steps"
            )

    def column(self, name: str) -> NDArray[np.int64]:
        """Return a column; raises UserError if it is damaged."""
        try:
            part = self._file.read(columns=[name], use_threads=False)[name]
            if part.null_count:
                raise UserError(f"{self._path} is damaged: its column {name} has gaps, wanted whole numbers")
            values: NDArray[np.int64] = part.to_numpy().astype(np.int64, copy=False)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise UserError(f"{self._path} is damaged ({error}): copy it again or move it away") from error
        if len(values) != self.rows:
            raise UserError(f"{self._path} is damaged: its column {name} has {len(values)} values, wanted {self.rows}")
        if name in _BOUNDED and len(values):
            _check_bounds(self._path, name, int(values.min()), int(values.max()), 0, _MAX_VALUE)
        return values


def check_steps(path: str, rows: Rows, ranks: int, epochs: int) -> None:
    """Raise UserError for rows that this run can't have, which could cost any amount of memory and time to analyse."""
    table = in_order(rows)
    if not len(table):
        return
    for name, least, most in (("rank", 0, ranks - 1), ("phase", 0, 1), ("epoch", 1, epochs), ("block", 1, None)):
        labels = table.label(name)
        _check_bounds(path, name, int(labels.min()), int(labels.max()), least, most)
    _, first, last = table.ends("step")
    _check_bounds(path, "step", int(first[0].min()), int(last[0].max()), 1, None)
    if isinstance(rows, np.ndarray):
        for name in _BOUNDED:
            _check_bounds(path, name, int(rows[name].min()), int(rows[name].max()), 0, _MAX_VALUE)


def _check_bounds(path: str, name: str, lowest: int, highest: int, least: int, most: int | None) -> None:
    """Raise UserError if a column's lowest or highest value is not from `least` to `most` (None: unbounded)."""
    if lowest < least or (most is not None and highest > most):
        wanted = f"{least} or more" if most is None else f"{least} to {most}"
        raise UserError(f"{path} is damaged: its column {name} ranges from {lowest} to {highest}, wanted {wanted}")

"""steps.parquet: the step rows of all ranks as a table, one writer, one reader."""

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
from dlemu.jobs.training.steplog import ADDED_COLUMNS, STEP_COLUMNS, STEP_DTYPE
from dlemu.metrics.rows import GROUP_ROWS, ColumnStore, Rows, StepTable, in_order
from dlemu.results.tables import ADVICE, MOST_TABLE_BYTES
from dlemu.results.untrusted_files import open_untrusted

STEPS = "steps.parquet"
_LATEST_NS = 1 << 60
"""36 years after the host was started; sums of such numbers overflow."""
_BOUNDED = ("free_ns", "wait_ns", "compute_ns", "samples", "app_bytes")
"""Columns whose values lie between 0 and that."""
_READ_AT_ONCE = 1 << 20
"""Rows of which all columns are read at once."""
_MOST_ROW_BYTES = 128
"""Memory that a row wants while its numbers are computed: a few columns at a time."""
_WHOLE = "whole numbers"


def write_steps(folder: str, rows: Rows) -> None:
    """Write the step rows, where there are any; raises SpaceError."""
    if len(rows):
        write_file(folder, STEPS, lambda out: _write(rows, out), advice=ADVICE)


def _write(rows: Rows, out: BinaryIO) -> None:
    fields = [
        pa.field(name, pa.int64(), nullable=False, metadata={"meaning": text}) for name, text in STEP_COLUMNS.items()
    ]
    with pq.ParquetWriter(out, pa.schema(fields), compression="zstd") as file:
        for start in range(0, len(rows), GROUP_ROWS):
            part = rows[start : start + GROUP_ROWS]
            file.write_table(pa.table([pa.array(part[name]) for name in STEP_COLUMNS], schema=pa.schema(fields)))


def read_steps(folder: str) -> Rows:
    """Return the step rows in order: of very many, a column is read when it is requested."""
    path = os.path.join(folder, STEPS)
    if not os.path.lexists(path):
        return np.empty(0, STEP_DTYPE)
    try:
        file = _StepFile(path)
        store = ColumnStore(tuple(STEP_COLUMNS), file.groups, file.column)
        if file.rows <= _READ_AT_ONCE:
            store.load_all()
        return StepTable(store)
    except MemoryError as error:
        raise UserError(f"{path} needs more memory than is available: read it on another host") from error


class _StepFile:
    """steps.parquet, of which columns are read and checked one by one."""

    def __init__(self, path: str) -> None:
        """Raises UserError for a file that is none, or can't be of a run."""
        self._path = path
        descriptor = open_untrusted(path, MOST_TABLE_BYTES)
        try:  # the file stays the same one, whatever gets its name; and it is closed with the last who reads of it
            self._file = pq.ParquetFile(pa.OSFile(f"/proc/self/fd/{descriptor}"))
        except (OSError, pa.ArrowException, ValueError) as error:
            raise UserError(f"{path} is damaged ({error}): copy it again or move it away") from error
        finally:
            os.close(descriptor)
        known = self._file.metadata
        self.groups = tuple(known.row_group(group).num_rows for group in range(known.num_row_groups))
        self.rows = sum(self.groups)
        schema = self._file.schema_arrow
        self._there = {name for name in STEP_COLUMNS if schema.get_field_index(name) >= 0}
        missing = [name for name in STEP_COLUMNS if name not in self._there | ADDED_COLUMNS]
        if missing:
            raise UserError(f"{path} is damaged: it lacks the columns {', '.join(missing)}")
        for name in self._there:
            if not pa.types.is_integer(schema.field(name).type):
                raise UserError(
                    f"{path} is damaged: its column {name} holds {schema.field(name).type}, wanted {_WHOLE}"
                )
        wanted = _MOST_ROW_BYTES * self.rows  # a column of equal values takes next to nothing in the file
        if wanted > host_memory().available_bytes:
            raise UserError(
                f"{path} needs {wanted / 2**30:.1f} GiB of memory, more than is available: read it on another host, "
                "or copy it again if no run of yours had that many steps"
            )

    def column(self, name: str, group: int) -> NDArray[np.int64]:
        """Return a column of a row group; raises UserError for one that is damaged."""
        if name not in self._there:
            return np.zeros(self.groups[group], np.int64)
        try:
            part = self._file.read_row_group(group, columns=[name], use_threads=False)[name]
            if part.null_count:
                raise UserError(f"{self._path} is damaged: its column {name} has gaps, wanted {_WHOLE}")
            values: NDArray[np.int64] = part.to_numpy().astype(np.int64, copy=False)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise UserError(f"{self._path} is damaged ({error}): copy it again or move it away") from error
        if len(values) != self.groups[group]:
            seen = f"{len(values)} values in row group {group}, wanted {self.groups[group]}"
            raise UserError(f"{self._path} is damaged: its column {name} has {seen}")
        if name in _BOUNDED and len(values):
            _check_bounds(self._path, name, int(values.min()), int(values.max()), 0, _LATEST_NS)
        return values


def check_steps(path: str, rows: Rows, ranks: int, epochs: int) -> None:
    """Raise UserError for rows that can't be of this run; what is computed from them could take any memory and time."""
    table = in_order(rows)
    if not len(table):
        return
    for name, least, most in (
        ("rank", 0, ranks - 1),
        ("phase", 0, 1),
        ("epoch", 1, epochs),
        ("block", 1, None),
    ):
        labels = table.label(name)
        _check_bounds(path, name, int(labels.min()), int(labels.max()), least, most)
    _, first, last = table.ends("step")
    _check_bounds(path, "step", int(first[0].min()), int(last[0].max()), 1, None)
    if isinstance(rows, np.ndarray):
        for name in _BOUNDED:
            _check_bounds(path, name, int(rows[name].min()), int(rows[name].max()), 0, _LATEST_NS)


def _check_bounds(path: str, name: str, lowest: int, highest: int, least: int, most: int | None) -> None:
    if lowest < least or (most is not None and highest > most):
        wanted = f"{least} or more" if most is None else f"{least} to {most}"
        raise UserError(f"{path} is damaged: its column {name} ranges from {lowest} to {highest}, wanted {wanted}")

"""Reads and writes the Parquet tables in a result's folder, and reads its configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from datagen.atomic import write_file
from datagen.errors import UserError
from dlemu.config import load_received, to_yaml
from dlemu.machine.cgroup_limits import host_memory
from dlemu.metrics.rows import StepTable
from dlemu.results import ADVICE, CONFIG
from dlemu.results.answer_files import open_untrusted

MAX_TABLE_BYTES = 64 << 30  # far larger than any result


def read_config(folder: str) -> str:
    """Return the folder's configuration as YAML, without secrets; empty if it is missing or does not load."""
    try:
        return to_yaml(load_received(os.path.join(folder, CONFIG)))
    except UserError:
        return ""


def write_table(folder: str, name: str, table: pa.Table) -> None:
    write_file(folder, name, lambda out: pq.write_table(table, out, compression="zstd"), advice=ADVICE)


def read_table(folder: str, name: str) -> pa.Table | None:
    """Return the table in a Parquet file, None if there is no file; raises UserError if it is damaged or too large."""
    path = os.path.join(folder, name)
    if not os.path.lexists(path):
        return None
    with open(open_untrusted(path, MAX_TABLE_BYTES), "rb") as file:
        try:
            parquet = pq.ParquetFile(file)
            # A decoded value takes 8 bytes, and as many again for a copy. The size of the file is no measure of that:
            # Parquet compresses a column of equal values to a few bytes.
            rows = parquet.metadata.num_rows
            needed, free = 16 * rows * parquet.metadata.num_columns, host_memory().available_bytes
            if needed > free:
                raise UserError(
                    f"{path} has {rows:,} rows, which need {needed / 2**30:.1f} GiB of memory; {free / 2**30:.1f} GiB "
                    "are available: read it on a larger host, or copy it again if the run had fewer rows"
                )
            return parquet.read()
        except (OSError, pa.ArrowException, ValueError, MemoryError) as error:
            raise UserError(f"{path} is damaged ({error}): copy it again or move it away") from error


def rows_table(rows: NDArray[np.void] | StepTable, meanings: Mapping[str, str]) -> pa.Table:
    """Return a table with a column for each key of `meanings`, which has the meaning as metadata."""
    fields = [pa.field(name, pa.int64(), nullable=False, metadata={"meaning": meanings[name]}) for name in meanings]
    return pa.table({name: rows[name] for name in meanings}).cast(pa.schema(fields))


def read_rows(folder: str, name: str, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    """Return the rows of a table; raises UserError if the table is missing or damaged."""
    path = os.path.join(folder, name)
    table = read_table(folder, name)
    if table is None:
        raise UserError(f"{path} is missing: the run's metrics can't be computed; copy the folder again")
    rows = np.zeros(table.num_rows, dtype)
    for column in dtype.names or ():
        rows[column] = integer_column(path, table, column)
    return rows


def integer_column(path: str, table: pa.Table, name: str) -> NDArray[np.int64]:
    """Return a column of the table read from `path`; raises UserError unless there is one such column, of integers."""
    if table.column_names.count(name) != 1 or not pa.types.is_integer(table[name].type) or table[name].null_count:
        raise UserError(f"{path} is damaged: wanted a column {name} of whole numbers")
    values: NDArray[np.int64] = table[name].to_numpy().astype(np.int64, copy=False)
    return values

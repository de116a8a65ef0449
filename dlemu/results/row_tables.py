"""Tables (Parquet) of rows of whole numbers in a result's folder; each column has its meaning as metadata."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datagen.errors import UserError
from dlemu.results.tables import read_table


def rows_table(rows: NDArray[np.void], meanings: Mapping[str, str]) -> pa.Table:
    """Return rows as a table, each column with its meaning as metadata."""
    fields = [pa.field(name, pa.int64(), nullable=False, metadata={"meaning": meanings[name]}) for name in meanings]
    return pa.table({name: rows[name] for name in meanings}).cast(pa.schema(fields))


def read_rows(folder: str, name: str, kind: np.dtype[np.void]) -> NDArray[np.void]:
    """Return the rows of a table; raises UserError for one that is missing or damaged."""
    table = read_table(folder, name)
    path = os.path.join(folder, name)
    if table is None:
        raise UserError(f"{path} is missing: the run's metrics can't be computed; copy the folder again")
    assert kind.names is not None  # it has columns
    rows = np.zeros(table.num_rows, kind)
    for column in kind.names:
        if column not in table.column_names or not pa.types.is_integer(table[column].type) or table[column].null_count:
            raise UserError(f"{path} is damaged: wanted a column {column} of whole numbers")
        rows[column] = table[column].to_numpy()
    return rows

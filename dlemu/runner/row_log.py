"""A rank's rows of measurements, appended to a file one by one, so that they survive if the rank is killed."""

from __future__ import annotations

import errno
import os

import numpy as np
from numpy.typing import NDArray

from datagen.errors import SpaceError
from datagen.owned import create_new

Rows = NDArray[np.void]


class RowLog:
    """The rows of one rank, in memory and, if `folder` is given, in a file there, which stays open until `close`."""

    def __init__(self, dtype: np.dtype[np.void], rank: int, folder: str | None = None) -> None:
        self._dtype, self._parts = dtype, [np.empty(0, dtype)]
        self._path = "" if folder is None else os.path.join(folder, row_log_name(rank))
        self._out = create_new(self._path, flags=os.O_WRONLY | os.O_APPEND) if self._path else -1

    def add(self, **columns: int) -> None:
        """Add a row; columns that are not given are 0. Raises SpaceError."""
        assert self._dtype.names is not None  # a structured type
        row = np.array([tuple(columns.get(name, 0) for name in self._dtype.names)], self._dtype)
        self._parts.append(row)
        if self._out < 0:
            return
        data = row.tobytes()
        try:
            if os.write(self._out, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise SpaceError(
                f"{self._path} could not be written: {error.strerror}; free some space, or set output.folder to a "
                "writable folder"
            ) from error

    @property
    def rows(self) -> Rows:
        """The rows so far."""
        return np.concatenate(self._parts)

    def close(self) -> None:
        """Close the file: rows added later are kept in memory only."""
        if self._out >= 0:
            os.close(self._out)
            self._out = -1


def row_log_name(rank: int) -> str:
    """Return the file name of a rank's rows in a run's live folder."""
    return f"rows_{rank:05d}"


def read_row_logs(folder: str, dtype: np.dtype[np.void]) -> Rows:
    """Return the rows in a run's live folder, without a half-written last row of a rank."""
    parts = [np.empty(0, dtype)]
    for name in sorted(name for name in os.listdir(folder) if name.startswith("rows_")):
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        parts.append(np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype))
    return np.concatenate(parts)

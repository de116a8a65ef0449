"""A log of a rank's rows of measurements; each row is appended to a file at once and survives if the rank is killed."""

from __future__ import annotations

import errno
import os

import numpy as np
from numpy.typing import NDArray

from datagen.errors import SpaceError
from datagen.owned import create_new

Rows = NDArray[np.void]
_PREFIX = "rows_"  # of the logs' file names


class RowLog:
    """The rows of one rank, in memory and, if `path` is given, in a new file at `path` that is open until `close`."""

    def __init__(self, dtype: np.dtype[np.void], path: str = "") -> None:
        self._dtype, self._path, self._parts = dtype, path, [np.empty(0, dtype)]
        self._out = create_new(path, flags=os.O_WRONLY | os.O_APPEND) if path else -1

    def add(self, **columns: int) -> None:
        """Add a row; missing columns are 0. Raises SpaceError."""
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
        return np.concatenate(self._parts)

    def close(self) -> None:
        """Close the file; rows added later are in memory only."""
        if self._out >= 0:
            os.close(self._out)
            self._out = -1


def row_log_name(rank: int) -> str:
    """Return the name of a rank's log in a run's live folder."""
    return f"{_PREFIX}{rank:05d}"


def read_row_logs(folder: str, dtype: np.dtype[np.void]) -> Rows:
    """Return the rows of all ranks in a run's live folder; incomplete last rows are left out."""
    names = sorted(name for name in os.listdir(folder) if name.startswith(_PREFIX))
    return np.concatenate([np.empty(0, dtype), *(np.fromfile(os.path.join(folder, name), dtype) for name in names)])

"""A rank's rows of measurements, appended to a file at once, so that they survive if the rank is killed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from datagen.errors import SpaceError
from datagen.owned import create_new

Rows = NDArray[np.void]


class RowLog:
    """Rows of one rank, in memory and, if `path` is given, in a new file there, open until `close`."""

    def __init__(self, dtype: np.dtype[np.void], path: str = "") -> None:
        self._dtype, self._path, self._parts = dtype, path, [np.empty(0, dtype)]
        self._out = create_new(path, flags=os.O_WRONLY | os.O_APPEND) if path else -1

    def add(self, **columns: int) -> None:
        """Add a row; columns that are not given are 0. Raises SpaceError."""
        assert self._dtype.names is not None  # a structured type
        self.extend(np.array([tuple(columns.get(name, 0) for name in self._dtype.names)], self._dtype))

    def extend(self, rows: Rows) -> None:
        self._parts.append(rows)
        if self._out < 0:
            return
        data = rows.tobytes()
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
        """Close the file: rows added later are kept in memory only."""
        if self._out >= 0:
            os.close(self._out)
            self._out = -1


def read_row_logs(folder: str, names: Iterable[str], dtype: np.dtype[np.void]) -> Rows:
    """Return the rows in these files of a run's live folder, without a half-written last row of a rank."""
    logs = (np.fromfile(os.path.join(folder, name), dtype) for name in sorted(names))
    return np.concatenate([np.empty(0, dtype), *logs])

"""Files read past the page cache (O_DIRECT); they are written as `posix` writes them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from datagen.errors import UserError
from datagen.storage.posix import FileReader, FileWriter

ALIGNMENT = 4096
"""Good for every block device: logical blocks are 512 or 4096 bytes."""


class Storage:
    """Files opened with O_DIRECT."""

    alignment = ALIGNMENT
    reads_nothing = False

    def open(self, path: str) -> DirectReader:
        with _telling(path):
            return DirectReader(path)

    def create(self, path: str) -> FileWriter:
        return FileWriter(path)


class DirectReader(FileReader):
    """One file open past the page cache."""

    def __init__(self, path: str) -> None:
        super().__init__(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT), ALIGNMENT)
        self._path = path

    def read_into(self, buffer: memoryview, offset: int) -> int:
        with _telling(self._path):
            return super().read_into(buffer, offset)


@contextlib.contextmanager
def _telling(path: str) -> Iterator[None]:
    """Say what it means when a file system can't do O_DIRECT: some refuse to open, others to read."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise UserError(
            f"the file system of {os.path.dirname(path)} refuses O_DIRECT: "
            "set reader.odirect=false, or put the dataset on one that has it (ext4, xfs, Lustre, NFS)"
        ) from error

"""Files in a dict of this process, for tests that need no disk."""

from __future__ import annotations

import errno
import os

from datagen.storage._view import ViewReader
from datagen.storage.storage_base import Bytes


class Storage:
    """Files by path, as bytes in `files`."""

    alignment = 1
    reads_nothing = False

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def open(self, path: str) -> ViewReader:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return ViewReader(memoryview(self.files[path]))

    def create(self, path: str) -> MemoryWriter:
        return MemoryWriter(self.files, path)


class MemoryWriter:
    """One file under way in memory."""

    def __init__(self, files: dict[str, bytes], path: str) -> None:
        self._files = files
        self._path = path
        self._data = bytearray()
        self.position = 0

    def write(self, data: Bytes) -> None:
        self.write_at(data, self.position)
        self.position += len(data)

    def skip(self, size_bytes: int) -> None:
        self.position += size_bytes

    def write_at(self, data: Bytes, offset: int) -> None:
        missing = offset + len(data) - len(self._data)
        if missing > 0:
            self._data.extend(bytes(missing))
        self._data[offset : offset + len(data)] = data

    def commit(self, fsync: bool) -> None:
        self._files[self._path] = bytes(self._data)

    def discard(self) -> None:
        self._data.clear()

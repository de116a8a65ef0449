"""Files read through a memory map: the page cache is filled by page faults, and bytes are copied from its pages."""

from __future__ import annotations

import mmap
import os

from datagen.storage.posix import FileWriter


class Storage:
    """Ordinary files, mapped for reading."""

    alignment = 1
    reads_nothing = False

    def open(self, path: str) -> MappedReader:
        return MappedReader(path)

    def create(self, path: str) -> FileWriter:
        return FileWriter(path)


class MappedReader:
    """One mapped file. What was mapped when it was opened is what it reads: the file must not shrink meanwhile."""

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.size_bytes = os.fstat(descriptor).st_size
            # An empty file can't be mapped.
            self._map = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) if self.size_bytes else None
        finally:
            os.close(descriptor)
        self._data = memoryview(self._map or b"")
        self.read_calls = 0
        self.app_bytes = 0

    def read_into(self, buffer: memoryview, offset: int) -> int:
        piece = self._data[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        self.read_calls += 1
        self.app_bytes += len(piece)
        return len(piece)

    def close(self) -> None:
        self._data.release()
        if self._map is not None:
            self._map.close()

"""Files read and written through the page cache."""

from __future__ import annotations

import contextlib
import os

from datagen.storage.storage_base import Bytes

PART_SUFFIX = ".part"
"""A file under way is called `.NAME.part`, in the folder where it will be `NAME`."""


class Storage:
    """Ordinary files."""

    alignment = 1
    reads_nothing = False

    def open(self, path: str) -> FileReader:
        return FileReader(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def create(self, path: str) -> FileWriter:
        return FileWriter(path)


class FileReader:
    """One open file, read by preadv. `alignment` > 1 ends a file at the first read that is no multiple of it."""

    def __init__(self, descriptor: int, alignment: int = 1) -> None:
        self._descriptor = descriptor
        self._alignment = alignment
        self.size_bytes = os.fstat(descriptor).st_size
        self.read_calls = 0
        self.app_bytes = 0

    def read_into(self, buffer: memoryview, offset: int) -> int:
        got = 0
        while got < len(buffer):
            # One call moves at most 2 GiB - 4 KiB (Linux), and a signal may cut it short.
            count = os.preadv(self._descriptor, [buffer[got:] if got else buffer], offset + got)
            self.read_calls += 1
            got += count
            if count == 0 or count % self._alignment:
                break
            if offset + got >= self.size_bytes:
                break
        self.app_bytes += got
        return got

    def close(self) -> None:
        os.close(self._descriptor)


class FileWriter:
    """A file under way, beside its final place, so that the rename is within one folder."""

    def __init__(self, path: str) -> None:
        folder, name = os.path.split(path)
        self._path = path
        self._part = os.path.join(folder, f".{name}{PART_SUFFIX}")
        self._descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self.position = 0

    def write(self, data: Bytes) -> None:
        self.write_at(data, self.position)
        self.position += len(data)

    def skip(self, size_bytes: int) -> None:
        self.position += size_bytes

    def write_at(self, data: Bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            count = os.pwrite(self._descriptor, view, offset)
            view = view[count:]
            offset += count

    def commit(self, fsync: bool) -> None:
        if fsync:
            os.fsync(self._descriptor)
        self._close()
        os.rename(self._part, self._path)

    def discard(self) -> None:
        if self._descriptor >= 0:
            self._close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._part)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)  # file systems on a network may report a failed write only here

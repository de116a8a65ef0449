"""Storage that costs nothing: reads return at once and touch nothing, so what is left is the emulator's own cost."""

from __future__ import annotations

from datagen.storage.storage_base import Bytes


class Storage:
    """No files at all. Every path can be opened, is empty, and swallows what is written to it."""

    alignment = 1
    reads_nothing = True

    def open(self, path: str) -> NullReader:
        return NullReader()

    def create(self, path: str) -> NullWriter:
        return NullWriter()


class NullReader:
    """A file without a byte."""

    size_bytes = 0
    read_calls = 0
    app_bytes = 0

    def read_into(self, buffer: memoryview, offset: int) -> int:
        return 0

    def close(self) -> None:
        return


class NullWriter:
    """Counts positions, keeps nothing."""

    def __init__(self) -> None:
        self.position = 0

    def write(self, data: Bytes) -> None:
        self.position += len(data)

    def skip(self, size_bytes: int) -> None:
        self.position += size_bytes

    def write_at(self, data: Bytes, offset: int) -> None:
        return

    def commit(self, fsync: bool) -> None:
        return

    def discard(self) -> None:
        return

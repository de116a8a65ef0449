"""Backend without files: reads return at once, so that a measurement shows the emulator's own cost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from datagen.storage.memory import MemoryReader
from datagen.storage.storage_base import Bytes, Entry, StorageBase, Writer


class Storage(StorageBase):
    """No files are kept: every path opens as an empty file, and writes are discarded."""

    reads_nothing = True

    def open(self, path: str) -> MemoryReader:
        return MemoryReader(memoryview(b""))

    def create(self, path: str) -> NullWriter:
        return NullWriter()

    @contextlib.contextmanager
    def entries(self, folder: str) -> Iterator[Iterator[Entry]]:
        yield iter(())

    def size_bytes(self, path: str) -> int:
        return 0

    def remove(self, path: str) -> None:
        return


class NullWriter(Writer):
    """Tracks `position` and discards the data."""

    def write_at(self, data: Bytes, offset: int) -> None:
        return

    def commit(self) -> None:
        return

    def discard(self) -> None:
        return

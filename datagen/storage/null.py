"""Backend without files: reads return at once, so that a measurement shows the emulator's own cost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from datagen.storage.memory import MemoryReader
from datagen.storage.storage_base import NULL_STORAGE, Bytes, Entry, StorageBase, StorageSpec


class Storage(StorageBase):
    """No files at all: every path opens as an empty file, and writes are discarded."""

    reads_nothing = True

    def __init__(self, spec: StorageSpec = NULL_STORAGE) -> None:
        super().__init__(spec)

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


class NullWriter:
    """Tracks `position` and discards the data."""

    def __init__(self) -> None:
        self.position = 0

    def write(self, data: Bytes) -> None:
        self.position += len(data)

    def skip(self, size_bytes: int) -> None:
        self.position += size_bytes

    def write_at(self, data: Bytes, offset: int) -> None:
        return

    def sync(self) -> None:
        return

    def commit(self) -> None:
        return

    def discard(self) -> None:
        return

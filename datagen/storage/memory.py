"""Backend that keeps files in a dict of this process, for tests without a disk, and a `Reader` of bytes in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from datagen.errors import no_such_file
from datagen.storage.storage_base import FOLDERS, Bytes, Entry, Listed, Reader, StorageBase, StorageSpec, Writer


class Storage(StorageBase):
    """Files held in memory: `files` maps each path to its bytes."""

    def __init__(self, spec: StorageSpec = FOLDERS) -> None:
        super().__init__(spec)
        self.files: dict[str, bytes] = {}
        self.folders: set[str] = set()

    def open(self, path: str) -> MemoryReader:
        return MemoryReader(memoryview(self._data(path)))

    def create(self, path: str) -> MemoryWriter:
        return MemoryWriter(self.files, path)

    @contextlib.contextmanager
    def entries(self, folder: str) -> Iterator[Iterator[Entry]]:
        prefix = folder.rstrip("/") + "/"
        descendants = [path[len(prefix) :] for path in (*self.files, *self.folders) if path.startswith(prefix)]
        if not descendants and prefix[:-1] not in self.folders:
            raise no_such_file(folder)
        names = dict.fromkeys(path.split("/", 1)[0] for path in descendants)
        yield iter([Listed(name, prefix + name not in self.files) for name in names])

    def size_bytes(self, path: str) -> int:
        return len(self._data(path))

    def remove(self, path: str) -> None:
        if self.files.pop(path, None) is None:
            raise no_such_file(path)

    def make_folder(self, folder: str) -> None:
        self.folders.add(folder.rstrip("/"))

    def memory_kind(self, folder: str) -> str:
        return "memory"

    def _data(self, path: str) -> bytes:
        if path not in self.files:
            raise no_such_file(path)
        return self.files[path]


class MemoryReader(Reader):
    """Reads a file whose bytes are in memory already, by copying them."""

    def __init__(self, data: memoryview) -> None:
        super().__init__(len(data))
        self._data = data

    def read_into(self, buffer: memoryview, offset: int) -> int:
        data = self._bytes_at(offset, len(buffer))
        buffer[: len(data)] = data
        self.read_calls += 1
        self.app_bytes += len(data)
        return len(data)

    def _bytes_at(self, offset: int, size_bytes: int) -> memoryview | bytes:
        """Return bytes of the file; a subclass may return a copy."""
        return self._data[offset : offset + size_bytes]

    def close(self) -> None:
        self._data.release()


class MemoryWriter(Writer):
    def __init__(self, files: dict[str, bytes], path: str) -> None:
        self._files = files
        self._path = path
        self._data = bytearray()

    def write_at(self, data: Bytes, offset: int) -> None:
        missing_bytes = offset + len(data) - len(self._data)
        if missing_bytes > 0:
            self._data.extend(bytes(missing_bytes))
        self._data[offset : offset + len(data)] = data

    def commit(self) -> None:
        self._files[self._path] = bytes(self._data)

    def discard(self) -> None:
        self._data.clear()

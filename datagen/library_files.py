"""Files that are opened for a format's library where no path names them: in object stores, in memory."""

from __future__ import annotations

from collections import OrderedDict

from datagen.formats.format_base import MAX_KEPT_FILES
from datagen.storage.memory import MemoryReader
from datagen.storage.storage_base import Brought, LibraryFile, StorageBase, StoredFile


class LibraryFiles:
    """Files of a storage without paths, opened as scripts do it, for the libraries of formats.

    By the library that the storage's users have in their scripts, where one is named (s3torchconnector, fsspec); else
    an object that is wanted `whole` is fetched into memory, and of others parts are read where they are requested. The
    file opened last serves all samples of it that follow each other in a batch, and index files are kept.
    """

    def __init__(self, storage: StorageBase, *, whole: bool) -> None:
        self._storage = storage
        self._whole = whole
        self._last: LibraryFile | None = None
        self._closed = Brought(0, 0)
        self._indexes: OrderedDict[str, memoryview] = OrderedDict()

    def open(self, path: str) -> LibraryFile:
        """Open a data file, or rewind it. Raises OSError, DlemuError."""
        if self._last is None or self._last.name != path:
            self.finish()
            self._last = self._opened(path, self._whole)
        self._last.seek(0)
        return self._last

    def index(self, path: str) -> memoryview:
        """Return all of an index file. Raises OSError, DlemuError."""
        known = self._indexes.get(path)
        if known is None:
            file = self._opened(path, True)
            try:
                known = self._indexes[path] = memoryview(file.readall())
            finally:
                self._close(file)
            if len(self._indexes) > MAX_KEPT_FILES:
                self._indexes.popitem(last=False)
        return known

    def brought(self) -> Brought:
        """Return what came from the storage so far."""
        return self._closed if self._last is None else _sum(self._closed, self._last.brought())

    @property
    def failure(self) -> Exception | None:
        """What reading the file opened last raised."""
        return None if self._last is None else self._last.failure

    def finish(self) -> None:
        """Close what is open; the indexes stay."""
        last, self._last = self._last, None
        if last is not None:
            self._close(last)

    def _close(self, file: LibraryFile) -> None:
        self._closed = _sum(self._closed, file.brought())
        file.close()

    def _opened(self, path: str, whole: bool) -> LibraryFile:
        opened = self._storage.open_by_library(path, whole=whole)
        if opened is not None:
            return opened
        if whole and self._storage.is_remote:
            return FetchedFile(path, self._storage)
        return StoredFile(path, self._storage.open(path))


class FetchedFile(StoredFile):
    """An object that was fetched whole, as scripts do it: np.load(io.BytesIO(reader.read()))."""

    def __init__(self, path: str, storage: StorageBase) -> None:
        """Fetch it. Raises OSError, DlemuError."""
        reader = storage.open_whole(path)
        try:
            data = memoryview(bytearray(reader.size_bytes))
            app_bytes = reader.read_into(data, 0)
            self._brought = Brought(app_bytes, reader.read_calls)
        finally:
            reader.close()
        super().__init__(path, MemoryReader(data))

    def brought(self) -> Brought:
        return self._brought


def _sum(one: Brought, other: Brought) -> Brought:
    return Brought(one.app_bytes + other.app_bytes, one.read_calls + other.read_calls)

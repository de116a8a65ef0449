"""Opens files for a format's library on storage without local paths: in object stores, in memory."""

from __future__ import annotations

from collections import OrderedDict

from datagen.formats.format_base import MAX_KEPT_FILES
from datagen.storage.memory import MemoryReader
from datagen.storage.storage_base import LibraryFile, ReadTotals, StorageBase, StoredFile


class LibraryFiles:
    """Opens files of a storage without local paths as training scripts do, for the libraries of formats.

    Files are opened by the client library of the storage's settings, if one is named (s3torchconnector, fsspec).
    Otherwise, with `whole`, an object is fetched into memory; else parts of it are read when requested. The last file
    stays open for further samples of a batch, and index files are kept in memory.
    """

    def __init__(self, storage: StorageBase, *, whole: bool) -> None:
        self._storage = storage
        self._whole = whole
        self._last: LibraryFile | None = None
        self._closed = ReadTotals(0, 0)
        self._indexes: OrderedDict[str, memoryview] = OrderedDict()

    def open(self, path: str) -> LibraryFile:
        """Open a data file, or rewind it. Raises OSError, DlemuError."""
        if self._last is None or self._last.name != path:
            self.finish()
            self._last = self._open(path, self._whole)
        self._last.seek(0)
        return self._last

    def index(self, path: str) -> memoryview:
        """Return the bytes of an index file. Raises OSError, DlemuError."""
        known = self._indexes.get(path)
        if known is None:
            file = self._open(path, True)
            try:
                known = self._indexes[path] = memoryview(file.readall())
            finally:
                self._close(file)
            if len(self._indexes) > MAX_KEPT_FILES:
                self._indexes.popitem(last=False)
        return known

    def read_totals(self) -> ReadTotals:
        """Return the bytes and read calls so far."""
        return self._closed if self._last is None else _sum(self._closed, self._last.read_totals())

    @property
    def failure(self) -> Exception | None:
        """The error that reading the last opened file raised, if any."""
        return None if self._last is None else self._last.failure

    def finish(self) -> None:
        """Close the last file; index files stay in memory."""
        last, self._last = self._last, None
        if last is not None:
            self._close(last)

    def _close(self, file: LibraryFile) -> None:
        self._closed = _sum(self._closed, file.read_totals())
        file.close()

    def _open(self, path: str, whole: bool) -> LibraryFile:
        opened = self._storage.open_by_library(path, whole=whole)
        if opened is not None:
            return opened
        if whole and self._storage.is_remote:
            return FetchedFile(path, self._storage)
        return StoredFile(path, self._storage.open(path))


class FetchedFile(StoredFile):
    """An object fetched whole into memory, as scripts do: np.load(io.BytesIO(reader.read()))."""

    def __init__(self, path: str, storage: StorageBase) -> None:
        """Fetch the object. Raises OSError, DlemuError."""
        reader = storage.open_whole(path)
        try:
            data = memoryview(bytearray(reader.size_bytes))
            app_bytes = reader.read_into(data, 0)
            self._read_totals = ReadTotals(app_bytes, reader.read_calls)
        finally:
            reader.close()
        super().__init__(path, MemoryReader(data))

    def read_totals(self) -> ReadTotals:
        return self._read_totals


def _sum(one: ReadTotals, other: ReadTotals) -> ReadTotals:
    return ReadTotals(one.app_bytes + other.app_bytes, one.read_calls + other.read_calls)

"""A storage that keeps its files in an SQLite database: docs/extending.md."""

import contextlib
import errno
import sqlite3

from datagen.storage.storage_base import Listed, Reader, StorageBase, Writer


class Storage(StorageBase):
    def open(self, path):
        return StoredReader(self.one("SELECT data FROM files WHERE path = ?", path))

    def create(self, path):
        return StoredWriter(self, path)

    @contextlib.contextmanager
    def entries(self, folder):
        paths = self.ask("SELECT path FROM files WHERE path LIKE ? || '/%'", folder)
        below = [path[len(folder) + 1 :].split("/") for (path,) in paths]
        if not below:
            raise FileNotFoundError(errno.ENOENT, "no such folder", folder)
        yield (Listed(name, is_folder) for name, is_folder in {(parts[0], len(parts) > 1) for parts in below})

    def size_bytes(self, path):
        return self.one("SELECT length(data) FROM files WHERE path = ?", path)

    def remove(self, path):
        self.size_bytes(path)
        self.ask("DELETE FROM files WHERE path = ?", path)

    def one(self, sql, path):
        for (value,) in self.ask(sql, path):
            return value
        raise FileNotFoundError(errno.ENOENT, "no such file", path)

    def ask(self, sql, *values):
        with contextlib.closing(sqlite3.connect(self.spec.root, timeout=60)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, data BLOB)")
            return database.execute(sql, values).fetchall()


class StoredReader(Reader):
    def __init__(self, data):
        super().__init__(len(data))
        self.data = data

    def read_into(self, buffer, offset):
        piece = self.data[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        self.read_calls += 1
        self.app_bytes += len(piece)
        return len(piece)


class StoredWriter(Writer):
    def __init__(self, storage, path):
        self.storage, self.path, self.data = storage, path, bytearray()

    def write_at(self, data, offset):
        self.data.extend(bytes(max(0, offset + len(data) - len(self.data))))
        self.data[offset : offset + len(data)] = data

    def commit(self):
        self.storage.ask("REPLACE INTO files VALUES (?, ?)", self.path, bytes(self.data))

    def discard(self):
        self.data.clear()

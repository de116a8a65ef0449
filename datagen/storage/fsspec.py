"""Backend for anything fsspec supports: Google's, Azure's and Hadoop's storage, WebDAV, `file://`, `memory://`.

A path is a URL (`gs://bucket/key`), or relative to the URL `StorageSpec.root`. The fsspec file system gets the options
unchanged. Each read calls `cat_file` for one byte range, and copies its result into the caller's memory. This is slower
than the `s3` backend. Retries and timeouts inside the fsspec package are not counted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from typing import Any

from datagen import owned
from datagen.errors import UserError, no_such_file
from datagen.registry import library
from datagen.storage.memory import MemoryWriter
from datagen.storage.posix import FileWriter
from datagen.storage.storage_base import Bytes, Entry, Listed, Reader, StorageBase, StorageSpec, Writer
from datagen.withheld import redact_message, redact_urls

LOCAL_SCHEMES = ("file", "local")
MAX_FILE_BYTES = 16 << 30  # of a file to be written, which is in memory until it is complete


class Storage(StorageBase):
    def __init__(self, spec: StorageSpec) -> None:
        super().__init__(spec)
        fsspec = library("fsspec", "fsspec", "storage.storage_type=fsspec")
        scheme, separator, path = spec.root.partition("://")
        if not separator:
            wanted = "fsspec needs a URL there, such as gs://BUCKET, abfs://CONTAINER or file:///mnt/data"
            raise UserError(f"storage.storage_root is {redact_urls(spec.root)!r}: {wanted}")
        self._root = f"{scheme}://{path.rstrip('/')}"
        self.is_remote = scheme not in (*LOCAL_SCHEMES, "memory")  # type: ignore[misc]  # overrides the ClassVar
        self.server = scheme
        self._is_local = scheme in LOCAL_SCHEMES
        self.held_bytes = 0 if self._is_local else 2 * MAX_FILE_BYTES  # `commit` sends a copy
        self._options = dict(spec.options)
        try:
            # Some instances keep connections and event loops, which threads and forks must not share
            self.fs: Any = fsspec.filesystem(scheme, skip_instance_cache=scheme != "memory", **self._options)
        except (ImportError, ValueError, TypeError) as error:
            problem = f"storage.storage_root is {redact_urls(spec.root)}"
            if isinstance(error, TypeError):
                problem = f"storage.storage_options do not fit fsspec's {scheme} file system"
            raise UserError(f"{problem}: {redact_message(str(error), self._options)}") from None

    def open(self, path: str) -> FsspecReader:
        return FsspecReader(self, self._url(path), self.size_bytes(path))

    def create(self, path: str) -> Writer:
        local = self.local_path(path)
        return FsspecWriter(self, self._url(path)) if local is None else FileWriter(local)

    @contextlib.contextmanager
    def entries(self, folder: str) -> Iterator[Iterator[Entry]]:
        url = self._url(folder)
        self.fs.invalidate_cache()
        with self.raising_os_errors(folder):
            entries = self.fs.ls(url, detail=True)
        own_name = self.fs._strip_protocol(url).rstrip("/")  # `ls` of a file lists the file itself
        children = [entry for entry in entries if entry["name"].rstrip("/") != own_name]
        if not children and not self.fs.isdir(url):
            raise no_such_file(folder)
        yield (
            Listed(entry["name"].rstrip("/").rpartition("/")[2], entry["type"] == "directory", entry.get("size"))
            for entry in children
        )

    def size_bytes(self, path: str) -> int:
        with self.raising_os_errors(path):
            info = self.fs.info(self._url(path))
        if info["type"] == "directory":
            raise no_such_file(path)
        if info["type"] == "other":  # a local pipe or device: opening a pipe would block forever
            raise OSError(errno.ENODEV, "it is not a regular file", path)
        if (size := info.get("size")) is None:
            raise OSError(errno.EOPNOTSUPP, "the server does not state the size of the file", path)
        return int(size)

    def remove(self, path: str) -> None:
        with self.raising_os_errors(path):
            self.fs.rm_file(self._url(path))

    def make_folder(self, folder: str) -> None:
        with self.raising_os_errors(folder):
            self.fs.makedirs(self._url(folder), exist_ok=True)

    def remove_unfinished(self, folder: str) -> None:
        local = self.local_path(folder)
        if local is not None:  # only local writers use temporary names
            with contextlib.suppress(FileNotFoundError):
                owned.remove_parts(local)

    def local_path(self, path: str) -> str | None:
        return str(self.fs._strip_protocol(self._url(path))) if self._is_local else None  # `_strip_protocol` expands ~

    @contextlib.contextmanager
    def raising_os_errors(self, path: str) -> Iterator[None]:
        """Turn the exceptions of fsspec packages into OSError, without the values of secret options."""
        try:
            yield
        except FileNotFoundError as error:
            raise no_such_file(path) from error
        except Exception as error:
            message = redact_message(str(error), self._options)
            is_public = message == str(error)
            if isinstance(error, UserError) or (isinstance(error, OSError) and is_public):
                raise
            error_number = error.errno if isinstance(error, OSError) else None
            cause = error if is_public else None  # a traceback shows the cause, which may hold secrets
            raise OSError(error_number or errno.EIO, f"{type(error).__name__}: {message}", path) from cause

    def _url(self, path: str) -> str:
        if "://" in path:
            return path
        return f"{self._root}/{os.path.normpath(path).lstrip('/')}"


class FsspecReader(Reader):
    def __init__(self, storage: Storage, url: str, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self._storage = storage
        self._url = url

    def read_into(self, buffer: memoryview, offset: int) -> int:
        wanted_bytes = min(len(buffer), self.size_bytes - offset)
        if wanted_bytes <= 0:
            return 0
        self.read_calls += 1
        with self._storage.raising_os_errors(self._url):
            data = self._storage.fs.cat_file(self._url, start=offset, end=offset + wanted_bytes)
        if len(data) > wanted_bytes:  # the server ignored the range
            raise OSError(errno.EIO, f"{len(data)} bytes arrived where {wanted_bytes} were requested", self._url)
        buffer[: len(data)] = data
        self.app_bytes += len(data)
        return len(data)


class FsspecWriter(MemoryWriter):
    """One file being written. It stays in memory until `commit` sends it, so that no store has an incomplete file."""

    def __init__(self, storage: Storage, url: str) -> None:
        super().__init__({}, url)
        self._storage = storage
        self._lock = threading.Lock()  # threads that write one checkpoint share this writer

    def write_at(self, data: Bytes, offset: int) -> None:
        if offset + len(data) > MAX_FILE_BYTES:
            limit = f"{MAX_FILE_BYTES >> 30} GiB, the limit for fsspec, as a file is in memory until it is complete"
            raise UserError(f"{self._path} exceeds {limit}: wanted smaller files, storage.storage_type=s3, or a folder")
        with self._lock:
            super().write_at(data, offset)

    def commit(self) -> None:
        with self._storage.raising_os_errors(self._path):
            self._storage.fs.pipe_file(self._path, bytes(self._data))
        self._data.clear()

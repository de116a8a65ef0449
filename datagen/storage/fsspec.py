"""Files of whatever fsspec has a file system for: Google's, Azure's and Hadoop's storage, WebDAV, `file://`, `memory://`.

A path is a URL (`gs://bucket/key`), or lies below `StorageSpec.root`, which is one. Options go to fsspec's file system
as they are. Each read is one `cat_file` of a range, whose bytes are copied once into the caller's memory: slower than
`s3`, and whatever fsspec's package does by itself (retries, time-outs) it does unseen.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from datagen import owned
from datagen.errors import UserError
from datagen.extras import library
from datagen.storage._client_files import open_by_fsspec
from datagen.storage.storage_base import Bytes, Entry, LibraryFile, Listed, Option, StorageBase, StorageSpec
from datagen.withheld import public_text, scrubbed

LOCAL_SCHEMES = ("file", "local")


class Storage(StorageBase):
    """One file system of fsspec's."""

    def __init__(self, spec: StorageSpec) -> None:
        super().__init__(spec)
        fsspec = library("fsspec", "fsspec", "storage.storage_type=fsspec")
        scheme, separator, rest = spec.root.partition("://")
        if not separator:
            raise UserError(
                f"storage.storage_root is {public_text(spec.root)!r}: fsspec needs a URL there, such as gs://BUCKET, "
                "abfs://CONTAINER or file:///mnt/data"
            )
        self._root = f"{scheme}://{rest.rstrip('/')}"
        self.is_remote = scheme not in (*LOCAL_SCHEMES, "memory")  # type: ignore[misc]  # of this object
        self.server = scheme
        self._is_local = scheme in LOCAL_SCHEMES
        self._options = dict(spec.options)
        try:
            # Threads and forks get a file system of their own: some keep connections and event loops.
            self._files: Any = fsspec.filesystem(scheme, skip_instance_cache=scheme != "memory", **dict(spec.options))
        except (ImportError, ValueError) as error:
            message = scrubbed(str(error), self._options)
            raise UserError(f"storage.storage_root is {public_text(spec.root)}: {message}") from None
        except TypeError as error:
            message = scrubbed(str(error), self._options)
            raise UserError(f"storage.storage_options do not fit fsspec's {scheme} file system: {message}") from None

    def open(self, path: str) -> FsspecReader:
        place = self._place(path)
        return FsspecReader(self._files, place, self.size_bytes(path), self._errors)

    def open_by_library(self, path: str, *, whole: bool) -> LibraryFile | None:
        return open_by_fsspec(self._files, self._place(path), path, "fsspec")

    def create(self, path: str) -> FsspecWriter:
        return FsspecWriter(self._files, self._place(path), self._errors, renames=self._is_local)

    @contextlib.contextmanager
    def entries(self, folder: str) -> Iterator[Iterator[Entry]]:
        place = self._place(folder)
        self._files.invalidate_cache()
        with self._errors(folder):
            listed = self._files.ls(place, detail=True)
        inside = [entry for entry in listed if entry["name"].rstrip("/") != _bare(place)]
        if not inside and not self._files.isdir(place):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
        yield iter(
            [Listed(entry["name"].rstrip("/").rpartition("/")[2], entry["type"] == "directory") for entry in inside]
        )

    def size_bytes(self, path: str) -> int:
        with self._errors(path):
            known = self._files.info(self._place(path))
        if known["type"] == "directory":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if known["type"] == "other":  # of a local file system: to open a pipe would wait for ever
            raise OSError(errno.ENODEV, "it is not a regular file", path)
        return int(known["size"])

    def remove(self, path: str) -> None:
        with self._errors(path):
            self._files.rm_file(self._place(path))

    def make_folder(self, folder: str) -> None:
        with self._errors(folder):
            self._files.makedirs(self._place(folder), exist_ok=True)

    def remove_unfinished(self, folder: str) -> None:
        local = self.local_path(folder)
        if local is not None:  # elsewhere a writer leaves nothing under a name of its own
            with contextlib.suppress(FileNotFoundError):
                owned.remove_parts(local)

    def local_path(self, path: str) -> str | None:
        return _bare(self._place(path)) if self._is_local else None

    def device_folders(self, folders: Iterable[str]) -> Iterator[str]:
        return iter([_bare(self._place(folder)) for folder in list(folders)[:1]] if self._is_local else [])

    def preflight(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.info(self._root)

    def _errors(self, path: str) -> _Errors:
        return _Errors(path, self._options)

    def _place(self, path: str) -> str:
        if "://" in path:
            return path
        return f"{self._root}/{os.path.normpath(path).lstrip('/')}"


class FsspecReader:
    """One file, read by ranges."""

    def __init__(self, files: Any, place: str, size_bytes: int, errors: Callable[[str], _Errors]) -> None:
        self.size_bytes = size_bytes
        self.read_calls = 0
        self.app_bytes = 0
        self._files, self._place, self._errors = files, place, errors

    def read_into(self, buffer: memoryview, offset: int) -> int:
        self.read_calls += 1
        wanted = max(0, min(len(buffer), self.size_bytes - offset))
        if not wanted:
            return 0
        with self._errors(self._place):
            data = self._files.cat_file(self._place, start=offset, end=offset + wanted)
        if len(data) > wanted:  # of a server that knows no ranges
            raise OSError(errno.EIO, f"{len(data)} bytes arrived where {wanted} were requested", self._place)
        buffer[: len(data)] = data
        self.app_bytes += len(data)
        return len(data)

    def close(self) -> None:
        return


class FsspecWriter:
    """One file under way. What follows bytes that were skipped waits in memory until these are written."""

    def __init__(self, files: Any, place: str, errors: Callable[[str], _Errors], *, renames: bool) -> None:
        self.position = 0
        self._files, self._place, self._errors, self._renames = files, place, errors, renames
        folder, _, name = place.rpartition("/")
        self._part = f"{folder}/{owned.part_name(name)}" if renames else place
        self._data = bytearray()
        self._file: Any = None
        self._passed = 0
        """Bytes that were given to the file."""
        self._whole = True
        """Nothing was skipped so far."""
        self._before: Any = None
        """What had the file's name when it was begun."""

    def write(self, data: Bytes) -> None:
        self.write_at(data, self.position)
        self.position += len(data)

    def skip(self, size_bytes: int) -> None:
        self._whole = False
        self.position += size_bytes

    def write_at(self, data: Bytes, offset: int) -> None:
        begin = offset - self._passed
        if begin < 0:
            raise UserError(
                f"{self._place}: bytes at offset {offset} must be written after they were sent: write this format to "
                "a folder"
            )
        missing = begin + len(data) - len(self._data)
        if missing > 0:
            self._data.extend(bytes(missing))
        self._data[begin : begin + len(data)] = data
        if self._whole and len(self._data) >= 8 << 20:  # small writes of a format are one call of the library
            self._pass_on()

    def sync(self) -> None:
        """Do nothing: what is committed is stored."""

    def commit(self) -> None:
        self._pass_on()
        with self._errors(self._place):
            self._file.close()
            if self._renames:
                self._files.mv(self._part, self._place)
        self._file = None

    def discard(self) -> None:
        self._data.clear()
        file, self._file = self._file, None
        if file is None:
            return
        with contextlib.suppress(Exception):  # whatever fsspec's package raises: nothing may be left, not even that
            file.discard()  # some abort their upload by it; others inherit one that does nothing
        try:
            file.closed = True  # one that is open is stored by its destructor: as far as it was written
        except AttributeError:  # no AbstractBufferedFile
            with contextlib.suppress(Exception):
                file.close()
        with contextlib.suppress(Exception):
            if self._info() != self._before:  # a store in which a file is there while it is written
                self._files.rm_file(self._part)

    def _info(self) -> Any:
        """Return what the store says of the file; None where there is none."""
        self._files.invalidate_cache()
        try:
            return self._files.info(self._part)
        except FileNotFoundError:
            return None

    def _pass_on(self) -> None:
        with self._errors(self._place):
            if self._file is None:
                self._before = self._info()
                self._file = self._files.open(self._part, "wb")
            self._file.write(bytes(self._data))
        self._passed += len(self._data)
        self._data.clear()


class _Errors:
    """Turns what fsspec's packages raise into errors of the system, without the options that they may quote."""

    __slots__ = ("_options", "_path")

    def __init__(self, path: str, options: Mapping[str, Option]) -> None:
        self._path, self._options = path, options

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, UserError):
            return
        if isinstance(error, FileNotFoundError):
            if error.errno is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path) from error
            return
        message = scrubbed(str(error), self._options)
        if isinstance(error, OSError) and message == str(error):
            return
        number = error.errno if isinstance(error, OSError) else None
        # What caused it would be quoted in a traceback.
        cause = error if message == str(error) else None
        raise OSError(number or errno.EIO, f"{type(error).__name__}: {message}", self._path) from cause


def _bare(place: str) -> str:
    """Return a place without its scheme, as fsspec lists it."""
    return place.partition("://")[2].rstrip("/")

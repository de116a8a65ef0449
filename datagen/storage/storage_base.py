"""What every storage does, for datasets and for checkpoints: the only way from here to files or objects.

A storage is one module with a class `Storage`, a `StorageBase`: a file of this folder, or a module of the user's own
under its dotted name. What crosses to other processes is a `StorageSpec`; each process opens its own by `open_storage`.
"""

from __future__ import annotations

import abc
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Protocol

from datagen import registry
from datagen.buffers import AlignedBuffer
from datagen.errors import UserError
from datagen.regular import MOST_NOTE_BYTES, check_size
from datagen.withheld import WITHHELD

Bytes = bytes | bytearray | memoryview
Option = str | int | float | bool | None

FOLDER_TYPES = {
    "local_fs": "posix",
    "parallel_fs": "posix",
    "posix": "posix",
    "direct": "direct",
    "direct_fs": "direct",
}
"""DLIO's words and ours for folders of any mounted file system, and the modules they name.

`direct_fs` is what mlpstorage v3.0 calls direct reading (`--o-direct`).
"""
_LIBRARY_OPTIONS = ("storage_library", "uri_scheme")
"""Which library mlpstorage reads with: of no effect on folders."""
LIBRARIES_OF_OBJECTS = ("s3torchconnector", "s3fs")
"""Those values of `storage_library` by which `reader.engine=library` reads objects of an S3 server."""
INSIDE_TYPES = ("mapped", "memory", "null")
"""Storages for use inside and for tests: no dataset that a user names lies there."""


@dataclass(frozen=True, kw_only=True)
class StorageSpec:
    """Which storage, and how it is set; picklable. It never holds credentials: these stay in the environment."""

    type: str = "posix"
    """Name of a module in `datagen.storage`, or a dotted name."""
    root: str = ""
    """Where paths begin, for storages other than folders: a bucket, a server's address."""
    options: tuple[tuple[str, Option], ...] = ()
    """Settings that only this storage knows, as (name, value)."""
    direct: bool = False
    """Read past the page cache."""
    direct_writes: bool = False
    """Write past it, too."""
    range_bytes: int = 0
    """Bytes that one request for an object requests at most; 0: all of it by one."""
    io_depth: int = 1
    """Requests that a reader has in flight."""
    account: str = ""
    """Folder of this host in which a process that sends requests counts them, for others to see; empty: nowhere."""

    @property
    def buffered(self) -> StorageSpec:
        """Return the same storage used through the page cache: for lists, manifests and all that is not measured."""
        return replace(self, direct=False, direct_writes=False)


FOLDERS = StorageSpec()
"""Folders of any mounted file system, read through the page cache."""
NULL_STORAGE = StorageSpec(type="null")
"""No storage at all: reads return at once, so what is left is the reader's own cost."""


def storage_spec(
    storage_type: str,
    *,
    root: str = "",
    options: Mapping[str, Option] | None = None,
    direct: bool = False,
    range_bytes: int = 0,
    io_depth: int = 1,
) -> StorageSpec:
    """Return the spec of a storage under the name that a user gives it: `local_fs`, `direct`, or a dotted name.

    Raises:
        UserError: nothing that a user may name has that name, or folders are given options.
    """
    options = options or {}
    if storage_type == "direct_fs":
        options = {name: value for name, value in options.items() if name not in _LIBRARY_OPTIONS}
    if storage_type in FOLDER_TYPES:
        if options:
            raise UserError(
                f"storage.storage_options has {', '.join(options)}, but storage.storage_type={storage_type} has no "
                "options: leave them out"
            )
        return StorageSpec(direct=direct or FOLDER_TYPES[storage_type] == "direct")
    if storage_type not in storage_names() and "." not in storage_type:
        raise UserError(f"storage.storage_type is {storage_type!r}: {_known(storage_type)}")
    for name, value in options.items():
        if value == WITHHELD:
            raise UserError(
                f"storage.storage_options.{name} was left out when this configuration was saved, because it may "
                f"be a credential: give it again, storage.storage_options.{name}=VALUE"
            )
    return StorageSpec(
        type=storage_type,
        root=root,
        options=tuple(sorted(options.items())),
        direct=direct,
        range_bytes=range_bytes,
        io_depth=io_depth,
    )


def storage_names() -> list[str]:
    """Return the names that a user may write."""
    return sorted({*FOLDER_TYPES, *registry.names("datagen.storage")} - {*INSIDE_TYPES})


def _known(name: str) -> str:
    if name in INSIDE_TYPES:
        return f"that is for dlemu's own use; wanted one of {', '.join(storage_names())}, or a dotted name of your own"
    near = registry.nearest(name, storage_names())
    return f"{near}wanted one of {', '.join(storage_names())}, or the dotted name of your own module"


def open_storage(spec: StorageSpec) -> StorageBase:
    """Return the storage, ready for use in this process.

    Raises:
        UserError: there is none of that name, or it can't do what the spec requires.
    """
    kind: type[StorageBase] = registry.find("datagen.storage", spec.type, "Storage")
    if spec.direct_writes and not kind.reads_directly:
        raise UserError(
            f"checkpoint.odirect is true, but storage {spec.type} has no page cache to write past: set "
            "checkpoint.odirect=false"
        )
    if spec.direct and not kind.reads_directly:
        raise UserError(
            f"reader.odirect is true, but storage {spec.type} has no page cache to read past: set reader.odirect=false"
        )
    return kind(spec)


class Reader(Protocol):
    """One file open for reading. It counts what the application requested and got."""

    size_bytes: int
    read_calls: int
    """Calls that fetched bytes."""
    app_bytes: int
    """Bytes those calls brought."""

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from the file at `offset` and return the bytes got: fewer only at the end of the file.

        Address, length and offset are multiples of the storage's alignment. Raises OSError.
        """
        ...

    def close(self) -> None: ...


Fill = tuple[Reader, memoryview, int]
"""An open file, memory to fill from it, and the offset where that begins."""


def read_in_transfers(reader: Reader, buffer: memoryview, offset: int, transfer_bytes: int) -> int:
    """Fill `buffer` as `Reader.read_into` does, by calls for `transfer_bytes` at most; 0 makes one call of it.

    `transfer_bytes` is a multiple of the storage's alignment.
    """
    if not 0 < transfer_bytes < len(buffer):
        return reader.read_into(buffer, offset)
    got = 0
    while got < len(buffer) and offset + got < reader.size_bytes:
        piece = buffer[got : got + transfer_bytes]
        count = reader.read_into(piece, offset + got)
        got += count
        if count < len(piece):
            break
    return got


class Writer(Protocol):
    """One file being made. It has its name only after `commit`, and then at once with all its bytes. Raises OSError.

    Pieces may be of any size and come at any offset: a storage that wants large or aligned ones (multipart upload,
    writing past the page cache) gathers them. Bytes that are skipped and never written are zeros.
    """

    @property
    def position(self) -> int:
        """Offset at which the next `write` puts its bytes."""
        ...

    def write(self, data: Bytes) -> None:
        """Write at `position`, and advance. The memory of `data` may be used again when this returns."""
        ...

    def skip(self, size_bytes: int) -> None:
        """Advance over bytes that `write_at` brings later."""
        ...

    def write_at(self, data: Bytes, offset: int) -> None:
        """Write at `offset`; `position` stays."""
        ...

    def sync(self) -> None:
        """Bring what was written to the device; where `commit` does that anyway, nothing."""
        ...

    def commit(self) -> None:
        """Give the file its name, in place of one that has it."""
        ...

    def discard(self) -> None:
        """Remove what was written; harmless after `commit`."""
        ...


class WriterAround:
    """A `Writer` that hands on to another what it does not do itself."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    @property
    def position(self) -> int:
        return self._writer.position

    def write(self, data: Bytes) -> None:
        self._writer.write(data)

    def skip(self, size_bytes: int) -> None:
        self._writer.skip(size_bytes)

    def write_at(self, data: Bytes, offset: int) -> None:
        self._writer.write_at(data, offset)

    def sync(self) -> None:
        self._writer.sync()

    def commit(self) -> None:
        self._writer.commit()

    def discard(self) -> None:
        self._writer.discard()


class Entry(Protocol):
    """One name in a folder, shaped as os.DirEntry: that of a million local files costs nothing more than the name."""

    @property
    def name(self) -> str: ...

    def is_dir(self) -> bool: ...


@dataclass(frozen=True)
class Listed:
    """An entry of a storage whose lists are not os.scandir's."""

    name: str
    is_folder: bool = False

    def is_dir(self) -> bool:
        return self.is_folder


class StorageBase(abc.ABC):
    """A storage, open in this process. Threads share it; it is opened after every fork, where it is used.

    Paths are made of names joined by `/`. Errors are OSError as the system raises them: FileNotFoundError for what is
    not there, ENOSPC for a full device; the caller puts them into words. What has a body here need not be overridden.
    """

    reads_directly: ClassVar[bool] = False
    """`StorageSpec.direct` is possible: reads past a page cache of this host."""
    reads_nothing: ClassVar[bool] = False
    """No file is ever touched: what is measured is the reader itself."""
    is_remote: ClassVar[bool] = False
    """This host keeps nothing of it in memory, and reads are requests: each byte read came from the storage."""
    server: str = ""
    """Address of the server, where it has one."""
    alignment: int = 1
    """Reads want address, offset and length to be multiples of this many bytes; 1 but for direct reading."""

    def __init__(self, spec: StorageSpec) -> None:
        self.spec = spec

    @abc.abstractmethod
    def open(self, path: str) -> Reader:
        """Open a file for reading. Raises UserError where the storage can't serve it as the spec requires."""

    def open_received(self, path: str) -> Reader:
        """Open a file that others may have made, through the page cache: never wait for what is no regular file."""
        return self.open(path)

    def open_unread_ahead(self, path: str) -> Reader:
        """Open a file of which nobody reads ahead of what is requested, where the storage takes such advice."""
        return self.open(path)

    def open_whole(self, path: str) -> Reader:
        """Open a file that will be read from its beginning to its end: the request for its bytes may go out here."""
        return self.open(path)

    def announce(self, paths: Iterable[str]) -> None:
        """Receive which files this thread will open whole next, in this order: their requests may go out ahead."""
        return

    def read_all(self, fills: Sequence[Fill]) -> list[int]:
        """Do as `Reader.read_into` for each, in any order, several at a time where the storage can; raises OSError."""
        return [reader.read_into(buffer, offset) for reader, buffer, offset in fills]

    def read_stretches(self, reader: Reader, stretches: Sequence[tuple[int, int]], out: memoryview) -> int:
        """Read stretches (offset, bytes) of a file to `out`, one behind the other; return the bytes got.

        These are fewer only where the file ends within a stretch, which is then the last one read. Offsets and memory
        are as aligned as the storage wants it. Raises OSError.
        """
        at = 0
        for offset, size in stretches:
            got = reader.read_into(out[at : at + size], offset)
            at += got
            if got < size:
                break
        return at

    def will_need(self, reader: Reader, stretches: Sequence[tuple[int, int]]) -> None:
        """Tell the kernel that stretches (offset, bytes) of a file are read next; elsewhere nothing. Raises OSError."""
        return

    def preflight(self, folder: str) -> None:
        """Raise UserError where nothing can be read at all: server, credentials, bucket. Called once, by one rank."""
        return

    @abc.abstractmethod
    def create(self, path: str) -> Writer:
        """Begin a file that `path` will name; its folder is there."""

    def create_recorded(self, path: str) -> Writer:
        """Do as `create`; what is left of it by an end at any moment, `remove_unfinished` of its folder finds later."""
        return self.create(path)

    @abc.abstractmethod
    def entries(self, folder: str) -> AbstractContextManager[Iterator[Entry]]:
        """List a folder, in any order. Raises FileNotFoundError where there is none.

        Objects have no folders: a prefix with objects below it is one. Files under way, if listed, begin with a dot.
        """

    @abc.abstractmethod
    def size_bytes(self, path: str) -> int:
        """Return the size of a file. Raises FileNotFoundError."""

    @abc.abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file. Raises FileNotFoundError."""

    def is_folder(self, path: str) -> bool:
        """Return whether there is a folder of that name."""
        try:
            with self.entries(path):
                return True
        except (FileNotFoundError, NotADirectoryError):
            return False

    def sizes(self, paths: Iterable[str]) -> Iterator[int | None]:
        """Return the size of each of many files, None for one that is not there: a storage may request several."""
        for path in paths:
            try:
                yield self.size_bytes(path)
            except FileNotFoundError:
                yield None

    def make_folder(self, folder: str) -> None:
        """Make a folder and those above it, where they are not there: nothing for a storage of objects."""
        return

    def remove_folder(self, folder: str) -> None:
        """Remove an empty folder: nothing for a storage of objects. Raises OSError for one that is not empty."""
        return

    def remove_unfinished(self, folder: str) -> None:
        """Remove what writers of `create_recorded` left in a folder that were interrupted; nothing of anybody else."""
        return

    def sync(self, folder: str) -> None:
        """Bring the names in a folder to the device; nothing where `Writer.commit` does that."""
        return

    def free_bytes(self, folder: str) -> int | None:
        """Return the bytes that are free for a folder, made or not; None where that is not known."""
        return None

    def evict(self, path: str, *, write_first: bool) -> None:
        """Drop a file from this host's memory; with `write_first` also what was not written yet. It is advice.

        Nothing for a storage of which this host keeps nothing in memory.
        """
        return

    def memory_kind(self, folder: str) -> str:
        """Return what kind of file system it is where files are this host's memory, and can't be evicted; else ''."""
        return ""

    def local_path(self, path: str) -> str | None:
        """Return the path by which libraries on this host can open a file or folder; None where there is none.

        The kernel accounts for what is read by it (/proc/PID/io), and its device can be watched.
        """
        return None

    def open_by_library(self, path: str, *, whole: bool) -> LibraryFile | None:
        """Open a file by the library that this storage's users have in their scripts, of which `whole` will be read.

        None where there is no such library: then the storage itself is read. Raises as `open`, and UserError where the
        library can't be imported.
        """
        return None

    def check_library(self) -> None:
        """Raise UserError where the library of `open_by_library` can't be imported."""
        return

    def device_folders(self, folders: Iterable[str]) -> Iterator[str]:
        """Yield the first local folder on each device, for whoever watches devices; one that is gone is left out."""
        return iter(())


def read_whole(storage: StorageBase, path: str, most_bytes: int = MOST_NOTE_BYTES) -> memoryview:
    """Return the bytes of a small file, which others may have made. Raises OSError, also for one that is larger."""
    reader = storage.open_received(path)
    try:
        check_size(path, reader.size_bytes, most_bytes)
        buffer = AlignedBuffer().view(-(-max(1, reader.size_bytes) // storage.alignment) * storage.alignment)
        return buffer[: min(reader.read_into(buffer, 0), reader.size_bytes)]
    finally:
        reader.close()


def write_whole(storage: StorageBase, path: str, data: Bytes, *, sync: bool) -> None:
    """Write a small file; with `sync` it is on the device before it has its name. Raises OSError with its path."""
    writer = storage.create(path)
    try:
        writer.write(data)
        if sync:
            writer.sync()
        writer.commit()
    except BaseException as error:
        writer.discard()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = path
        raise


class Brought(NamedTuple):
    """What came from the storage for an open file so far."""

    app_bytes: int
    read_calls: int


class LibraryFile(io.RawIOBase, abc.ABC):
    """An open file for libraries that take one (np.load, h5py, Pillow, pyarrow), whoever reads it."""

    failure: Exception | None = None
    """What reading it raised first: the library that read it may tell that as damage."""

    def __init__(self, path: str) -> None:
        self.name = path

    @abc.abstractmethod
    def brought(self) -> Brought: ...

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class StoredFile(LibraryFile):
    """A file of any storage as Python's kind of file."""

    def __init__(self, path: str, reader: Reader) -> None:
        super().__init__(path)
        self.reader = reader
        self._at = 0

    def brought(self) -> Brought:
        return Brought(self.reader.app_bytes, self.reader.read_calls)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.reader.size_bytes}[whence]
        if at < 0:
            raise ValueError(f"seek to {at}")
        self._at = at
        return at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed: any writable buffer
        view = memoryview(buffer).cast("B")
        got = self.reader.read_into(view[: max(0, self.reader.size_bytes - self._at)], self._at)
        self._at += got
        return got

    def readall(self) -> bytes:
        """Read what is left by one call."""
        left = bytearray(max(0, self.reader.size_bytes - self._at))
        return bytes(memoryview(left)[: self.readinto(left)])

    def close(self) -> None:
        if not self.closed:
            self.reader.close()
        super().close()


def leads_elsewhere(folder: str, below: str, storage: StorageBase) -> bool:
    """Return whether a link between a folder and one below it leads out of it: what is there is not the folder's."""
    top, path = storage.local_path(folder), storage.local_path(below)
    if top is None or path is None:
        return False
    return os.path.realpath(path) != os.path.normpath(os.path.join(os.path.realpath(top), os.path.relpath(path, top)))

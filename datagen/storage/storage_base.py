"""The interface of a storage backend: how datasets and checkpoints are opened, written, listed and removed.

A backend is one module with a class `Storage`, a subclass of `StorageBase`. It is a file of this folder, or a user's
module named by its dotted name. Processes exchange a picklable `StorageSpec`, from which each opens its own `Storage`
by `open_storage`.
"""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import ClassVar

from datagen import registry
from datagen.buffers import AlignedBuffer, round_up
from datagen.errors import UserError
from datagen.regular import MOST_NOTE_BYTES, check_size, existing_folder, open_descriptor
from datagen.withheld import WITHHELD

Bytes = bytes | bytearray | memoryview
Span = tuple[int, int]  # (offset, bytes) of a byte range of a file, or of memory
Option = str | int | float | bool | None

# Values of `storage.storage_type`: DLIO's, mlpstorage v3.0's (`direct_fs`, its --o-direct) and ours
DIRECT_TYPES = {"direct", "direct_fs"}  # mounted file systems, read with O_DIRECT
BUFFERED_TYPES = {"local_fs", "parallel_fs", "posix"}  # mounted file systems, read through the page cache
FOLDER_TYPES = BUFFERED_TYPES | DIRECT_TYPES
RAM_FILE_SYSTEMS = ("tmpfs", "ramfs", "hugetlbfs")
_INTERNAL_TYPES = {"memory", "null"}  # backends for dlemu's own use and its tests; users can't select them
# Options by which mlpstorage selects an object-storage client; it passes them with `direct_fs`, too
_LIBRARY_OPTIONS = ("storage_library", "uri_scheme")


@dataclass(frozen=True, kw_only=True)
class StorageSpec:
    """Backend and settings of a storage; picklable. Credentials stay in the environment, never in a spec."""

    type: str = "posix"  # name of a module in `datagen.storage`, or the dotted name of a user's module
    root: str = ""  # bucket or URL that paths are relative to; empty for file systems
    options: tuple[tuple[str, Option], ...] = ()  # settings of this backend alone, as (name, value)
    direct: bool = False  # read with O_DIRECT, past the page cache
    direct_writes: bool = False  # write with O_DIRECT, too
    range_bytes: int = 0  # maximum bytes of one GET (a larger read is split into ranges); 0: no limit
    io_depth: int = 1  # maximum requests that a reader keeps in flight
    account: str = ""  # local folder where each process keeps its request counters; empty: counters are not shared

    @property
    def buffered(self) -> StorageSpec:
        """Return the same storage through the page cache, for unmeasured access: listings, manifests, ..."""
        return replace(self, direct=False, direct_writes=False)


FOLDERS = StorageSpec()  # folders of any mounted file system, read through the page cache
NULL_STORAGE = StorageSpec(type="null")  # reads return at once: a measurement shows the reader's own cost


def storage_spec(configured: StorageSpec) -> StorageSpec:
    """Return the spec that opens a storage, given one whose `type` is the user's `storage.storage_type`.

    Raises UserError: the type is unknown or internal, a file system has options, or an option's value was withheld.
    """
    storage_type = configured.type
    options = dict(configured.options)
    if storage_type in FOLDER_TYPES:
        ignored = _LIBRARY_OPTIONS if storage_type == "direct_fs" else ()
        unsupported = [name for name in options if name not in ignored]
        if unsupported:
            problem = f"storage.storage_type={storage_type} has no options: leave them out"
            raise UserError(f"storage.storage_options has {', '.join(unsupported)}, but {problem}")
        # A file system needs neither a root nor the settings of requests
        return StorageSpec(direct=configured.direct or storage_type in DIRECT_TYPES)
    types = sorted({*FOLDER_TYPES, *registry.names("datagen.storage")} - _INTERNAL_TYPES)
    if storage_type not in types and "." not in storage_type:
        internal = "that is for dlemu's own use; "
        hint = internal if storage_type in _INTERNAL_TYPES else registry.nearest(storage_type, types)
        wanted = f"wanted one of {', '.join(types)}, or the dotted name of your own module"
        raise UserError(f"storage.storage_type is {storage_type!r}: {hint}{wanted}")
    for name, value in options.items():
        if value == WITHHELD:
            raise UserError(
                f"storage.storage_options.{name} was left out when this configuration was saved, because it may "
                f"be a credential: give it again, storage.storage_options.{name}=VALUE"
            )
    return replace(configured, options=tuple(sorted(options.items())))


def open_storage(spec: StorageSpec) -> StorageBase:
    """Open a storage in this process. Raises UserError: no such backend, or it does not support the spec's O_DIRECT."""
    backend: type[StorageBase] = registry.find("datagen.storage", spec.type, "Storage")
    settings = (("checkpoint.odirect", "write", spec.direct_writes), ("reader.odirect", "read", spec.direct))
    for setting, verb, is_set in settings:
        if is_set and not backend.reads_directly:
            raise UserError(
                f"{setting} is true, but storage {spec.type} has no page cache to {verb} past: set {setting}=false"
            )
    return backend(spec)


class Reader(abc.ABC):
    """One file open for reading. It counts what the application reads, whether or not the page cache serves it.

    Address, length and offset of a read are multiples of the storage's `alignment`. Methods raise OSError.
    """

    read_calls = 0  # read calls (system calls, or requests to a server) so far
    app_bytes = 0  # bytes that these calls returned
    block_bytes = 4096  # the read size that the file system prefers (st_blksize)
    mapped: memoryview | None = None  # the file's bytes, if it is read through a memory map

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    @abc.abstractmethod
    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill `buffer` from the file at `offset`; return the number of bytes, less than its length only at the end."""

    def read_stretches(self, ranges: Sequence[Span], out: memoryview) -> int:
        """Read byte ranges into `out`, back to back, until one in which the file ends; return the number of bytes."""
        filled = 0
        for offset, size in ranges:
            count = self.read_into(out[filled : filled + size], offset)
            filled += count
            if count < size:
                break
        return filled

    def will_need(self, ranges: Sequence[Span]) -> None:
        """Have the kernel prefetch byte ranges, if it caches the file."""
        return

    def close(self) -> None:
        return


FileReads = list[tuple[int, int, int]]  # (size of the file, bytes read, read calls) of each file
Fill = tuple[Reader, memoryview, int]  # (open file, memory to fill, offset in the file) of one read


def read_in_transfers(reader: Reader, buffer: memoryview, offset: int, transfer_bytes: int) -> int:
    """Fill `buffer` as `Reader.read_into` does, with calls of at most `transfer_bytes` (aligned); 0: a single call."""
    if not 0 < transfer_bytes < len(buffer):
        return reader.read_into(buffer, offset)
    filled = 0
    while filled < len(buffer) and offset + filled < reader.size_bytes:
        requested = buffer[filled : filled + transfer_bytes]
        count = reader.read_into(requested, offset + filled)
        filled += count
        if count < len(requested):
            break
    return filled


class Writer(abc.ABC):
    """One file being written. It does not appear under its name until it is complete (`commit`). Methods raise OSError.

    Writes may have any size and offset. A backend that needs large or aligned ones (multipart upload, O_DIRECT) gathers
    them. Bytes that are skipped and never written are zeros.
    """

    position = 0  # offset of the next `write`
    on_advance: Callable[[int], None] | None = None  # called with the number of bytes by which `position` advances

    def write(self, data: Bytes) -> None:
        """Write at `position`, and advance. The caller may reuse the memory of `data` when this returns."""
        self.write_at(data, self.position)
        self.skip(len(data))

    def skip(self, size_bytes: int) -> None:
        """Advance over bytes that `write_at` fills in later."""
        self.position += size_bytes
        if self.on_advance is not None:
            self.on_advance(size_bytes)

    @abc.abstractmethod
    def write_at(self, data: Bytes, offset: int) -> None:
        """Write at `offset` without moving `position`."""

    def sync(self) -> None:
        """Flush the written bytes to the device (fsync); a no-op if `commit` makes them durable anyway."""
        return

    @abc.abstractmethod
    def commit(self) -> None:
        """Publish the file under its name, replacing any file of that name."""

    @abc.abstractmethod
    def discard(self) -> None:
        """Remove what was written; does nothing after `commit`."""


@dataclass(frozen=True)
class Listed:
    """An entry of a folder, for backends that do not list folders by os.scandir."""

    name: str
    is_folder: bool = False
    size_bytes: int | None = None  # None if the listing does not state it

    def is_dir(self) -> bool:
        return self.is_folder


Entry = Listed | os.DirEntry[str]  # local folders yield os.DirEntry: a million files need no further objects


class StorageBase(abc.ABC):
    """A storage, open in one process and shared by its threads; every forked process opens its own.

    Paths are names joined by `/`. Methods raise OSError as the system does, such as FileNotFoundError for a missing
    file; callers turn it into a message. A backend must implement only the abstract methods.
    """

    reads_directly: ClassVar[bool] = False  # supports `StorageSpec.direct`: reads past this host's page cache
    reads_nothing: ClassVar[bool] = False  # readers open no file: a measurement shows their own cost
    is_remote: ClassVar[bool] = False  # reads are requests to a server, and this host caches nothing
    cuts_reads: ClassVar[bool] = False  # into requests of `StorageSpec.range_bytes`, of which `io_depth` are in flight
    server: str = ""  # address of the server; empty without one
    held_bytes = 0  # of a file being written that each thread may hold in memory
    alignment: int = 1  # address, offset and length of reads are multiples of it; above 1 only for O_DIRECT

    def __init__(self, spec: StorageSpec = FOLDERS) -> None:
        self.spec = spec

    @abc.abstractmethod
    def open(self, path: str) -> Reader:
        """Open a file for reading. Raises UserError if the storage can't serve it as the spec requires."""

    def open_sized(self, path: str, size_bytes: int) -> Reader:
        """Open a file whose size the caller knows, so that the backend need not ask a server for it."""
        return self.open(path)

    def open_received(self, path: str) -> Reader:
        """Open a file of unknown origin through the page cache; refuse pipes and devices, which could block forever."""
        return self.open(path)

    def open_mapped(self, path: str) -> Reader:
        """Open a file through a memory map if the backend can: page faults bring its data into the page cache."""
        return self.open(path)

    def open_unread_ahead(self, path: str) -> Reader:
        """Open a file without the kernel's read-ahead, if the backend has any."""
        return self.open(path)

    def read_files(self, files: Sequence[tuple[str, memoryview]], transfer_bytes: int = 0) -> FileReads:
        """Read whole files, each to the start of its memory, by calls of at most `transfer_bytes` (0: no limit).

        Of a file larger than its memory, a backend reads what fits, or raises an error. Raises OSError.
        """
        reads = []
        for path, memory in files:
            try:
                with contextlib.closing(self.open(path)) as reader:
                    aligned_bytes = reader.size_bytes + -reader.size_bytes % self.alignment
                    filled = read_in_transfers(reader, memory[:aligned_bytes], 0, transfer_bytes)
                reads.append((reader.size_bytes, filled, reader.read_calls))
            except OSError as error:
                error.filename = error.filename or path
                raise
        return reads

    def read_all(self, fills: Sequence[Fill]) -> list[int]:
        """Do all fills as `Reader.read_into`, concurrently if the backend can; return their bytes. Raises OSError."""
        return [reader.read_into(buffer, offset) for reader, buffer, offset in fills]

    @abc.abstractmethod
    def create(self, path: str) -> Writer:
        """Begin writing the file `path`; its folder exists."""

    @abc.abstractmethod
    def entries(self, folder: str) -> AbstractContextManager[Iterator[Entry]]:
        """List a folder, in any order. Raises FileNotFoundError: there is no such folder.

        In object stores, a prefix of objects is a folder. The names of unfinished files, if listed, begin with a dot.
        """

    @abc.abstractmethod
    def size_bytes(self, path: str) -> int:
        """Return the size of a file. Raises FileNotFoundError."""

    @abc.abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file. Raises FileNotFoundError."""

    def is_folder(self, path: str) -> bool:
        """Return whether `path` is a folder. Raises UserError: server, credentials or bucket are wrong."""
        try:
            with self.entries(path):
                return True
        except (FileNotFoundError, NotADirectoryError):
            return False

    def sizes(self, paths: Iterable[str]) -> Iterator[int | None]:
        """Yield the size of each file, or None if there is no such file; a backend may request sizes concurrently."""
        for path in paths:
            try:
                yield self.size_bytes(path)
            except FileNotFoundError:
                yield None

    def make_folder(self, folder: str) -> None:
        """Make a folder and its missing parents; a no-op in an object store."""
        return

    def remove_folder(self, folder: str) -> None:
        """Remove an empty folder; a no-op in an object store. Raises OSError if it is not empty."""
        return

    def remove_unfinished(self, folder: str) -> None:
        """Remove from a folder the temporary files that killed writers left there, and nothing else."""
        return

    def uploads(self, folder: str, names: Iterable[str], *, end: bool = False) -> int:
        """Count the unfinished multipart uploads of files `names` in a folder; `end` aborts them. Raises UserError."""
        return 0

    def sync(self, folder: str) -> None:
        """Make the names in a folder durable (fsync of the folder); a no-op if `Writer.commit` does that."""
        return

    def free_bytes(self, folder: str) -> int | None:
        """Return the free space for a folder, which need not exist yet; None if unknown."""
        return None

    def evict(self, path: str, *, write_first: bool) -> None:
        """Advise this host's page cache to drop a local file; with `write_first`, write back its dirty pages before."""
        if (local := self.local_path(path)) is not None:
            with open_descriptor(local, os.O_NONBLOCK) as descriptor:
                if write_first:
                    os.fdatasync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # drops clean pages that nobody maps

    def memory_kind(self, folder: str) -> str:
        """Return the type of a folder's file system if it is in RAM (tmpfs), where nothing can be evicted; else ''."""
        if (local := self.local_path(folder)) is None:
            return ""
        device = os.stat(existing_folder(local)).st_dev  # the folder may be made later
        number = f"{os.major(device)}:{os.minor(device)}"
        with open("/proc/self/mountinfo", "rb") as mounts:  # proc(5): ID parent MAJOR:MINOR ... - TYPE ...
            for mount in mounts:
                mount_fields, _, file_system_fields = mount.decode(errors="replace").partition(" - ")
                if mount_fields.split()[2] == number and (kind := file_system_fields.split()[0]) in RAM_FILE_SYSTEMS:
                    return kind
        return ""

    def local_path(self, path: str) -> str | None:
        """Return the local path by which libraries can open a file or folder; None if the storage has no paths."""
        return None

    def device_folders(self, folders: Iterable[str]) -> Iterable[str]:
        """Return one of the local `folders` for each device, for telemetry; folders that do not exist are skipped."""
        devices: dict[int, str] = {}
        for local in filter(None, map(self.local_path, folders)):
            with contextlib.suppress(OSError):
                devices.setdefault(os.stat(local).st_dev, local)
        return devices.values()


def read_whole(storage: StorageBase, path: str, most_bytes: int = MOST_NOTE_BYTES) -> memoryview:
    """Return the content of a small file of unknown origin. Raises OSError, also if it exceeds `most_bytes`."""
    with contextlib.closing(storage.open_received(path)) as reader:
        check_size(path, reader.size_bytes, most_bytes)
        buffer = AlignedBuffer().view(round_up(max(1, reader.size_bytes), storage.alignment))
        return buffer[: min(reader.read_into(buffer, 0), reader.size_bytes)]


def write_whole(storage: StorageBase, path: str, data: Bytes, *, sync: bool) -> None:
    """Write a small file atomically; with `sync`, flush it to the device first. Raises OSError with its path."""
    writer = storage.create(path)
    try:
        writer.write(data)
        if sync:
            writer.sync()
        writer.commit()
    except OSError as error:
        error.filename = error.filename or path
        raise
    finally:
        writer.discard()


def local_folder(storage: StorageBase, folder: str, needed_by: str) -> str:
    """Return the local path of a folder. Raises UserError naming the setting `needed_by`: the storage has no paths."""
    local = storage.local_path(folder)
    if local is None:
        raise UserError(
            f"{needed_by} opens files by path, which storage {storage.spec.type} does not have: leave it out, or put "
            "the dataset in a folder"
        )
    return local


def leads_elsewhere(folder: str, below: str, storage: StorageBase) -> bool:
    """Return whether a symbolic link on the path from `folder` down to `below` leads elsewhere."""
    top, path = storage.local_path(folder), storage.local_path(below)
    if top is None or path is None:
        return False
    path_without_links = os.path.join(os.path.realpath(top), os.path.relpath(path, top))
    return os.path.realpath(path) != os.path.normpath(path_without_links)

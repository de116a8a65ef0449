"""Folders of any mounted file system: files read and written through the page cache, or past it (O_DIRECT)."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Sequence

from datagen import owned
from datagen.buffers import address_of
from datagen.errors import UserError
from datagen.regular import check_regular, open_regular
from datagen.storage.storage_base import FOLDERS, Bytes, Reader, StorageBase, StorageSpec

DIRECT_ALIGNMENT = 4096
"""Good for every block device: logical blocks are 512 or 4096 bytes."""
IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")
"""File systems whose files are memory."""


class Storage(StorageBase):
    """Ordinary files."""

    reads_directly = True

    def __init__(self, spec: StorageSpec = FOLDERS) -> None:
        super().__init__(spec)
        self.alignment = DIRECT_ALIGNMENT if spec.direct else 1

    def open(self, path: str) -> FileReader:
        if self.spec.direct:
            return DirectReader(path)
        return FileReader(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def open_received(self, path: str) -> FileReader:
        return FileReader(open_regular(path))

    def open_unread_ahead(self, path: str) -> FileReader:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if self.spec.direct else 0))
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return FileReader(descriptor, self.alignment)

    def read_stretches(self, reader: Reader, stretches: Sequence[tuple[int, int]], out: memoryview) -> int:
        if type(reader) is not FileReader:
            return super().read_stretches(reader, stretches, out)
        return reader.read_stretches(stretches, out)

    def will_need(self, reader: Reader, stretches: Sequence[tuple[int, int]]) -> None:
        if type(reader) is FileReader:
            reader.will_need(stretches)

    def create(self, path: str) -> FileWriter:
        return DirectWriter(path) if self.spec.direct_writes else FileWriter(path)

    def entries(self, folder: str) -> os._ScandirIterator[str]:
        return os.scandir(folder)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def size_bytes(self, path: str) -> int:
        status = os.stat(path)
        check_regular(path, status.st_mode)  # to open a pipe would wait for ever
        return status.st_size

    def remove(self, path: str) -> None:
        os.unlink(path)

    def make_folder(self, folder: str) -> None:
        if "://" in folder:
            raise UserError(
                f"{folder} is a URL, and storage.storage_type is for folders: wanted a folder of a file system, or "
                "storage.storage_type=s3 (fsspec for other servers)"
            )
        os.makedirs(folder, exist_ok=True)

    def remove_folder(self, folder: str) -> None:
        os.rmdir(folder)

    def remove_unfinished(self, folder: str) -> None:
        owned.remove_parts(folder)

    def sync(self, folder: str) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that can't do that to a folder
                raise
        finally:
            os.close(descriptor)

    def free_bytes(self, folder: str) -> int | None:
        there = os.path.abspath(folder)
        while not os.path.exists(there):  # of a folder that is still to be made: of the one it will lie in
            there = os.path.dirname(there)
        state = os.statvfs(there)
        return state.f_bavail * state.f_frsize if state.f_blocks else None  # some remote ones state size 0

    def evict(self, path: str, *, write_first: bool) -> None:
        """By posix_fadvise(POSIX_FADV_DONTNEED), for which no root is needed.

        The kernel drops clean pages that nobody has mapped; so what is still to be written is written first.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if write_first:
                os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)

    def memory_kind(self, folder: str) -> str:
        device = os.stat(folder).st_dev
        number = f"{os.major(device)}:{os.minor(device)}".encode()
        with open("/proc/self/mountinfo", "rb") as lines:  # proc(5): ID parent MAJOR:MINOR ... - TYPE ...
            kinds = (line.partition(b" - ")[2].split()[0] for line in lines if line.split()[2] == number)
            return next((kind for kind in map(bytes.decode, kinds) if kind in IN_MEMORY), "")

    def local_path(self, path: str) -> str:
        return path

    def device_folders(self, folders: Iterable[str]) -> Iterator[str]:
        devices = set()
        for folder in folders:
            with contextlib.suppress(OSError):
                device = os.stat(folder).st_dev
                if device not in devices:
                    devices.add(device)
                    yield folder


class FileReader:
    """One open file, read by preadv. `alignment` > 1 ends a file at the first read that is no multiple of it."""

    def __init__(self, descriptor: int, alignment: int = 1) -> None:
        self._descriptor = descriptor
        self._alignment = alignment
        status = os.fstat(descriptor)
        self.size_bytes, self.block_bytes = status.st_size, status.st_blksize
        self.read_calls = 0
        self.app_bytes = 0

    def read_into(self, buffer: memoryview, offset: int) -> int:
        got = 0
        while got < len(buffer):
            # One call moves at most 2 GiB - 4 KiB (Linux), and a signal may cut it short.
            count = os.preadv(self._descriptor, [buffer[got:] if got else buffer], offset + got)
            self.read_calls += 1
            got += count
            if count == 0 or count % self._alignment:
                break
            if offset + got >= self.size_bytes:
                break
        self.app_bytes += got
        return got

    def will_need(self, stretches: Sequence[tuple[int, int]]) -> None:
        """Have the kernel begin to read stretches (offset, bytes), by posix_fadvise(POSIX_FADV_WILLNEED)."""
        for offset, size in stretches:
            os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def read_stretches(self, stretches: Sequence[tuple[int, int]], out: memoryview) -> int:
        """Do as `Storage.read_stretches`: of a hundred small ones each a call, and little else for each."""
        descriptor, preadv = self._descriptor, os.preadv
        at = calls = counted = 0
        for offset, size in stretches:
            count = preadv(descriptor, (out[at : at + size],), offset)
            calls += 1
            at += count
            if count != size:
                more = self.read_into(out[at : at + size - count], offset + count) if count else 0
                counted += more
                at += more
                if count + more < size:
                    break
        self.read_calls += calls
        self.app_bytes += at - counted
        return at

    def close(self) -> None:
        os.close(self._descriptor)


class DirectReader(FileReader):
    """One file open past the page cache."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            super().__init__(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT), DIRECT_ALIGNMENT)
        except OSError as error:
            _explain(error, path)
            raise

    def read_into(self, buffer: memoryview, offset: int) -> int:
        try:
            return super().read_into(buffer, offset)
        except OSError as error:
            _explain(error, self._path)
            raise


def _explain(error: OSError, path: str, instead: str = "reader.odirect=false, or put the dataset") -> None:
    """Raise UserError that says what it means when a file system can't do O_DIRECT: some refuse to open, or to read."""
    if error.errno == errno.EINVAL:
        raise UserError(
            f"the file system of {os.path.dirname(path)} refuses O_DIRECT: "
            f"set {instead} on one that supports it (ext4, xfs, Lustre, NFS)"
        ) from error


_NO_DIRECT_CHECKPOINT = "checkpoint.odirect=false, or put the checkpoints"


class FileWriter:
    """A file under way, beside its final place, so that the rename is within one folder."""

    def __init__(self, path: str, *, flags: int = 0) -> None:
        self._path = path
        self._part, self._descriptor = owned.create_part(path, flags=flags)
        self.position = 0

    def write(self, data: Bytes) -> None:
        self.write_at(data, self.position)
        self.position += len(data)

    def skip(self, size_bytes: int) -> None:
        self.position += size_bytes

    def write_at(self, data: Bytes, offset: int) -> None:
        _write_all(self._descriptor, memoryview(data), offset)

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def commit(self) -> None:
        self._close()
        os.rename(self._part, self._path)

    def discard(self) -> None:
        if self._descriptor >= 0:
            self._close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._part)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)  # file systems on a network may report a failed write only here


class DirectWriter(FileWriter):
    """A file under way that goes past the page cache; the bytes behind its last whole 4096 go through it.

    Offset and memory of what is written are multiples of 4096 but for the file's end, or else it goes through the
    cache; a block is written by one of both ways alone.
    """

    def __init__(self, path: str) -> None:
        try:
            super().__init__(path, flags=os.O_DIRECT)
        except OSError as error:
            _explain(error, path, _NO_DIRECT_CHECKPOINT)
            raise

    def write_at(self, data: Bytes, offset: int) -> None:
        view = memoryview(data)
        aligned = len(view) - len(view) % DIRECT_ALIGNMENT
        # Memory that can't be written to is that of a bytes object, which has no alignment.
        if view.readonly or offset % DIRECT_ALIGNMENT or address_of(view) % DIRECT_ALIGNMENT:
            aligned = 0
        try:
            _write_all(self._descriptor, view[:aligned], offset)
        except OSError as error:
            _explain(error, self._path, _NO_DIRECT_CHECKPOINT)
            raise
        if aligned < len(view):
            buffered = os.open(self._part, os.O_WRONLY | os.O_CLOEXEC)
            try:
                _write_all(buffered, view[aligned:], offset + aligned)
            finally:
                os.close(buffered)


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    """Write every byte, however many calls that takes."""
    done = 0
    while done < len(view):
        # One call moves at most 2 GiB - 4 KiB (Linux), and a signal may cut it short.
        count = os.pwrite(descriptor, view[done:], offset + done)
        if count == 0:  # no error in POSIX, but to ask again would never end
            raise OSError(errno.EIO, "the file system accepted no byte of a write, and reported no error")
        done += count

"""Backend for any mounted file system: reads and writes files through the page cache, or past it (O_DIRECT)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from datagen import owned
from datagen.buffers import address_of
from datagen.errors import UserError
from datagen.regular import check_local, check_regular, existing_folder, open_descriptor, open_regular
from datagen.storage.memory import MemoryReader
from datagen.storage.storage_base import FOLDERS, Bytes, Reader, Span, StorageBase, StorageSpec, Writer

DIRECT_ALIGNMENT = 4096  # satisfies every block device: logical blocks are 512 or 4096 bytes
_ELSEWHERE = "on one that supports it (ext4, xfs, Lustre, NFS)"
READ_REMEDY = f"set reader.odirect=false, or put the dataset {_ELSEWHERE}"
WRITE_REMEDY = f"set checkpoint.odirect=false, or put the checkpoints {_ELSEWHERE}"


class Storage(StorageBase):
    """Files of mounted file systems."""

    reads_directly = True

    def __init__(self, spec: StorageSpec = FOLDERS) -> None:
        super().__init__(spec)
        self.alignment = DIRECT_ALIGNMENT if spec.direct else 1

    def open(self, path: str) -> FileReader:
        if not self.spec.direct:
            return FileReader(os.open(path, os.O_RDONLY))
        with _o_direct(path, WRITE_REMEDY if self.spec.direct_writes else READ_REMEDY):  # checkpoints are also written
            return FileReader(os.open(path, os.O_RDONLY | os.O_DIRECT), self.alignment)

    def open_received(self, path: str) -> FileReader:
        return FileReader(open_regular(path))

    def open_mapped(self, path: str) -> Reader:
        can_map = type(self) is Storage and not self.spec.direct  # of a subclass, call `open`: it may be overridden
        return MappedReader(path) if can_map else self.open(path)

    def open_unread_ahead(self, path: str) -> FileReader:
        reader = Storage.open(self, path)  # a subclass's reader may have no descriptor
        os.posix_fadvise(reader.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return reader

    def create(self, path: str) -> FileWriter:
        return DirectWriter(path) if self.spec.direct_writes else FileWriter(path)

    def entries(self, folder: str) -> contextlib.AbstractContextManager[Iterator[os.DirEntry[str]]]:
        return os.scandir(folder)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def size_bytes(self, path: str) -> int:
        status = os.stat(path)
        check_regular(path, status.st_mode)  # opening a pipe would block forever
        return status.st_size

    def remove(self, path: str) -> None:
        os.unlink(path)

    def make_folder(self, folder: str) -> None:
        check_local(folder, "the folder to make", other="another storage.storage_type, or ")
        os.makedirs(folder, exist_ok=True)

    def remove_folder(self, folder: str) -> None:
        os.rmdir(folder)

    def remove_unfinished(self, folder: str) -> None:
        owned.remove_parts(folder)

    def sync(self, folder: str) -> None:
        with open_descriptor(folder, os.O_DIRECTORY) as descriptor:
            try:
                os.fsync(descriptor)
            except OSError as error:
                if error.errno != errno.EINVAL:  # the file system can't fsync a folder
                    raise

    def free_bytes(self, folder: str) -> int | None:
        state = os.statvfs(existing_folder(folder))  # the folder may be made later
        return state.f_bavail * state.f_frsize if state.f_blocks else None  # some network file systems report size 0

    def local_path(self, path: str) -> str:
        return path


class FileReader(Reader):
    """One open file, read by preadv. If `alignment` > 1, a call that returns no multiple of it has reached the end."""

    def __init__(self, descriptor: int, alignment: int = 1) -> None:
        status = os.fstat(descriptor)
        super().__init__(status.st_size)
        self.block_bytes = status.st_blksize
        self.descriptor = descriptor
        self._alignment = alignment

    def read_into(self, buffer: memoryview, offset: int) -> int:
        filled = 0
        while filled < len(buffer):
            # Linux moves at most 2 GiB - 4 KiB per call, and a signal may cut a call short
            count = os.preadv(self.descriptor, [buffer[filled:] if filled else buffer], offset + filled)
            self.read_calls += 1
            filled += count
            if count == 0 or count % self._alignment or offset + filled >= self.size_bytes:
                break
        self.app_bytes += filled
        return filled

    def will_need(self, ranges: Sequence[Span]) -> None:
        if self._alignment > 1:
            return  # reads bypass the page cache
        descriptor, advise, will_need = self.descriptor, os.posix_fadvise, os.POSIX_FADV_WILLNEED
        for offset, size in ranges:
            advise(descriptor, offset, size, will_need)

    def read_stretches(self, ranges: Sequence[Span], out: memoryview) -> int:
        """Read as `Reader.read_stretches`, one preadv per range, with little overhead for hundreds of small ranges."""
        if self._alignment > 1:
            return super().read_stretches(ranges, out)
        descriptor, preadv = self.descriptor, os.preadv
        filled = read_calls = 0
        for offset, size in ranges:
            count = preadv(descriptor, (out[filled : filled + size],), offset)
            read_calls += 1
            filled += count
            if count != size:  # a signal cut the call short, or the file ends here
                remaining = self.read_into(out[filled : filled + size - count], offset + count) if count else 0
                self.app_bytes -= remaining  # counted below
                filled += remaining
                if count + remaining < size:
                    break
        self.read_calls += read_calls
        self.app_bytes += filled
        return filled

    def close(self) -> None:
        os.close(self.descriptor)


class MappedReader(MemoryReader):
    """One memory-mapped file. Its size is that at open; the file must not shrink while it is open (SIGBUS)."""

    def __init__(self, path: str) -> None:
        with open_descriptor(path) as descriptor:
            is_empty = os.fstat(descriptor).st_size == 0  # and can't be mapped
            self._map = None if is_empty else mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        super().__init__(memoryview(self._map or b""))
        self.mapped = self._data

    def _bytes_at(self, offset: int, size_bytes: int) -> bytes:
        # Copy to new memory first, as np.array(np.memmap(...)[...]) does: the order of page faults decides what the
        # kernel reads ahead. On a processor without fast string moves (ERMS), glibc would copy straight to the batch
        # backwards, because source and destination have the same offset within a page, and the device would get a
        # third more requests. The extra copy costs 0.05 CPU s/GB.
        return bytes(super()._bytes_at(offset, size_bytes))

    def close(self) -> None:
        super().close()
        if self._map is not None:
            self._map.close()


@contextlib.contextmanager
def _o_direct(path: str, remedy: str) -> Iterator[None]:
    """Raise UserError, with the remedy, if the file system refuses O_DIRECT within the `with` block (EINVAL)."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise UserError(f"the file system of {os.path.dirname(path)} refuses O_DIRECT: {remedy}") from error


class FileWriter(Writer):
    """A file being written under a temporary name in its final folder; `commit` renames it."""

    def __init__(self, path: str, *, flags: int = 0) -> None:
        self._path = path
        self._part, self._descriptor = owned.create_part(path, flags=flags)

    def write_at(self, data: Bytes, offset: int) -> None:
        _write_all(self._descriptor, memoryview(data), offset)

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def commit(self) -> None:
        self._close()
        os.rename(self._part, self._path)
        self._part = ""

    def discard(self) -> None:
        if self._descriptor >= 0:
            self._close()
        if self._part:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._part)

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)  # network file systems may report a failed write only at close


class DirectWriter(FileWriter):
    """A file being written with O_DIRECT, except for a last, partial block of 4096 bytes.

    A write whose offset or memory is not aligned goes through the page cache. Callers must not write a block both ways.
    """

    def __init__(self, path: str) -> None:
        with _o_direct(path, WRITE_REMEDY):
            super().__init__(path, flags=os.O_DIRECT)

    def write_at(self, data: Bytes, offset: int) -> None:
        view = memoryview(data)
        direct_bytes = len(view) - len(view) % DIRECT_ALIGNMENT
        # Read-only memory is a bytes object, which is not aligned
        if view.readonly or offset % DIRECT_ALIGNMENT or address_of(view) % DIRECT_ALIGNMENT:
            direct_bytes = 0
        with _o_direct(self._path, WRITE_REMEDY):
            _write_all(self._descriptor, view[:direct_bytes], offset)
        if direct_bytes < len(view):
            with open_descriptor(self._part, os.O_WRONLY) as buffered:
                _write_all(buffered, view[direct_bytes:], offset + direct_bytes)


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    """Write all of `view`, by as many calls as necessary."""
    written = 0
    while written < len(view):
        # Linux moves at most 2 GiB - 4 KiB per call, and a signal may cut a call short
        count = os.pwrite(descriptor, view[written:], offset + written)
        if count == 0:  # POSIX does not call this an error, but retrying would never end
            raise OSError(errno.EIO, "the file system accepted no byte of a write, and reported no error")
        written += count


@contextlib.contextmanager
def cache_restored(paths: Iterable[str | None]) -> Iterator[None]:
    """On exit, evict the local files whose middle page was not cached on entry; a path is None for other files."""
    cold = [path for path in paths if path is not None and not _is_cached(path)]
    try:
        yield
    finally:
        for path in cold:
            with contextlib.suppress(OSError):  # the next reader will report the error
                Storage().evict(path, write_first=False)


def _is_cached(path: str) -> bool:
    """Return whether the middle page of a file is cached; True if unknown, as for a file that can't be mapped."""
    try:
        with open_descriptor(path, os.O_NONBLOCK) as descriptor:
            middle = os.fstat(descriptor).st_size // 2 // mmap.PAGESIZE * mmap.PAGESIZE
            with mmap.mmap(descriptor, mmap.PAGESIZE, prot=mmap.PROT_READ, offset=middle) as mapped:
                address = np.frombuffer(mapped, np.uint8).ctypes.data
                is_cached = ctypes.c_ubyte(1)
                failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(address), mmap.PAGESIZE, ctypes.byref(is_cached))
                return bool(failed or is_cached.value & 1)  # set since Linux 5.2 for files that we may not write
    except (OSError, ValueError):  # no file, an empty one, or a file system without maps
        return True

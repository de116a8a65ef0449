"""Reads an open file: in as few calls as possible (`Source`), or by the calls of a Python library (`BufferedFile`)."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from datagen.buffers import FileMemory, NewMemory
from datagen.errors import DamagedError, ended_early, unreadable
from datagen.storage.storage_base import Reader, Span, read_in_transfers

Memory = NewMemory | FileMemory
Scratch = Callable[[int], memoryview]  # returns memory of that many bytes
_MAX_BUFFER_BYTES = 8 << 20  # maximum buffer of `open` in Python 3.14 and later
_STDIO_BYTES = 8192  # glibc's BUFSIZ: the maximum size of its buffers


class Source:
    """An open file, and memory for the bytes read from it. Bytes of the file after `size_bytes` are not used."""

    read_ns = 0  # time spent in reads
    reread_bytes = 0  # bytes read more than once, which `counts` leaves out
    _counted = (0, 0, 0)  # bytes, calls and nanoseconds that `counts` has returned so far

    def __init__(
        self, path: str, reader: Reader, alignment: int = 1, transfer_bytes: int = 0, memory: Memory | None = None
    ) -> None:
        """Read in calls of at most `transfer_bytes` (0: unlimited), at multiples of `alignment`, into `memory`."""
        memory = memory or NewMemory(alignment)
        self.memory = memory.take
        self.scratch: Scratch = memory.scratch  # for decoded bytes
        self.path = path
        self.size_bytes = reader.size_bytes
        self.reader = reader
        self._alignment = alignment
        self._transfer_bytes = transfer_bytes

    def read(self, offset: int, size_bytes: int) -> memoryview:
        """Return exactly the bytes requested; they stay valid until the file is closed or the memory reused.

        Raises DatasetError if the file ends too early or can't be read, SpaceError if too many files are open.
        """
        before = offset % self._alignment  # a read begins and ends with a whole block
        needed = before + size_bytes
        target = self.memory(needed + -needed % self._alignment)
        start_ns = time.monotonic_ns()
        try:
            bytes_read = read_in_transfers(self.reader, target, offset - before, self._transfer_bytes)
        except OSError as error:
            raise unreadable(self.path, error) from error
        self.read_ns += time.monotonic_ns() - start_ns
        if bytes_read < needed:
            raise ended_early(self.path, needed - bytes_read, offset - before + bytes_read)
        return target[before:needed]

    def counts(self) -> tuple[int, int, int]:
        """Return bytes (each counted once), calls and nanoseconds of the reads since `counts` was last called."""
        counted_bytes, counted_calls, counted_ns = self._counted
        total_bytes, calls = self.reader.app_bytes - self.reread_bytes, self.reader.read_calls
        self._counted = total_bytes, calls, self.read_ns
        return total_bytes - counted_bytes, calls - counted_calls, self.read_ns - counted_ns

    def close(self) -> None:
        self.reader.close()


class CachedSource(Source):
    """A `Source` with parts of the file in memory, given as (offset, data); other bytes are read from the file."""

    def __init__(self, source: Source, parts: Sequence[tuple[int, memoryview]]) -> None:
        self.path, self.size_bytes, self.reader = source.path, source.size_bytes, source.reader
        self._source = source
        self._parts = parts

    def read(self, offset: int, size_bytes: int) -> memoryview:
        for begin, data in self._parts:
            if begin <= offset and offset + size_bytes <= begin + len(data):
                return data[offset - begin : offset - begin + size_bytes]
        return self._source.read(offset, size_bytes)


class MemorySource(Source):
    """A file whose bytes are all in memory."""

    def __init__(self, data: memoryview, scratch: Scratch) -> None:
        self.path, self.size_bytes, self.scratch, self._data = "", len(data), scratch, data

    def read(self, offset: int, size_bytes: int) -> memoryview:
        if offset + size_bytes > self.size_bytes:
            raise DamagedError(f"the file ends before offset {offset + size_bytes}", self.size_bytes)
        return self._data[offset : offset + size_bytes]


class SourceStream(io.RawIOBase):
    """A `Source` as a file object for libraries that take one (h5py, pyarrow); closing it leaves the `Source` open."""

    def __init__(self, source: Source) -> None:
        self.name, self.source = source.path, source
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origins = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.source.size_bytes}
        position = offset + origins[whence]
        if position < 0:
            raise ValueError(f"seek to {position}")
        self._position = position
        return position

    def read(self, size: int = -1) -> bytes:
        """Read by one call, at most to the end of the file."""
        remaining_bytes = max(0, self.source.size_bytes - self._position)
        size = remaining_bytes if size < 0 else min(size, remaining_bytes)
        data = bytes(self.source.read(self._position, size)) if size else b""
        self._position += size
        return data

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed: any writable buffer
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


def merge_spans(spans: list[Span], max_hole: int = 0, max_bytes: int = sys.maxsize) -> list[Span]:
    """Merge spans (offset, bytes) in file order with at most `max_hole` bytes between them, to at most `max_bytes`."""
    merged: list[Span] = []
    for start, size in spans:
        if merged:
            merged_start, merged_bytes = merged[-1]
            hole, total = start - merged_start - merged_bytes, start + size - merged_start
            if 0 <= hole <= max_hole and total <= max_bytes:
                merged[-1] = merged_start, total
                continue
        merged.append((start, size))
    return merged


def python_buffer_bytes(block_bytes: int) -> int:
    """Return the buffer size of Python's `open`, given the file system's block size (st_blksize)."""
    if sys.version_info >= (3, 14):
        return max(min(block_bytes, _MAX_BUFFER_BYTES), io.DEFAULT_BUFFER_SIZE)
    return block_bytes if block_bytes > 1 else io.DEFAULT_BUFFER_SIZE


def python_calls(sizes: Iterable[int], block_bytes: int) -> Iterator[int]:
    """Yield the sizes of the read calls that a buffered file makes for sequential reads of `sizes` bytes."""
    buffer_bytes = python_buffer_bytes(block_bytes)
    buffered = 0  # bytes in the buffer that were not requested yet
    for size in sizes:
        missing = size - buffered
        if missing <= 0:
            buffered -= size
            continue
        last_bytes = missing % buffer_bytes
        if missing > last_bytes:  # whole multiples of the buffer size are read by one call, without the buffer
            yield missing - last_bytes
        buffered = 0
        if last_bytes:
            yield buffer_bytes
            buffered = buffer_bytes - last_bytes


class BufferedFile:
    """A file read by the calls of a Python file opened with `open(path, "rb")`, without copying through its buffer.

    `image` is memory for the whole file; only the parts that were read are valid. Source: CPython,
    Modules/_io/bufferedio.c (`_bufferedreader_read_generic`, `_io__Buffered_seek_impl`), confirmed by strace.
    """

    def __init__(self, source: Source) -> None:
        self.size_bytes = source.size_bytes
        self.image = source.memory(source.size_bytes)
        self.block_bytes = source.reader.block_bytes
        self.position = 0
        self._source = source
        self._buffer_bytes = python_buffer_bytes(self.block_bytes)
        self._start = self._end = 0  # the range of the file (end exclusive) that Python's buffer would hold
        self._reads: list[tuple[int, int]] = []  # ranges (start, stop) read so far

    def seek(self, offset: int) -> None:
        """Set the position; this empties the buffer unless it contains that position."""
        if not self._start <= offset <= self._end:
            self._start = self._end = offset
        self.position = offset

    def seek_from_end(self, offset_bytes: int = 0) -> None:
        """Set the position to `offset_bytes` before the end of the file; this empties the buffer."""
        self.position = self._start = self._end = max(0, self.size_bytes - offset_bytes)

    def read(self, size_bytes: int) -> memoryview:
        """Read as `io.BufferedReader.read` does; return fewer bytes only at the end of the file."""
        begin, stop = self.position, self.position + size_bytes
        buffer_bytes, bytes_read = self._buffer_bytes, 1  # 0 bytes read: the end of the file
        if stop > self._end:
            while bytes_read and stop - self._end >= buffer_bytes:  # whole multiples bypass the buffer
                bytes_read = self.call(self._end, (stop - self._end) // buffer_bytes * buffer_bytes)
                self._end += bytes_read
            self._start = self._end
            while bytes_read and self._end < min(stop, self._start + buffer_bytes):  # fill the buffer
                bytes_read = self.call(self._end, self._start + buffer_bytes - self._end)
                self._end += bytes_read
        self.position = min(stop, self._end)
        return self.image[begin : self.position]

    def read_all(self) -> memoryview:
        """Read to the end of the file as `read()` does: by one call, then a second that returns nothing."""
        begin = self.position
        self.call(self._end, self.size_bytes - self._end)
        self.call(self.size_bytes, 1)
        self.position = self._start = self._end = self.size_bytes
        return self.image[begin:]

    def call(self, offset: int, size_bytes: int) -> int:
        """Make one read call, without the buffer; return the bytes read, 0 at the end. Raises OSError, DatasetError."""
        source, offset = self._source, min(offset, self.size_bytes)
        stop = min(offset + size_bytes, self.size_bytes)
        start_ns = time.monotonic_ns()
        bytes_read = source.reader.read_into(self.image[offset:stop] or memoryview(bytearray(1)), offset)
        source.read_ns += time.monotonic_ns() - start_ns
        if bytes_read < stop - offset:
            raise ended_early(source.path, stop - offset - bytes_read, offset + bytes_read)
        self._reads.append((offset, stop))
        return stop - offset

    def unread(self) -> list[tuple[int, int]]:
        """Return the ranges (start, stop) of the file that were not read."""
        unread, end = [], 0
        for start, stop in [*sorted(self._reads), (self.size_bytes, self.size_bytes)]:
            if start > end:
                unread.append((end, start))
            end = max(end, stop)
        return unread

    def finish(self) -> int:
        """Fill the parts of `image` not read with zeros: its memory is reused. Return the bytes read more than once."""
        reread_bytes = sum(stop - start for start, stop in self._reads) - self.size_bytes
        for start, stop in self.unread():
            self.image[start:stop] = bytes(stop - start)
            reread_bytes += stop - start
        return reread_bytes

    def read_rest(self) -> None:
        """Read the parts of the file that were not read yet."""
        for start, stop in self.unread():
            self.call(start, stop - start)


def read_by_stdio(file: BufferedFile, offset: int) -> None:
    """Read from `offset` to the end by the calls of np.fromfile, which uses C's fseek and fread.

    fseek reads from the last multiple of the buffer size up to `offset`. fread fills the buffer from that multiple on,
    reads all further whole buffers by one call, then the rest. Source: glibc, `_IO_file_xsgetn`, and strace.
    """
    buffer_bytes = min(file.block_bytes, _STDIO_BYTES)
    position = offset - offset % buffer_bytes
    if position < offset:
        file.call(position, offset - position)
    position += file.call(position, buffer_bytes)
    whole_bytes = max(0, file.size_bytes - position) // buffer_bytes * buffer_bytes
    if whole_bytes:
        position += file.call(position, whole_bytes)
    if position < file.size_bytes:
        file.call(position, buffer_bytes)

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
_MAX_BUFFER_BYTES = 8 << 20  # maximum buffer of Python's `open`, from Python 3.14 on


class Source:
    """An open file, and memory for the bytes read from it. If the file grows, bytes after `size_bytes` are not used."""

    read_ns = 0  # time spent in reads
    reread_bytes = 0  # bytes read again; `counts` leaves them out
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
        # Reads begin and end at multiples of the alignment: of 4096, bytes 5000 to 9000 need a read of 4096 to 12288
        skipped = offset % self._alignment
        needed_bytes = skipped + size_bytes
        target = self.memory(needed_bytes + -needed_bytes % self._alignment)
        start_ns = time.monotonic_ns()
        try:
            bytes_read = read_in_transfers(self.reader, target, offset - skipped, self._transfer_bytes)
        except OSError as error:
            raise unreadable(self.path, error) from error
        self.read_ns += time.monotonic_ns() - start_ns
        if bytes_read < needed_bytes:
            raise ended_early(self.path, needed_bytes - bytes_read, offset - skipped + bytes_read)
        return target[skipped:needed_bytes]

    def counts(self) -> tuple[int, int, int]:
        """Return bytes (each counted once), calls and nanoseconds of the reads since `counts` was last called."""
        counted_bytes, counted_calls, counted_ns = self._counted
        total_bytes = self.reader.app_bytes - self.reread_bytes
        total_calls = self.reader.read_calls
        self._counted = total_bytes, total_calls, self.read_ns
        return total_bytes - counted_bytes, total_calls - counted_calls, self.read_ns - counted_ns

    def close(self) -> None:
        self.reader.close()


class CachedSource(Source):
    """A `Source` with parts of the file in memory, as (offset, data); it reads other bytes from the file."""

    def __init__(self, source: Source, parts: Sequence[tuple[int, memoryview]]) -> None:
        self.path = source.path
        self.size_bytes = source.size_bytes
        self.reader = source.reader
        self._source = source
        self._parts = parts

    def read(self, offset: int, size_bytes: int) -> memoryview:
        for begin, data in self._parts:
            if begin <= offset and offset + size_bytes <= begin + len(data):
                return data[offset - begin : offset - begin + size_bytes]
        return self._source.read(offset, size_bytes)


class MemorySource(Source):
    def __init__(self, data: memoryview, scratch: Scratch) -> None:
        self.path = ""
        self.size_bytes = len(data)
        self.scratch = scratch
        self._data = data

    def read(self, offset: int, size_bytes: int) -> memoryview:
        if offset + size_bytes > self.size_bytes:
            raise DamagedError(f"the file ends before offset {offset + size_bytes}", self.size_bytes)
        return self._data[offset : offset + size_bytes]


class SourceStream(io.RawIOBase):
    """A `Source` as a file object for libraries (h5py, pyarrow, Pillow); closing it leaves the `Source` open."""

    def __init__(self, source: Source) -> None:
        self.name = source.path
        self.source = source
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
        """Read by one call; return fewer bytes only at the end of the file."""
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
    """Merge spans that are at most `max_hole` bytes apart into spans of at most `max_bytes`.

    For example, with `max_hole=5`, [(0, 10), (15, 10), (40, 10)] becomes [(0, 25), (40, 10)]. Spans are in file order.
    """
    merged: list[Span] = []
    for start, size in spans:
        if merged:
            merged_start, merged_bytes = merged[-1]
            hole_bytes = start - (merged_start + merged_bytes)
            total_bytes = start + size - merged_start
            if 0 <= hole_bytes <= max_hole and total_bytes <= max_bytes:
                merged[-1] = merged_start, total_bytes
                continue
        merged.append((start, size))
    return merged


def python_buffer_bytes(block_bytes: int) -> int:
    """Return the buffer size of Python's `open`, given the file system's block size (st_blksize)."""
    if sys.version_info >= (3, 14):
        return max(min(block_bytes, _MAX_BUFFER_BYTES), io.DEFAULT_BUFFER_SIZE)
    return block_bytes if block_bytes > 1 else io.DEFAULT_BUFFER_SIZE


def python_calls(sizes: Iterable[int], block_bytes: int) -> Iterator[int]:
    """Yield the sizes of the read calls that a buffered Python file makes for sequential reads of `sizes` bytes."""
    buffer_bytes = python_buffer_bytes(block_bytes)
    buffered = 0  # bytes in the buffer that were not requested yet
    for size in sizes:
        missing = size - buffered
        if missing <= 0:
            buffered -= size
            continue
        remainder = missing % buffer_bytes
        if missing > remainder:  # whole multiples of the buffer size are read by one call, without the buffer
            yield missing - remainder
        buffered = 0
        if remainder:
            yield buffer_bytes
            buffered = buffer_bytes - remainder


class BufferedFile:
    """Reads a file by the calls of a Python file opened with `open(path, "rb")`, but straight into `image`.

    `image` is memory for the whole file, in which only the parts that were read are valid. Source: CPython,
    Modules/_io/bufferedio.c (`_bufferedreader_read_generic`, `_io__Buffered_seek_impl`), confirmed by strace.
    """

    def __init__(self, source: Source) -> None:
        self.size_bytes = source.size_bytes
        self.image = source.memory(source.size_bytes)
        self.block_bytes = source.reader.block_bytes
        self.position = 0
        self._source = source
        self._buffer_bytes = python_buffer_bytes(self.block_bytes)
        self._start = self._end = 0  # the part of the file (end exclusive) that Python's buffer would hold
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
        buffer_bytes = self._buffer_bytes
        if stop > self._end:
            bytes_read = 1  # of the last call: 0 at the end of the file
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
        """Make one read call; return the number of bytes, 0 at the end of the file. Raises OSError, DatasetError."""
        source = self._source
        begin = min(offset, self.size_bytes)
        stop = min(begin + size_bytes, self.size_bytes)
        start_ns = time.monotonic_ns()
        target = self.image[begin:stop] or memoryview(bytearray(1))  # a call at the end of the file returns nothing
        bytes_read = source.reader.read_into(target, begin)
        source.read_ns += time.monotonic_ns() - start_ns
        if bytes_read < stop - begin:
            raise ended_early(source.path, stop - begin - bytes_read, begin + bytes_read)
        self._reads.append((begin, stop))
        return stop - begin

    def unread(self) -> list[tuple[int, int]]:
        """Return the ranges (start, stop) of the file that were not read."""
        unread = []
        read_until = 0
        for start, stop in [*sorted(self._reads), (self.size_bytes, self.size_bytes)]:
            if start > read_until:
                unread.append((read_until, start))
            read_until = max(read_until, stop)
        return unread

    def finish(self) -> int:
        """Zero the unread parts of `image`, which may hold an earlier file; return how many bytes were read again."""
        reread_bytes = sum(stop - start for start, stop in self._reads) - self.size_bytes
        for start, stop in self.unread():
            self.image[start:stop] = bytes(stop - start)
            reread_bytes += stop - start
        return reread_bytes

    def read_rest(self) -> None:
        """Read the unread parts of the file."""
        for start, stop in self.unread():
            self.call(start, stop - start)

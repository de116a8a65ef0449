"""Reproduces the read calls of a library that uses Python's buffered files (`open(path, "rb")`), without its copies.

Bytes are read to memory that has the layout of the file, so a byte that is read twice is stored once. Sources: CPython,
Modules/_io/bufferedio.c (`_bufferedreader_read_generic`, `_io__Buffered_seek_impl`), and glibc's fread
(libio/fileops.c, `_IO_file_xsgetn`), confirmed by strace.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator

from datagen.formats.format_base import Source, ended_early

_MAX_BUFFER_BYTES = 8 << 20  # maximum buffer of `open` in Python 3.14 and later
_STDIO_BYTES = 8192  # glibc's BUFSIZ: the maximum size of its buffers


def python_buffer_bytes(block_bytes: int) -> int:
    """Return the buffer size of Python's `open`, given the file system's block size (st_blksize)."""
    if sys.version_info >= (3, 14):
        return max(min(block_bytes, _MAX_BUFFER_BYTES), io.DEFAULT_BUFFER_SIZE)
    return block_bytes if block_bytes > 1 else io.DEFAULT_BUFFER_SIZE


def python_calls(sizes: Iterable[int], block_bytes: int) -> Iterator[int]:
    """Yield the sizes of the read calls that a buffered file makes for sequential reads of `sizes` bytes."""
    buffer_bytes, ahead = python_buffer_bytes(block_bytes), 0
    for size in sizes:
        missing = size - ahead
        if missing <= 0:
            ahead -= size
            continue
        if whole := missing - missing % buffer_bytes:
            yield whole
        ahead = 0
        if missing > whole:
            yield buffer_bytes
            ahead = buffer_bytes - (missing - whole)


class BufferedFile:
    """A file that is read by the calls of Python's buffered files.

    `image` is memory for the whole file, of which only the parts that were read are valid.
    """

    def __init__(self, source: Source) -> None:
        self.path = source.path
        self.size_bytes = source.size_bytes
        self.image = source.memory(source.size_bytes)
        self.block_bytes = source.reader.block_bytes
        self._source = source
        self._buffer_bytes = python_buffer_bytes(source.reader.block_bytes)
        self._at = self._start = self._end = 0  # position, and the range of the file in the buffer
        self._unread = [(0, source.size_bytes)]  # ranges (start, stop) that were not read yet

    @property
    def position(self) -> int:
        return self._at

    def seek(self, offset: int) -> None:
        """Set the position; the buffer is kept if it contains it."""
        if not self._start <= offset <= self._end:
            self._start = self._end = offset
        self._at = offset

    def seek_from_end(self, offset_bytes: int = 0) -> None:
        """Set the position `offset_bytes` before the end, which empties the buffer."""
        self._at = self._start = self._end = max(0, self.size_bytes - offset_bytes)

    def read(self, size_bytes: int) -> memoryview:
        """Read as `io.BufferedReader.read` does; return fewer bytes only at the end of the file."""
        begin = self._at
        left, end = size_bytes - (self._end - begin), self._end
        if left > 0:
            left, end = self._read_past_buffer(left, end)
        self._at = min(begin + size_bytes, end)
        return self.image[begin : self._at]

    def read_all(self) -> memoryview:
        """Read the rest as `read()` does: by one call, and another one that returns nothing."""
        begin = self._at
        self.call(self._end, self.size_bytes - self._end)
        self.call(self.size_bytes, 1)
        self._at = self._start = self._end = self.size_bytes
        return self.image[begin:]

    def read_rest(self) -> None:
        """Read all ranges that were not read yet."""
        for start, stop in list(self._unread):
            self.call(start, stop - start)

    def blank_rest(self) -> None:
        """Fill the ranges that were not read with zeros: the memory may hold bytes of an earlier file."""
        for start, stop in self._unread:
            self.image[start:stop] = bytes(stop - start)

    def call(self, offset: int, size_bytes: int) -> int:
        """Make one read call, bypassing the buffer; return the bytes got."""
        stop = min(offset + size_bytes, self.size_bytes)
        if stop <= offset:
            return self._source.call(memoryview(bytearray(1)), self.size_bytes)
        got = self._source.call(self.image[offset:stop], offset)
        if got < stop - offset:
            raise ended_early(self.path, stop - offset - got, offset + got)
        self._source.reread_bytes += got - self._mark_read(offset, stop)
        return got

    def _mark_read(self, start: int, stop: int) -> int:
        """Mark a range as read; return how many bytes of it were not read before."""
        left, new = [], 0
        for first, last in self._unread:
            if start >= last or stop <= first:
                left.append((first, last))
                continue
            new += min(stop, last) - max(start, first)
            left += [part for part in ((first, start), (stop, last)) if part[0] < part[1]]
        self._unread = left
        return new

    def _read_past_buffer(self, left: int, end: int) -> tuple[int, int]:
        """Read `left` bytes from `end` on: multiples of the buffer size directly, the rest by filling the buffer."""
        size = self._buffer_bytes
        while whole := left - left % size:
            got = self.call(end, whole)
            end += got
            left -= got
            self._start = self._end = end
            if not got:
                return left, end
        self._start = self._end = end
        while left > 0 and self._end - self._start < size:
            got = self.call(self._end, size - (self._end - self._start))
            self._end += got
            if not got:
                break
            left -= min(left, got)
        return left, self._end


def read_by_stdio(file: BufferedFile, offset: int, size_bytes: int) -> None:
    """Read the items after a header as `np.fromfile` does: by C's fseek and fread.

    fseek reads from the last multiple of the buffer size up to `offset`; fread fills the buffer from that multiple on,
    then reads all but the last bytes of the items by one call.
    """
    buffer_bytes = min(file.block_bytes, _STDIO_BYTES)
    before = offset % buffer_bytes
    at = offset - before
    if before:
        file.call(at, before)
    stop = offset + size_bytes
    at += file.call(at, buffer_bytes)
    if whole := (stop - at) // buffer_bytes * buffer_bytes if stop > at else 0:
        at += file.call(at, whole)
    if at < stop:
        file.call(at, buffer_bytes)

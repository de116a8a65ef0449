"""Page-aligned memory for reads: allocated once, and reused."""

from __future__ import annotations

import ctypes
import errno
import mmap

from datagen.errors import SpaceError

GROWTH_LIMIT_BYTES = 64 << 20  # a buffer that must grow doubles, but takes no more than this beyond what was requested
HUGE_PAGES_FROM_BYTES = 16 << 20  # huge pages save larger buffers a page fault and a TLB entry for every 4 KiB
_MADV_POPULATE_WRITE = 23  # linux/mman.h, since Linux 5.14: fault in all pages of a range by one call
_NoBytes = ctypes.c_char * 0  # the type of an empty view, which has an address


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple that is not below `number`."""
    return number + -number % multiple


def take_pages(memory: mmap.mmap, start: int, size_bytes: int) -> None:
    """Fault in the pages of a range of new memory now, not at first use; does nothing on kernels before 5.14.

    `start` is a multiple of the page size. Raises SpaceError if there is no memory for the pages.
    """
    try:
        memory.madvise(_MADV_POPULATE_WRITE, start, size_bytes)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise SpaceError(
                f"no memory for a buffer of {size_bytes} bytes: {error.strerror}; lower ranks, reader.read_threads, "
                "reader.prefetch_size or reader.batch_size"
            ) from error


def address_of(memory: memoryview) -> int:
    """Return the address of writable memory. This is six times as fast as through a numpy array."""
    return ctypes.addressof(_NoBytes.from_buffer(memory))


class AlignedBuffer:
    """An anonymous mapping, page-aligned, that grows on demand. Memory is taken only for pages that are touched."""

    def __init__(self, size_bytes: int = 0) -> None:
        self._map: mmap.mmap | None = None
        self._view = memoryview(b"")
        self.view(size_bytes)  # allocates

    def view(self, size_bytes: int) -> memoryview:
        """Return the first `size_bytes`. Growing copies nothing into the new memory; earlier views stay as they are."""
        if size_bytes > len(self._view):
            new_bytes = max(size_bytes, min(2 * len(self._view), size_bytes + GROWTH_LIMIT_BYTES))
            map_bytes = round_up(new_bytes, mmap.PAGESIZE)
            self._map = mmap.mmap(-1, map_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if map_bytes >= HUGE_PAGES_FROM_BYTES:
                self._map.madvise(mmap.MADV_HUGEPAGE)
            self._view = memoryview(self._map)
        return self._view[:size_bytes]

    def take_pages(self) -> None:
        """Fault in the pages of the buffer, so that the first measured read has no page faults."""
        if self._map is not None:
            take_pages(self._map, 0, len(self._map))


class NewMemory:
    """Allocates memory for a file at each call."""

    def __init__(self, alignment: int) -> None:
        self._alignment = alignment

    def take(self, size_bytes: int) -> memoryview:
        """Return aligned memory to read into."""
        memory = memoryview(bytearray(size_bytes + self._alignment - 1))
        start = -address_of(memory) % self._alignment if self._alignment > 1 else 0
        return memory[start : start + size_bytes]

    def scratch(self, size_bytes: int) -> memoryview:
        """Return memory for decoded bytes."""
        return memoryview(bytearray(size_bytes))


class FileMemory:
    """Memory for one file after another: the caller's as long as it has space, else buffers that are reused."""

    def __init__(self, alignment: int, max_file_bytes: int) -> None:
        self._alignment = alignment
        self._in_place = memoryview(b"")
        self._used_bytes = self._scratch_count = 0  # of the current file
        self._buffer = AlignedBuffer(max_file_bytes)
        self._buffer.take_pages()
        self._scratch_buffers: list[AlignedBuffer] = []

    def begin_file(self, in_place: memoryview) -> None:
        """Start the next file, in the memory `in_place` while that has space; the buffers' contents are overwritten."""
        self._in_place = in_place
        self._used_bytes = self._scratch_count = 0

    def take(self, size_bytes: int) -> memoryview:
        """Return memory for a read. Memory of earlier reads of the same file stays valid, even if the buffer grows."""
        start = self._used_bytes + -self._used_bytes % self._alignment  # the next multiple of the alignment
        end = start + size_bytes
        self._used_bytes = end
        return self._in_place[start:end] if end <= len(self._in_place) else self._buffer.view(end)[start:]

    def scratch(self, size_bytes: int) -> memoryview:
        """Return memory for decoded bytes; each call for the same file returns another buffer."""
        if self._scratch_count == len(self._scratch_buffers):
            self._scratch_buffers.append(AlignedBuffer())
        buffer = self._scratch_buffers[self._scratch_count]
        self._scratch_count += 1
        return buffer.view(size_bytes)

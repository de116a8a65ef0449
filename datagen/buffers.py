"""Memory that reads land in: page-aligned, made once, used again."""

from __future__ import annotations

import ctypes
import errno
import mmap

from datagen.errors import SpaceError

HUGE_PAGES_FROM_BYTES = 16 << 20
"""From this size on, huge pages are requested: they save a page fault and a TLB entry for every 4 KiB."""
GROWTH_LIMIT_BYTES = 64 << 20
"""A buffer that must grow doubles, but takes no more than this beyond what was requested."""
_MADV_POPULATE_WRITE = 23
"""linux/mman.h, from Linux 5.14 on: take the pages of a range now, all by one call."""


def take_pages(memory: mmap.mmap, start: int, size_bytes: int) -> None:
    """Have the kernel give the pages of a stretch of fresh memory now; where it can't, each is taken at first use.

    `start` is a multiple of the page size. Raises SpaceError when there is no memory for them.
    """
    try:
        memory.madvise(_MADV_POPULATE_WRITE, start, size_bytes)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise SpaceError(
                f"no memory for a buffer of {size_bytes} bytes: {error.strerror}; lower ranks, reader.read_threads, "
                "reader.prefetch_size or reader.batch_size"
            ) from error


_NoBytes = ctypes.c_char * 0


def address_of(memory: memoryview) -> int:
    """Return where writable memory begins, in a sixth of the time that an array over it takes to tell."""
    return ctypes.addressof(_NoBytes.from_buffer(memory))


class AlignedBuffer:
    """An anonymous mapping that grows on demand. Memory is taken only for pages that are touched."""

    def __init__(self, size_bytes: int = 0) -> None:
        self._map: mmap.mmap | None = None
        self._view = memoryview(b"")
        if size_bytes:
            self._grow(size_bytes)

    def view(self, size_bytes: int) -> memoryview:
        """Return the first `size_bytes` of the buffer, writable and page-aligned.

        Growing forgets the contents; views handed out before keep theirs.
        """
        if size_bytes > len(self._view):
            self._grow(max(size_bytes, min(2 * len(self._view), size_bytes + GROWTH_LIMIT_BYTES)))
        return self._view[:size_bytes]

    def take_pages(self) -> None:
        """Take the memory of the buffer's present size now: whoever measures reads doesn't want it in the first one."""
        if self._map is not None:
            take_pages(self._map, 0, len(self._map))

    def _grow(self, size_bytes: int) -> None:
        size = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= HUGE_PAGES_FROM_BYTES:
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._view = memoryview(self._map)

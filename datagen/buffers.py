"""Memory that reads land in: page-aligned, made once, used again."""

from __future__ import annotations

import mmap

HUGE_PAGES_FROM_BYTES = 16 << 20
"""From this size on, huge pages are asked for: they save a page fault and a TLB entry for every 4 KiB."""
GROWTH_LIMIT_BYTES = 64 << 20
"""A buffer that must grow doubles, but takes no more than this beyond what was asked for."""


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

    def _grow(self, size_bytes: int) -> None:
        size = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= HUGE_PAGES_FROM_BYTES:
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._view = memoryview(self._map)

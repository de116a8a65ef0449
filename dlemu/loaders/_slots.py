"""Batch buffers (slots) in memory that a rank shares with its workers: allocated once, reused, never copied."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from multiprocessing.reduction import DupFd
from typing import Any

from datagen.buffers import take_pages
from datagen.errors import SpaceError


class SharedSlots:
    """`slots` buffers of `slot_bytes` each in an anonymous file in memory (memfd), outside the limits of /dev/shm.

    Memory is allocated when a slot is written, or by `take_pages`. Workers inherit the slots by fork or, when spawned,
    get them as a duplicated file descriptor.
    """

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self._slot_bytes = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            self._fd = os.memfd_create("dlemu-batches")
            os.ftruncate(self._fd, max(mmap.PAGESIZE, slots * self._slot_bytes))
            self._map()
        except OSError as error:
            limit = "-f" if error.errno == errno.EFBIG else "-n"  # the limit on file sizes also applies to a memfd
            raise SpaceError(
                f"no memory for {slots} batch buffers of {self._slot_bytes} bytes: {error.strerror}; "
                "wanted that memory and one file descriptor; lower reader.read_threads, reader.prefetch_size or "
                f"reader.batch_size, or raise `ulimit {limit}`"
            ) from error

    def _map(self) -> None:
        self._memory = mmap.mmap(self._fd, 0)
        self._view = memoryview(self._memory)

    def slot(self, index: int) -> memoryview:
        """Return the memory of one slot, writable and page-aligned."""
        return self._view[index * self._slot_bytes : (index + 1) * self._slot_bytes]

    def take_pages(self) -> None:
        """Allocate the memory of all slots now, and map it into this process. Raises SpaceError."""
        take_pages(self._memory, 0, len(self._memory))

    def close(self) -> None:
        """Close the file and release the memory; views that a trainer still has keep the mapping alive."""
        os.close(self._fd)
        self._view.release()
        with contextlib.suppress(BufferError):  # a tensor over a slot still exists: the mapping ends with the tensor
            self._memory.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"fd": DupFd(self._fd), "slot_bytes": self._slot_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._fd, self._slot_bytes = state["fd"].detach(), state["slot_bytes"]
        self._map()

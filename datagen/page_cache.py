"""Inspecting a user's files without leaving them in the page cache, from which a later run would then be served."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterator, Sequence

import numpy as np


@contextlib.contextmanager
def restored(paths: Sequence[str]) -> Iterator[None]:
    """On exit, drop from the page cache those of the local files whose middle page was not cached on entry."""
    cold = [path for path in paths if not _in_memory(path)]
    try:
        yield
    finally:
        for path in cold:
            with contextlib.suppress(OSError):  # the next reader will report the error
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                try:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(descriptor)


def _in_memory(path: str) -> bool:
    """Return whether the page in the middle of a file is cached (mincore(2)); True for a file that can't be mapped."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        place = os.fstat(descriptor).st_size // 2 // mmap.PAGESIZE * mmap.PAGESIZE
        with mmap.mmap(descriptor, mmap.PAGESIZE, prot=mmap.PROT_READ, offset=place) as mapped:
            address, found = np.frombuffer(mapped, np.uint8).ctypes.data, ctypes.c_ubyte(1)
            failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(address), mmap.PAGESIZE, ctypes.byref(found))
            return bool(failed or found.value & 1)
    except (OSError, ValueError):  # an empty file, or a file system without maps
        return True
    finally:
        os.close(descriptor)

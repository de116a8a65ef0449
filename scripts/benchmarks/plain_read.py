"""The plain reader: `plain_read EPOCHS PLACES TRANSFER FROM FILE...` reads files by preadv and tells what it took.

A file lies in the next of PLACES places of memory, each large enough for any file; after the last comes the first.
A call asks for TRANSFER bytes, 0: for the whole file. FROM is `cache`; `direct`: past it (O_DIRECT); or `evicted`: each
time through the files begins with dropping them from it (posix_fadvise), which counts.

Prints one JSON object: bytes, wall_seconds and cpu_seconds of the reading alone.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial


def read_files(paths: Sequence[str], epochs: int, places: int, transfer: int, source: str) -> dict[str, float]:
    """Read every file whole, `epochs` times over."""
    largest = -(-max(os.path.getsize(path) for path in paths) // mmap.PAGESIZE) * mmap.PAGESIZE
    direct = source == "direct"
    if direct:
        # In huge pages, as NumPy asks for them for its arrays and dlemu for its buffers: a request is then one piece of
        # memory, not 64, and a virtual drive twice as fast. Shared memory, mmap's default, never lies in them.
        mapped = mmap.mmap(-1, places * largest, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapped.madvise(mmap.MADV_HUGEPAGE)
    else:
        mapped = mmap.mmap(-1, places * largest)
    memory = memoryview(mapped)
    memory[:: mmap.PAGESIZE] = bytes(-(-len(memory) // mmap.PAGESIZE))  # takes its pages
    in_turn = itertools.cycle([memory[begin : begin + largest] for begin in range(0, len(memory), largest)])
    flags = os.O_DIRECT if direct else 0
    read_once = partial(_read_once, paths, in_turn, transfer or largest, flags, evict=source == "evicted")
    return timed(read_once, epochs)


def timed(read_once: Callable[[], int], epochs: int) -> dict[str, float]:
    """Return what `epochs` readings took, after a first one; `read_once` returns the bytes that it read."""
    read_once()
    total, started, cpu_before = 0, time.monotonic(), _cpu_seconds()
    for _ in range(epochs):
        total += read_once()
    return {
        "bytes": total,
        "wall_seconds": time.monotonic() - started,
        "cpu_seconds": _cpu_seconds() - cpu_before,
    }


def _read_once(paths: Sequence[str], places: Iterator[memoryview], transfer: int, flags: int, *, evict: bool) -> int:
    total = 0
    for path in paths if evict else ():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    for path, place in zip(paths, places, strict=False):
        descriptor = os.open(path, os.O_RDONLY | flags)
        size, got = os.fstat(descriptor).st_size, 0
        while got < size:
            got += os.preadv(descriptor, [place[got : got + transfer]], got)
        os.close(descriptor)
        total += got
    return total


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    epochs, places, transfer = map(int, sys.argv[1:4])
    print(json.dumps(read_files(sys.argv[5:], epochs, places, transfer, sys.argv[4])))

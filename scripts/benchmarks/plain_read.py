"""The plain reader: `plain_read EPOCHS PLACES FILE...` reads files by preadv and tells what it took.

A file lies in the next of PLACES places of memory, each large enough for any file; after the last comes the first.

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
from collections.abc import Iterator, Sequence


def read_files(paths: Sequence[str], epochs: int, places: int) -> dict[str, float]:
    """Read every file whole, `epochs` times over."""
    largest = max(os.path.getsize(path) for path in paths)
    memory = memoryview(mmap.mmap(-1, places * largest))
    memory[:: mmap.PAGESIZE] = bytes(-(-len(memory) // mmap.PAGESIZE))  # takes its pages
    in_turn = itertools.cycle([memory[begin : begin + largest] for begin in range(0, len(memory), largest)])
    _read_once(paths, in_turn)
    total, started, cpu_before = 0, time.monotonic(), _cpu_seconds()
    for _ in range(epochs):
        total += _read_once(paths, in_turn)
    return {
        "bytes": total,
        "wall_seconds": time.monotonic() - started,
        "cpu_seconds": _cpu_seconds() - cpu_before,
    }


def _read_once(paths: Sequence[str], places: Iterator[memoryview]) -> int:
    total = 0
    for path, place in zip(paths, places, strict=False):
        descriptor = os.open(path, os.O_RDONLY)
        size, got = os.fstat(descriptor).st_size, 0
        while got < size:
            got += os.preadv(descriptor, [place[got:size]], got)
        os.close(descriptor)
        total += got
    return total


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    print(json.dumps(read_files(sys.argv[3:], int(sys.argv[1]), int(sys.argv[2]))))

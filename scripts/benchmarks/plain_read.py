"""The plain reader: `plain_read EPOCHS FILE...` reads files by preadv into one reused buffer and tells what it took.

Prints one JSON object: bytes, wall_seconds and cpu_seconds of the reading alone.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Sequence


def read_files(paths: Sequence[str], epochs: int) -> dict[str, float]:
    """Read every file whole, `epochs` times over."""
    buffer = memoryview(mmap.mmap(-1, max(os.path.getsize(path) for path in paths)))
    _read_once(paths, buffer)  # what comes first touches the buffer's pages
    total, started, cpu_before = 0, time.monotonic(), _cpu_seconds()
    for _ in range(epochs):
        total += _read_once(paths, buffer)
    return {
        "bytes": total,
        "wall_seconds": time.monotonic() - started,
        "cpu_seconds": _cpu_seconds() - cpu_before,
    }


def _read_once(paths: Sequence[str], buffer: memoryview) -> int:
    total = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        size, got = os.fstat(descriptor).st_size, 0
        while got < size:
            got += os.preadv(descriptor, [buffer[got:size]], got)
        os.close(descriptor)
        total += got
    return total


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    print(json.dumps(read_files(sys.argv[2:], int(sys.argv[1]))))

"""The plain writer: `plain_write FOLDER THREADS FSYNC SIZE...` writes files of these sizes from a ready buffer.

Each is written under a temporary name and renamed, as a dataset's files are; FSYNC is 0 or 1. Prints one JSON object:
bytes and wall_seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

CHUNK_BYTES = 1 << 20
"""Written at a time: the buffer stays in a core's cache, which is the fastest a writer can be."""


def write_files(folder: str, sizes: Sequence[int], threads: int, fsync: bool) -> dict[str, float]:
    """Write the files, `threads` at a time."""
    buffer = memoryview(os.urandom(CHUNK_BYTES))
    paths = [os.path.join(folder, f"plain_{number}") for number in range(len(sizes))]
    started = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda path, size: _write_file(path, size, buffer, fsync), paths, sizes))
    return {"bytes": sum(sizes), "wall_seconds": time.monotonic() - started}


def _write_file(path: str, size_bytes: int, buffer: memoryview, fsync: bool) -> None:
    descriptor = os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    left = size_bytes
    while left:
        left -= os.write(descriptor, buffer[:left])
    if fsync:
        os.fsync(descriptor)
    os.close(descriptor)
    os.rename(path + ".part", path)


if __name__ == "__main__":
    folder, threads, fsync, *sizes = sys.argv[1:]
    print(json.dumps(write_files(folder, [int(size) for size in sizes], int(threads), fsync == "1")))

"""The plainest reader there is, to measure a drive by itself: `python -m validation.plain READERS SECONDS FILE...`

Each reader reads whole files past the page cache (O_DIRECT), one after another, round and round, at a rate if one is
given. It prints bytes/s of all readers together, after `SETTLE_SECONDS`: a throttle that has been idle lets a first
burst pass.
"""

from __future__ import annotations

import argparse
import math
import mmap
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

BUFFER_BYTES = 4 << 20
SETTLE_SECONDS = 1.0

Reads = list[tuple[float, int]]
"""When each read was complete, and its bytes."""


def read_bytes_per_second(files: list[str], readers: int, seconds: float, *, most: float = math.inf) -> float:
    """Return the speed of `readers` threads together, over `seconds`; they read no faster than `most` bytes/s."""
    settled = time.monotonic() + SETTLE_SECONDS
    deadline = settled + seconds
    with ThreadPoolExecutor(readers) as pool:
        logs = pool.map(lambda reader: _read(files[reader::readers] or files, deadline, most / readers), range(readers))
        reads = sorted(read for log in logs for read in log if read[0] >= settled)
    return sum(count for _, count in reads[1:]) / (reads[-1][0] - reads[0][0])


def _read(files: list[str], deadline: float, most: float) -> Reads:
    buffer, reads = mmap.mmap(-1, BUFFER_BYTES), Reads()
    due = time.monotonic()
    while time.monotonic() < deadline:
        for path in files:
            for count in _read_file(path, buffer):
                reads.append((time.monotonic(), count))
                if reads[-1][0] >= deadline:
                    return reads
                due = max(due + count / most, reads[-1][0] - 1.0)  # what a slow second lost is made up for, no more
                time.sleep(max(0.0, due - reads[-1][0]))
    return reads


def _read_file(path: str, buffer: mmap.mmap) -> Iterator[int]:
    """Read a file from its start to its end; yield the bytes of each read."""
    descriptor, offset = os.open(path, os.O_RDONLY | os.O_DIRECT), 0
    try:
        while count := os.preadv(descriptor, [buffer], offset):
            offset += count
            yield count
            if count < BUFFER_BYTES:
                return
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("readers", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--bytes-per-second", type=float, default=math.inf)
    given = parser.parse_args()
    print(read_bytes_per_second(given.files, given.readers, given.seconds, most=given.bytes_per_second))

"""A plain reader that measures a drive without dlemu: `python -m validation.plain READERS SECONDS FILE...`

Each reader reads whole files past the page cache (O_DIRECT), one after another in a loop; the rate can be limited. The
program prints bytes/s of all readers together. It does not count the first `SETTLE_SECONDS`, because a throttle that
was idle lets a burst pass.
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
"""Reads as (time of completion, bytes)."""


def read_bytes_per_second(files: list[str], readers: int, seconds: float, *, max_rate: float = math.inf) -> float:
    """Return the bytes/s of `readers` threads together, over `seconds`; they read no faster than `max_rate` bytes/s."""
    settled = time.monotonic() + SETTLE_SECONDS
    deadline = settled + seconds
    with ThreadPoolExecutor(readers) as pool:
        rate = max_rate / readers
        logs = pool.map(lambda reader: _read(files[reader::readers] or files, deadline, rate), range(readers))
        reads = sorted(read for log in logs for read in log if read[0] >= settled)
    return sum(count for _, count in reads[1:]) / (reads[-1][0] - reads[0][0])


def _read(files: list[str], deadline: float, max_rate: float) -> Reads:
    buffer, reads = mmap.mmap(-1, BUFFER_BYTES), Reads()
    due = time.monotonic()
    while time.monotonic() < deadline:
        for path in files:
            for count in _read_file(path, buffer):
                reads.append((time.monotonic(), count))
                if reads[-1][0] >= deadline:
                    return reads
                due = max(due + count / max_rate, reads[-1][0] - 1.0)  # catches up on at most a second of delay
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
    args = parser.parse_args()
    print(read_bytes_per_second(args.files, args.readers, args.seconds, max_rate=args.bytes_per_second))

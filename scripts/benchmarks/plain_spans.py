"""The plain reader of columns: `plain_spans EPOCHS SPANS` reads stretches of files by preadv and tells what it took.

SPANS is a file, a list of [path, [[[offset, bytes], ...] of a batch, ...]] as JSON. Each batch is read to the same
place in memory, its stretches one behind the other.

Prints one JSON object: bytes, wall_seconds and cpu_seconds of the reading alone.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.plain_read import timed

Batches = Sequence[Sequence[tuple[int, int]]]


def read_spans(files: Sequence[tuple[str, Batches]], epochs: int) -> dict[str, float]:
    """Read every stretch of every file, `epochs` times over."""
    largest = max(sum(size for _, size in batch) for _, batches in files for batch in batches)
    memory = memoryview(mmap.mmap(-1, -(-largest // mmap.PAGESIZE) * mmap.PAGESIZE))
    return timed(partial(_read_once, files, memory), epochs)


def _read_once(files: Sequence[tuple[str, Batches]], memory: memoryview) -> int:
    total = 0
    for path, batches in files:
        descriptor = os.open(path, os.O_RDONLY)
        for batch in batches:
            at = 0
            for offset, size in batch:
                at += os.preadv(descriptor, [memory[at : at + size]], offset)
            total += at
        os.close(descriptor)
    return total


if __name__ == "__main__":
    with open(sys.argv[2], encoding="utf-8") as lines:
        print(json.dumps(read_spans(json.load(lines), int(sys.argv[1]))))

"""The plain reader of columns: `plain_spans EPOCHS PLACES SPANS` preadvs stretches of files and tells what it took.

SPANS is a file, a list of [path, [[[offset, bytes], ...] of a batch, ...]] as JSON. A batch is read to the next of
PLACES places of memory, its stretches one behind the other; after the last place comes the first.

Prints one JSON object: bytes, wall_seconds and cpu_seconds of the reading alone.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks.plain_read import timed

Batches = Sequence[Sequence[tuple[int, int]]]


def read_spans(files: Sequence[tuple[str, Batches]], epochs: int, places: int) -> dict[str, float]:
    """Read every stretch of every file, `epochs` times over."""
    largest = max(sum(size for _, size in batch) for _, batches in files for batch in batches)
    largest = -(-largest // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = memoryview(mmap.mmap(-1, places * largest))
    memory[:: mmap.PAGESIZE] = bytes(len(memory) // mmap.PAGESIZE)  # takes its pages
    in_turn = itertools.cycle([memory[begin : begin + largest] for begin in range(0, len(memory), largest)])
    return timed(partial(_read_once, files, in_turn), epochs)


def _read_once(files: Sequence[tuple[str, Batches]], places: Iterator[memoryview]) -> int:
    total = 0
    for path, batches in files:
        descriptor = os.open(path, os.O_RDONLY)
        for batch, place in zip(batches, places, strict=False):
            at = 0
            for offset, size in batch:
                at += os.preadv(descriptor, [place[at : at + size]], offset)
            total += at
        os.close(descriptor)
    return total


if __name__ == "__main__":
    with open(sys.argv[3], encoding="utf-8") as lines:
        print(json.dumps(read_spans(json.load(lines), int(sys.argv[1]), int(sys.argv[2]))))

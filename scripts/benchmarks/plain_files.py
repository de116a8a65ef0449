"""The plain programs that only read or write files: `plain_files HOW WORD...`, which prints what that took, as JSON.

`read EPOCHS PLACES TRANSFER FROM FILE...` preadvs files, each to the next of PLACES places of memory; after the last
comes the first. A call asks for TRANSFER bytes, 0: for the whole file. FROM is `cache`; `direct`: past it (O_DIRECT);
or `evicted`: each time through begins with dropping the files from it (posix_fadvise), which counts.

`spans EPOCHS PLACES SPANS` preadvs stretches of files. SPANS is a file, a list of [path, [[[offset, bytes], ...] of a
batch, ...]] as JSON. A batch is read to the next of PLACES places, its stretches one behind the other.

`write FOLDER THREADS FSYNC SIZE...` writes files of these sizes from a ready buffer, each under a temporary name and
renamed, as a dataset's files are; FSYNC is 0 or 1.

`random FOLDER SIZE...` draws floats, casts them to bytes and saves them by np.savez, as slow generators do.

Each counts the work alone: readers go through everything once before.
"""

from __future__ import annotations

import itertools
import json
import math
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

CHUNK_BYTES = 1 << 20
"""Written at a time: the buffer stays in a core's cache, which is the fastest a writer can be."""
Batches = Sequence[Sequence[tuple[int, int]]]


def read(paths: Sequence[str], epochs: int, places: int, transfer: int, source: str) -> dict[str, float]:
    """Read every file whole, `epochs` times over."""
    largest = max(os.path.getsize(path) for path in paths)
    in_turn = _places(places, largest, huge=source == "direct")
    flags = os.O_DIRECT if source == "direct" else 0
    return _timed(partial(_read_once, paths, in_turn, transfer or largest, flags, evict=source == "evicted"), epochs)


def spans(files: Sequence[tuple[str, Batches]], epochs: int, places: int) -> dict[str, float]:
    """Read every stretch of every file, `epochs` times over."""
    largest = max(sum(size for _, size in batch) for _, batches in files for batch in batches)
    return _timed(partial(_spans_once, files, _places(places, largest, huge=False)), epochs)


def _places(count: int, largest: int, *, huge: bool) -> Iterator[memoryview]:
    """Yield places of memory in turn, all of whose pages are there.

    In huge pages, as NumPy asks for them for its arrays and dlemu for its buffers, a direct request is one piece of
    memory, not 64, and a virtual drive twice as fast. Shared memory, mmap's default, never lies in them.
    """
    size = -(-largest // mmap.PAGESIZE) * mmap.PAGESIZE
    mapped = mmap.mmap(-1, count * size, flags=(mmap.MAP_PRIVATE if huge else mmap.MAP_SHARED) | mmap.MAP_ANONYMOUS)
    if huge:
        mapped.madvise(mmap.MADV_HUGEPAGE)
    memory = memoryview(mapped)
    memory[:: mmap.PAGESIZE] = bytes(len(memory) // mmap.PAGESIZE)
    return itertools.cycle([memory[begin : begin + size] for begin in range(0, len(memory), size)])


def _timed(read_once: Callable[[], int], epochs: int) -> dict[str, float]:
    read_once()
    total, started, cpu_before = 0, time.monotonic(), time.process_time()
    for _ in range(epochs):
        total += read_once()
    cpu_seconds = time.process_time() - cpu_before
    return {"bytes": total, "wall_seconds": time.monotonic() - started, "cpu_seconds": cpu_seconds}


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


def _spans_once(files: Sequence[tuple[str, Batches]], places: Iterator[memoryview]) -> int:
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


def write(folder: str, threads: int, fsync: bool, sizes: Sequence[int]) -> dict[str, float]:
    """Write the files, `threads` at a time."""
    buffer = memoryview(os.urandom(CHUNK_BYTES))
    started = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        paths = (os.path.join(folder, f"plain_{number}") for number in range(len(sizes)))
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


def random(folder: str, sizes: Sequence[int]) -> dict[str, float]:
    """Write one sample of about each size."""
    started, total = time.monotonic(), 0
    for number, size in enumerate(sizes):
        path, side = os.path.join(folder, f"random_{number}.npz"), math.isqrt(size)
        drawn = np.random.default_rng(number).random((side, side, 1), dtype=np.float32)
        np.savez(path, x=(drawn * 255).astype(np.uint8), y=[0])
        total += os.path.getsize(path)
    return {"bytes": total, "wall_seconds": time.monotonic() - started}


def main(how: str, *words: str) -> dict[str, float]:
    """Do what the words say."""
    if how == "read":
        return read(words[4:], *map(int, words[:3]), words[3])
    if how == "spans":
        with open(words[2], encoding="utf-8") as lines:
            return spans(json.load(lines), int(words[0]), int(words[1]))
    if how == "write":
        return write(words[0], int(words[1]), words[2] == "1", [int(size) for size in words[3:]])
    return random(words[0], [int(size) for size in words[1:]])


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))

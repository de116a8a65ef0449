"""Plain programs that only read or write files: `plain_files MODE ARGUMENT...`; each prints bytes and times, as JSON.

`read EPOCHS BUFFERS TRANSFER SOURCE FILE...` reads files by preadv, each into the next of BUFFERS buffers, in a cycle.
A call asks for TRANSFER bytes; 0 is the whole file. SOURCE is `cache`; `direct`, past the page cache (O_DIRECT); or
`evicted`, for which each epoch begins with dropping the files from the page cache (posix_fadvise), which is timed.

`spans EPOCHS BUFFERS SPANS` reads spans of files by preadv. SPANS is a JSON file, a list of
[path, [[[offset, bytes], ...] of a batch, ...]]. The spans of a batch go into the next of BUFFERS buffers.

`write FOLDER THREADS FSYNC SIZE...` writes files of these sizes from a ready buffer, each under a temporary name, and
renames them, as datagen does; FSYNC is 0 or 1.

`random FOLDER SIZE...` draws random floats, casts them to bytes and saves them by np.savez, as slow generators do.

Times are of the work alone: readers read everything once before the clock starts.
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
"""Bytes of a write call: the buffer fits into a core's cache, which makes writing fastest."""
Batches = Sequence[Sequence[tuple[int, int]]]


def read(paths: Sequence[str], epochs: int, count: int, transfer: int, source: str) -> dict[str, float]:
    """Read every file, `epochs` times, into `count` buffers."""
    largest = max(os.path.getsize(path) for path in paths)
    buffers = _buffers(count, largest, huge=source == "direct")
    flags = os.O_DIRECT if source == "direct" else 0
    return _timed(partial(_read_once, paths, buffers, transfer or largest, flags, evict=source == "evicted"), epochs)


def spans(files: Sequence[tuple[str, Batches]], epochs: int, count: int) -> dict[str, float]:
    """Read every span of every file, `epochs` times, into `count` buffers."""
    largest = max(sum(size for _, size in batch) for _, batches in files for batch in batches)
    return _timed(partial(_spans_once, files, _buffers(count, largest, huge=False)), epochs)


def _buffers(count: int, size_bytes: int, *, huge: bool) -> Iterator[memoryview]:
    """Yield buffers in a cycle, whose pages are all allocated.

    In huge pages, which NumPy requests for its arrays and dlemu for its buffers, a direct request has one segment of
    memory instead of 64, and a virtual drive is twice as fast. Shared memory, mmap's default, is never in huge pages.
    """
    size = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
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


def _read_once(paths: Sequence[str], buffers: Iterator[memoryview], transfer: int, flags: int, *, evict: bool) -> int:
    total = 0
    for path in paths if evict else ():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    for path, buffer in zip(paths, buffers, strict=False):
        descriptor = os.open(path, os.O_RDONLY | flags)
        size, offset = os.fstat(descriptor).st_size, 0
        while offset < size:
            offset += os.preadv(descriptor, [buffer[offset : offset + transfer]], offset)
        os.close(descriptor)
        total += offset
    return total


def _spans_once(files: Sequence[tuple[str, Batches]], buffers: Iterator[memoryview]) -> int:
    total = 0
    for path, batches in files:
        descriptor = os.open(path, os.O_RDONLY)
        for batch, buffer in zip(batches, buffers, strict=False):
            filled = 0
            for offset, size in batch:
                filled += os.preadv(descriptor, [buffer[filled : filled + size]], offset)
            total += filled
        os.close(descriptor)
    return total


def write(folder: str, threads: int, fsync: bool, sizes: Sequence[int]) -> dict[str, float]:
    """Write files of these sizes, `threads` at a time."""
    buffer = memoryview(os.urandom(CHUNK_BYTES))
    started = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        paths = (os.path.join(folder, f"plain_{number}") for number in range(len(sizes)))
        list(pool.map(lambda path, size: _write_file(path, size, buffer, fsync), paths, sizes))
    return {"bytes": sum(sizes), "wall_seconds": time.monotonic() - started}


def _write_file(path: str, size_bytes: int, buffer: memoryview, fsync: bool) -> None:
    descriptor = os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    remaining = size_bytes
    while remaining:
        remaining -= os.write(descriptor, buffer[:remaining])
    if fsync:
        os.fsync(descriptor)
    os.close(descriptor)
    os.rename(path + ".part", path)


def random(folder: str, sizes: Sequence[int]) -> dict[str, float]:
    """Write one random sample of about each size."""
    started, total = time.monotonic(), 0
    for number, size in enumerate(sizes):
        path, side = os.path.join(folder, f"random_{number}.npz"), math.isqrt(size)
        floats = np.random.default_rng(number).random((side, side, 1), dtype=np.float32)
        np.savez(path, x=(floats * 255).astype(np.uint8), y=[0])
        total += os.path.getsize(path)
    return {"bytes": total, "wall_seconds": time.monotonic() - started}


def main(mode: str, *args: str) -> dict[str, float]:
    """Run the program of this mode."""
    if mode == "read":
        return read(args[4:], *map(int, args[:3]), args[3])
    if mode == "spans":
        with open(args[2], encoding="utf-8") as lines:
            return spans(json.load(lines), int(args[0]), int(args[1]))
    if mode == "write":
        return write(args[0], int(args[1]), args[2] == "1", [int(size) for size in args[3:]])
    return random(args[0], [int(size) for size in args[1:]])


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))

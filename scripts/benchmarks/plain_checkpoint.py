"""`plain_checkpoint write|read FOLDER DIRECT THREADS PIECE SIZE...`: the plain program, a process for each rank.

For each SIZE,SIZE,... one writes (with fsync) or reads files of these sizes, one after another, each by THREADS
threads, PIECE bytes a call from (or to) memory that is ready. DIRECT is 1 for O_DIRECT. All begin together.

Prints one JSON object: bytes, wall_seconds from the first begin to the last end, cpu_seconds.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

_ALIGNMENT = 4096


def move_files(
    verb: str, folder: str, sizes: Sequence[Sequence[int]], *, direct: bool, threads: int, piece_bytes: int
) -> dict[str, float]:
    """Move the files of every process."""
    context = get_context("fork")
    barrier = context.Barrier(len(sizes))
    processes: list[tuple[Any, Connection]] = []
    for rank, own in enumerate(sizes):
        ours, theirs = context.Pipe()
        words = (verb, folder, rank, own, direct, threads, piece_bytes, barrier, theirs)
        process = context.Process(target=_rank, args=words)
        process.start()
        processes.append((process, ours))
    ended = [ours.recv() for _, ours in processes]
    for process, _ in processes:
        process.join()
    return {
        "bytes": sum(map(sum, sizes)),
        "wall_seconds": max(end for _, end, _ in ended) - min(begin for begin, _, _ in ended),
        "cpu_seconds": sum(cpu for _, _, cpu in ended),
    }


def _rank(
    verb: str,
    folder: str,
    rank: int,
    sizes: Sequence[int],
    direct: bool,
    threads: int,
    piece_bytes: int,
    barrier: Any,
    line: Connection,
) -> None:
    memory = memoryview(mmap.mmap(-1, threads * piece_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    memory[:] = os.urandom(len(memory))
    places = [memory[start : start + piece_bytes] for start in range(0, len(memory), piece_bytes)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(time.sleep, [0.0] * threads))
        barrier.wait()
        cpu, began = time.process_time(), time.monotonic()
        for number, size in enumerate(sizes):
            path = os.path.join(folder, f"plain_{rank}_{number}")
            flags = (os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if verb == "write" else os.O_RDONLY
            descriptor = os.open(path, flags | (os.O_DIRECT if direct else 0), 0o666)
            list(pool.map(_move, [verb] * threads, [descriptor] * threads, [size] * threads, range(threads), places))
            if verb == "write":
                os.ftruncate(descriptor, size)
                os.fsync(descriptor)
            os.close(descriptor)
        line.send((began, time.monotonic(), time.process_time() - cpu))


def _move(verb: str, descriptor: int, size: int, thread: int, place: memoryview) -> None:
    """Move every so manieth piece of a file; whole blocks, as O_DIRECT wants them."""
    step = len(place) * max(1, _threads_of(place))
    for offset in range(thread * len(place), size, step):
        whole = min(len(place), -(-(size - offset) // _ALIGNMENT) * _ALIGNMENT)
        if verb == "write":
            os.pwrite(descriptor, place[:whole], offset)
        else:
            os.preadv(descriptor, [place[:whole]], offset)


def _threads_of(place: memoryview) -> int:
    memory = place.obj
    assert isinstance(memory, mmap.mmap)  # `_rank` made it
    return len(memory) // len(place)


if __name__ == "__main__":
    verb, folder, direct, threads, piece, *processes = sys.argv[1:]
    sizes = [[int(size) for size in own.split(",")] for own in processes]
    moved = move_files(verb, folder, sizes, direct=direct == "1", threads=int(threads), piece_bytes=int(piece))
    print(json.dumps(moved))

"""`plain_checkpoint FOLDER DIRECT CHECKPOINTS READERS PIECE SIZE...`: the plain program, a process for each rank.

For each SIZE,SIZE,... one writes files of these sizes, one after another, as CHECKPOINTS checkpoints; drops them from
the page cache; and reads them back. Writing is one thread with memory that is ready, PIECE bytes a call, then fsync, a
rename, and fsync of the folder; reading is READERS threads, PIECE bytes a call. DIRECT is 1 for O_DIRECT, which takes
whole blocks: the bytes behind a file's last one are written through the page cache. All begin each checkpoint together.
Memory is as aligned, as large and in as large pages as that of `dlemu checkpoint`.

Prints one JSON object: of `write` and of `read` bytes, wall_seconds from the first begin to the last end of each
checkpoint, added up, and cpu_seconds.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from datagen.buffers import AlignedBuffer

_ALIGNMENT = 4096
_RING = 4
"""Ready buffers that are written in turn: as many as make content ahead in dlemu."""


@dataclass(frozen=True)
class Transfer:
    """What every process does."""

    folder: str
    direct: bool
    checkpoints: int
    readers: int
    piece_bytes: int


def move_files(transfer: Transfer, sizes: Sequence[Sequence[int]]) -> dict[str, dict[str, float]]:
    """Write and read the files of every process."""
    context = get_context("fork")
    barrier = context.Barrier(len(sizes))
    processes: list[tuple[Any, Connection]] = []
    for rank, own in enumerate(sizes):
        ours, theirs = context.Pipe()
        process = context.Process(target=_rank, args=(transfer, rank, own, barrier, theirs))
        process.start()
        processes.append((process, ours))
    ended: list[dict[str, list[tuple[float, float, float]]]] = [ours.recv() for _, ours in processes]
    for process, _ in processes:
        process.join()
    return {
        phase: {
            "bytes": transfer.checkpoints * sum(map(sum, sizes)),
            "wall_seconds": sum(
                max(end for _, end, _ in together) - min(begin for begin, _, _ in together)
                for together in zip(*(own[phase] for own in ended), strict=True)
            ),
            "cpu_seconds": sum(cpu for own in ended for _, _, cpu in own[phase]),
        }
        for phase in ("write", "read")
    }


def _rank(transfer: Transfer, rank: int, sizes: Sequence[int], barrier: Any, line: Connection) -> None:
    places = _places(_RING, transfer.piece_bytes)
    for place in places:
        place[:] = os.urandom(len(place))

    def timed(move: Callable[[int], None], checkpoint: int) -> tuple[float, float, float]:
        barrier.wait()
        cpu, began = time.process_time(), time.monotonic()
        move(checkpoint)
        return began, time.monotonic(), time.process_time() - cpu

    def write(checkpoint: int) -> None:
        for number, size in enumerate(sizes):
            _write(_path(transfer, checkpoint, rank, number), size, places, direct=transfer.direct)
        _fsync(os.path.join(transfer.folder, str(checkpoint)), os.O_DIRECTORY)

    checkpoints = range(transfer.checkpoints)
    written = [timed(write, checkpoint) for checkpoint in checkpoints]
    for checkpoint in checkpoints:
        for number in range(len(sizes)):
            descriptor = os.open(_path(transfer, checkpoint, rank, number), os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
    lanes = _places(transfer.readers, transfer.piece_bytes)
    with ThreadPoolExecutor(transfer.readers) as pool:
        list(pool.map(time.sleep, [0.0] * transfer.readers))

        def read(checkpoint: int) -> None:
            for number, size in enumerate(sizes):
                _read(pool, _path(transfer, checkpoint, rank, number), size, lanes, direct=transfer.direct)

        line.send({"write": written, "read": [timed(read, checkpoint) for checkpoint in checkpoints]})


def _places(count: int, piece_bytes: int) -> list[memoryview]:
    memory = AlignedBuffer(count * piece_bytes)
    memory.take_pages()
    view = memory.view(count * piece_bytes)
    return [view[start : start + piece_bytes] for start in range(0, len(view), piece_bytes)]


def _path(transfer: Transfer, checkpoint: int, rank: int, number: int) -> str:
    return os.path.join(transfer.folder, str(checkpoint), f"plain_{rank}_{number}")


def _write(path: str, size: int, places: Sequence[memoryview], *, direct: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | (os.O_DIRECT if direct else 0)
    descriptor = os.open(path + ".part", flags, 0o666)
    whole = size - size % _ALIGNMENT if direct else size
    for turn, offset in enumerate(range(0, whole, len(places[0]))):
        place = places[turn % len(places)]
        os.pwrite(descriptor, place[: min(len(place), whole - offset)], offset)
    if whole < size:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_WRONLY)
        os.pwrite(descriptor, places[0][: size - whole], whole)
    os.fsync(descriptor)
    os.close(descriptor)
    os.rename(path + ".part", path)


def _read(pool: ThreadPoolExecutor, path: str, size: int, lanes: Sequence[memoryview], *, direct: bool) -> None:
    descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    step = len(lanes) * len(lanes[0])

    def lane(number: int) -> None:
        place = lanes[number]
        for offset in range(number * len(place), size, step):
            os.preadv(descriptor, [place[: _whole(min(len(place), size - offset))]], offset)

    list(pool.map(lane, range(len(lanes))))
    os.close(descriptor)


def _whole(size: int) -> int:
    """Return whole blocks, as O_DIRECT wants them."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _fsync(path: str, flags: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | flags)
    os.fsync(descriptor)
    os.close(descriptor)


if __name__ == "__main__":
    folder, direct, checkpoints, readers, piece, *processes = sys.argv[1:]
    transfer = Transfer(folder, direct == "1", int(checkpoints), int(readers), int(piece))
    for checkpoint in range(transfer.checkpoints):
        os.makedirs(os.path.join(folder, str(checkpoint)))
    print(json.dumps(move_files(transfer, [[int(size) for size in own.split(",")] for own in processes])))

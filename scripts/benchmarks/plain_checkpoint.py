"""`plain_checkpoint FOLDER DIRECT CHECKPOINTS READERS TRANSFER SIZES...`: writes and reads checkpoints without dlemu.

For each SIZES (SIZE,SIZE,...), a process writes files of these sizes, one after another, as CHECKPOINTS checkpoints;
drops them from the page cache; and reads them back. One thread writes ready buffers, TRANSFER bytes a call, then calls
fsync, renames, and calls fsync on the folder. READERS threads read, TRANSFER bytes a call. With DIRECT = 1, files are
opened with O_DIRECT, except for the bytes after the last whole block. All processes begin each checkpoint together.
Buffers have the alignment, size and page size of those of `dlemu checkpoint`.

Prints one JSON object, with bytes, wall_seconds and cpu_seconds of `write` and of `read`. wall_seconds is the sum, over
checkpoints, of the time from the first process's start to the last one's end.
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
_WRITE_BUFFERS = 4
"""Ready buffers that are written in turn: as many as dlemu fills ahead."""


@dataclass(frozen=True)
class Transfer:
    """How all processes write and read."""

    folder: str
    direct: bool
    checkpoints: int
    readers: int
    transfer_bytes: int


def move_files(transfer: Transfer, sizes: Sequence[Sequence[int]]) -> dict[str, dict[str, float]]:
    """Write and read the files of all processes; return bytes and times of both phases."""
    context = get_context("fork")
    barrier = context.Barrier(len(sizes))
    processes: list[tuple[Any, Connection]] = []
    for rank, rank_sizes in enumerate(sizes):
        parent_end, child_end = context.Pipe()
        process = context.Process(target=_rank, args=(transfer, rank, rank_sizes, barrier, child_end))
        process.start()
        processes.append((process, parent_end))
    times: list[dict[str, list[tuple[float, float, float]]]] = [parent_end.recv() for _, parent_end in processes]
    for process, _ in processes:
        process.join()
    return {
        phase: {
            "bytes": transfer.checkpoints * sum(map(sum, sizes)),
            "wall_seconds": sum(
                max(end for _, end, _ in checkpoint) - min(begin for begin, _, _ in checkpoint)
                for checkpoint in zip(*(rank_times[phase] for rank_times in times), strict=True)
            ),
            "cpu_seconds": sum(cpu for rank_times in times for _, _, cpu in rank_times[phase]),
        }
        for phase in ("write", "read")
    }


def _rank(transfer: Transfer, rank: int, sizes: Sequence[int], barrier: Any, parent: Connection) -> None:
    write_buffers = _buffers(_WRITE_BUFFERS, transfer.transfer_bytes)
    for buffer in write_buffers:
        buffer[:] = os.urandom(len(buffer))

    def timed(move: Callable[[int], None], checkpoint: int) -> tuple[float, float, float]:
        barrier.wait()
        cpu, begin = time.process_time(), time.monotonic()
        move(checkpoint)
        return begin, time.monotonic(), time.process_time() - cpu

    def write(checkpoint: int) -> None:
        for number, size in enumerate(sizes):
            _write(_path(transfer, checkpoint, rank, number), size, write_buffers, direct=transfer.direct)
        _fsync(os.path.join(transfer.folder, str(checkpoint)), os.O_DIRECTORY)

    checkpoints = range(transfer.checkpoints)
    written = [timed(write, checkpoint) for checkpoint in checkpoints]
    for checkpoint in checkpoints:
        for number in range(len(sizes)):
            descriptor = os.open(_path(transfer, checkpoint, rank, number), os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
    read_buffers = _buffers(transfer.readers, transfer.transfer_bytes)
    with ThreadPoolExecutor(transfer.readers) as pool:
        list(pool.map(time.sleep, [0.0] * transfer.readers))  # starts all threads

        def read(checkpoint: int) -> None:
            for number, size in enumerate(sizes):
                _read(pool, _path(transfer, checkpoint, rank, number), size, read_buffers, direct=transfer.direct)

        parent.send({"write": written, "read": [timed(read, checkpoint) for checkpoint in checkpoints]})


def _buffers(count: int, size_bytes: int) -> list[memoryview]:
    memory = AlignedBuffer(count * size_bytes)
    memory.take_pages()
    view = memory.view(count * size_bytes)
    return [view[start : start + size_bytes] for start in range(0, len(view), size_bytes)]


def _path(transfer: Transfer, checkpoint: int, rank: int, number: int) -> str:
    return os.path.join(transfer.folder, str(checkpoint), f"plain_{rank}_{number}")


def _write(path: str, size: int, buffers: Sequence[memoryview], *, direct: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | (os.O_DIRECT if direct else 0)
    descriptor = os.open(path + ".part", flags, 0o666)
    aligned_size = size - size % _ALIGNMENT if direct else size
    for number, offset in enumerate(range(0, aligned_size, len(buffers[0]))):
        buffer = buffers[number % len(buffers)]
        os.pwrite(descriptor, buffer[: min(len(buffer), aligned_size - offset)], offset)
    if aligned_size < size:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_WRONLY)
        os.pwrite(descriptor, buffers[0][: size - aligned_size], aligned_size)
    os.fsync(descriptor)
    os.close(descriptor)
    os.rename(path + ".part", path)


def _read(pool: ThreadPoolExecutor, path: str, size: int, buffers: Sequence[memoryview], *, direct: bool) -> None:
    descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    stride = len(buffers) * len(buffers[0])

    def read_share(number: int) -> None:
        buffer = buffers[number]
        for offset in range(number * len(buffer), size, stride):
            os.preadv(descriptor, [buffer[: _whole_blocks(min(len(buffer), size - offset))]], offset)

    list(pool.map(read_share, range(len(buffers))))
    os.close(descriptor)


def _whole_blocks(size: int) -> int:
    """Return the size rounded up to whole blocks, for O_DIRECT."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _fsync(path: str, flags: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | flags)
    os.fsync(descriptor)
    os.close(descriptor)


if __name__ == "__main__":
    folder, direct, checkpoints, readers, transfer_bytes, *processes = sys.argv[1:]
    transfer = Transfer(folder, direct == "1", int(checkpoints), int(readers), int(transfer_bytes))
    for checkpoint in range(transfer.checkpoints):
        os.makedirs(os.path.join(folder, str(checkpoint)))
    print(json.dumps(move_files(transfer, [[int(size) for size in sizes.split(",")] for sizes in processes])))

"""O_DIRECT reads and writes at a constant queue depth where fio is not installed: a thread per request in flight."""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from datagen.errors import UserError
from dlemu.jobs.probe.result import CellSpec


@dataclass(frozen=True, eq=False)
class Requests:
    """The requests that one job completed, one array element per request."""

    end_ns: NDArray[np.int64]
    """Completion, by CLOCK_MONOTONIC."""
    latency_ns: NDArray[np.int64]
    cpu_seconds: float
    first_byte_ns: NDArray[np.int64] | None = None
    """Time from sending a GET request to the first byte of its response; None for requests of files."""
    failed: int = 0
    """Requests that failed and were retried."""


def open_target(path: str, *, writes: bool, flags: int = os.O_DIRECT) -> int:
    """Open a file to read or write; raises UserError. A file to write is not opened through a link: another user who
    may write into its folder could have linked it to somebody's file."""
    try:
        return os.open(path, flags | os.O_CLOEXEC | (os.O_WRONLY | os.O_NOFOLLOW if writes else os.O_RDONLY))
    except OSError as error:
        raise UserError(f"{path} can't be opened: {error.strerror}") from error


def run_threads(cell: CellSpec, path: str, part: range, seconds: float) -> Requests:
    """Keep `depth` requests in flight in a `part` of a file for `seconds`; raises UserError if one fails."""
    size_bytes, slots = cell.size_bytes, len(part) // cell.size_bytes
    descriptor = open_target(path, writes=cell.writes)
    cpu, lock = time.process_time(), threading.Lock()
    ends: list[int] = []
    latencies: list[int] = []
    failed: list[UserError] = []
    numbers = itertools.count()
    deadline = time.monotonic_ns() + round(seconds * 1e9)

    def work() -> None:
        random, buffer = np.random.default_rng(), mmap.mmap(-1, size_bytes)
        if cell.writes:
            buffer[:] = random.bytes(size_bytes)
        call = os.pwritev if cell.writes else os.preadv
        while not failed:
            with lock:
                number = next(numbers)
            slot = int(random.integers(slots)) if cell.random else number % slots
            started = time.monotonic_ns()
            try:
                done = call(descriptor, [buffer], part.start + slot * size_bytes)
            except OSError as error:
                failed.append(UserError(f"{path}: {error.strerror}"))
                return
            now = time.monotonic_ns()
            if done != size_bytes:
                failed.append(UserError(f"{path}: a call moved {done} of {size_bytes} bytes"))
            with lock:
                ends.append(now)
                latencies.append(now - started)
            if now >= deadline:
                return

    threads = [threading.Thread(target=work) for _ in range(cell.depth)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        os.close(descriptor)
    if failed:
        raise failed[0]
    return Requests(np.array(ends, np.int64), np.array(latencies, np.int64), time.process_time() - cpu)

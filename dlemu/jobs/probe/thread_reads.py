"""The fallback where the kernel's AIO is not available: one thread per request in flight, each with preadv."""

from __future__ import annotations

import mmap
import os
import threading
import time

import numpy as np

from datagen.errors import UserError
from dlemu.jobs.probe.kernel_aio import Requests, Stream, open_target


def run_threads(stream: Stream) -> Requests:
    """Do the same as `kernel_aio.run_stream`, by threads."""
    descriptor = open_target(stream.path, writes=stream.writes)
    cpu, lock = time.process_time(), threading.Lock()
    ends: list[int] = []
    latencies: list[int] = []
    failed: list[UserError] = []
    numbers = iter(range(1 << 62))
    slots = (stream.end - stream.begin) // stream.size_bytes
    deadline = time.monotonic_ns() + round(stream.seconds * 1e9)

    def work(thread: int) -> None:
        random, buffer = np.random.default_rng([stream.seed, thread]), mmap.mmap(-1, stream.size_bytes)
        if stream.writes:
            buffer[:] = random.bytes(stream.size_bytes)
        call = os.pwritev if stream.writes else os.preadv
        while not failed:
            with lock:
                number = next(numbers)
            slot = int(random.integers(slots)) if stream.random else number % slots
            started = time.monotonic_ns()
            try:
                done = call(descriptor, [buffer], stream.begin + slot * stream.size_bytes)
            except OSError as error:
                failed.append(UserError(f"{stream.path}: {error.strerror}"))
                return
            now = time.monotonic_ns()
            if done != stream.size_bytes:
                failed.append(UserError(f"{stream.path}: {done} of {stream.size_bytes} bytes"))
            with lock:
                ends.append(now)
                latencies.append(now - started)
            if now >= deadline:
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(stream.depth)]
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

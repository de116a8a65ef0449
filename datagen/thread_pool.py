"""A pool of threads over many files: progress, the first failure and Ctrl-C reach the caller's thread alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

PROGRESS_SECONDS = 0.25
"""How often progress is reported."""


@dataclass(frozen=True)
class Progress:
    """How far one rank is."""

    files: int
    """Done, those found made included."""
    bytes: int
    """Done, those found made included."""
    total_bytes: int
    """To do in all; estimated where the sizes of files are not known before."""
    total_files: int
    """To do in all."""
    seconds: float
    """Since the start."""


class StoppedError(Exception):
    """Raised inside a worker when another one failed or the caller was interrupted."""


class Tally:
    """What is done so far, and whether to go on; shared by the threads."""

    def __init__(self, total_files: int, total_bytes: int, *, exact: bool) -> None:
        """With `exact`, `total_bytes` is what the files will have; else what they hold before it is packed or spelt."""
        self.files = 0
        self.bytes = 0
        self._total_files, self._total_bytes, self._exact = total_files, total_bytes, exact
        self._started = time.monotonic()
        self.lock = threading.Lock()
        self._stopping = False

    def add(self, *, files: int = 0, size_bytes: int = 0) -> None:
        """Count work done; raises StoppedError when no more is wanted."""
        if self._stopping:
            raise StoppedError
        with self.lock:
            self.files += files
            self.bytes += size_bytes

    def stop(self) -> None:
        """Make every worker end at its next `add`."""
        self._stopping = True

    def progress(self) -> Progress:
        total_bytes = self._total_bytes
        if self.files and not self._exact:
            total_bytes = round(self.bytes / self.files * self._total_files)
        return Progress(self.files, self.bytes, total_bytes, self._total_files, time.monotonic() - self._started)


def run(
    make_worker: Callable[[], Callable[[int], None]],
    numbers: Iterable[int],
    tally: Tally,
    threads: int,
    progress: Callable[[Progress], None] | None,
) -> None:
    """Hand every number to one of `threads` workers, each made in its own thread; tell progress from this one.

    Raises what a worker raised first, after all have ended; KeyboardInterrupt and the like in the same way.
    """
    source = iter(numbers)
    lock = threading.Lock()

    def work() -> None:
        worker = make_worker()
        while True:
            with lock:
                number = next(source, None)
            if number is None:
                return
            worker(number)

    with ThreadPoolExecutor(threads, "datagen") as pool:
        futures = [pool.submit(work) for _ in range(threads)]
        pending = set(futures)
        try:
            while pending:
                done, pending = wait(pending, PROGRESS_SECONDS, FIRST_EXCEPTION)
                if any(future.exception() for future in done):
                    break
                if progress:
                    progress(tally.progress())
        finally:
            tally.stop()
    failures = [failure for future in futures if (failure := future.exception())]
    raise_first(failures)


def raise_first(failures: list[BaseException]) -> None:
    """Raise the failure that stopped the others, if there is one."""
    for failure in failures:
        if not isinstance(failure, StoppedError):
            raise failure

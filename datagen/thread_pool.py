"""A pool of threads for many files. The caller's thread receives progress reports, the first failure and Ctrl-C."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
Worker = Callable[[int], None]  # processes the file with this number
OnProgress = Callable[["Progress"], None]
PROGRESS_SECONDS = 0.25  # interval of progress reports


@dataclass(frozen=True)
class Progress:
    """Progress of one rank."""

    files: int  # files done, including those that already existed
    bytes: int  # bytes done, including files that already existed
    total_bytes: int  # bytes to do in all; an estimate if the sizes of files are not known in advance
    total_files: int  # files to do in all
    seconds: float  # time since the start


class StoppedError(Exception):
    """Raised in a worker when another one failed or the caller was interrupted."""


@dataclass
class Tally:
    """Counts the work done, and tells threads to stop; shared by all threads."""

    total_files: int
    total_bytes: int  # of all files; an estimate from the mean sample size unless `exact`
    exact: bool = field(kw_only=True)
    files: int = 0
    bytes: int = 0
    stopping: bool = False  # once set, every worker stops at its next `add`
    lock: threading.Lock = field(default_factory=threading.Lock)
    started: float = field(default_factory=time.monotonic)

    def add(self, size_bytes: int = 0, *, files: int = 0) -> None:
        """Count work done. Raises StoppedError once `stopping` is set."""
        if self.stopping:
            raise StoppedError
        with self.lock:
            self.files += files
            self.bytes += size_bytes

    def progress(self) -> Progress:
        total_bytes = self.total_bytes
        if self.files and not self.exact:
            total_bytes = round(self.bytes / self.files * self.total_files)
        return Progress(self.files, self.bytes, total_bytes, self.total_files, time.monotonic() - self.started)


def run(
    make_worker: Callable[[], Worker], numbers: Iterable[int], tally: Tally, threads: int, progress: OnProgress | None
) -> None:
    """Call one of `threads` workers with each of the numbers; `make_worker` is called in the thread of each worker.

    `progress` is called in the caller's thread. Raises the first exception or KeyboardInterrupt once all have stopped.
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
            tally.stopping = True
    for future in futures:  # a worker that another's failure stopped has raised StoppedError
        failure = future.exception()
        if failure is not None and not isinstance(failure, StoppedError):
            raise failure
    if progress:
        progress(tally.progress())


def map_in_threads(function: Callable[[int], T], numbers: Sequence[int]) -> list[T]:
    """Return the function's result for each number, in order; 16 threads save minutes for a million small requests."""
    results: dict[int, T] = {}
    tally = Tally(len(numbers), 0, exact=True)

    def work(number: int) -> None:
        tally.add(files=1)
        results[number] = function(number)

    run(lambda: work, numbers, tally, max(1, min(16, len(numbers))), None)
    return [results[number] for number in numbers]

"""A short read of the dataset's own files, by the readers that training uses, with nothing else going on."""

from __future__ import annotations

import random
import threading
import time

from datagen.buffers import AlignedBuffer
from datagen.fetch import Fetcher
from datagen.fetch_spec import FetchSpec

PROBE_SECONDS = 3.0
PROBE_THREADS = 16


def read_mb_per_second(spec: FetchSpec, *, seconds: float = PROBE_SECONDS, threads: int = PROBE_THREADS) -> float:
    """Return MB/s (1e6 bytes) of `threads` threads that read files in random order, for some seconds.

    No file is read twice: the page cache would serve it.
    """
    probe = _Probe(spec, seconds)
    crew = [threading.Thread(target=probe.read, daemon=True) for _ in range(threads)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    if probe.errors:
        raise probe.errors[0]
    return probe.mb_per_second


class _Probe:
    def __init__(self, spec: FetchSpec, seconds: float) -> None:
        self._spec = spec
        self._started = time.monotonic()
        self._deadline = self._started + seconds
        self._files = list(range(spec.layout.num_files))
        random.Random(0).shuffle(self._files)
        self._lock = threading.Lock()
        self._bytes, self._ended = 0, self._started
        self.errors: list[BaseException] = []

    def read(self) -> None:
        try:
            self._read()
        except BaseException as error:  # carried to the caller's thread
            self.errors.append(error)

    def _next(self) -> int | None:
        with self._lock:
            return self._files.pop() if self._files and time.monotonic() < self._deadline else None

    def _read(self) -> None:
        samples = self._spec.layout.num_samples_per_file
        batch = min(samples, 64)
        room = self._spec.slot_bytes(batch)
        buffer = AlignedBuffer(room)
        fetcher = Fetcher(self._spec)
        while (file := self._next()) is not None:
            fetched = fetcher.fetch(range(file * samples, file * samples + batch), buffer.view(room))
            with self._lock:
                self._bytes += fetched.app_bytes
                self._ended = max(self._ended, time.monotonic())
        fetcher.close()

    @property
    def mb_per_second(self) -> float:
        return self._bytes / 1e6 / max(self._ended - self._started, 1e-9)

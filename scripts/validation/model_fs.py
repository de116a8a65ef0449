"""A file system of known latency and parallelism.

    python -m validation.model_fs SOURCE MOUNT LATENCY_SECONDS CHANNELS [steady|uniform|pareto|lognormal [SLOW_FOLDER]]

It shows the files of SOURCE, read-only. Each read occupies one of CHANNELS for LATENCY_SECONDS, so N readers that send
one request at a time get min(N, CHANNELS) / LATENCY_SECONDS reads/s. With jitter, latencies are random: uniform from 0
to twice the latency, with the same mean; pareto with a heavy tail (index 1.5), cut at 25 times the latency, with a mean
of 0.92 times the latency; lognormal (sigma 1.2) with the same mean.
Reads of a folder called SLOW_FOLDER take SLOW_TIMES as long. The program runs until it is unmounted.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import mfusepy

from validation.latency_draws import SLOW_TIMES, draw

_STAT_FIELDS = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_atime", "st_mtime", "st_ctime")


class LatencyModel(mfusepy.Operations):  # type: ignore[misc]  # mfusepy has no types in every version
    """The file system calls of a reader."""

    use_ns = False

    def __init__(
        self, source: str, latency_seconds: float, channels: int, jitter: str = "steady", slow_folder: str = ""
    ) -> None:
        self._source, self._latency_seconds, self._jitter = source, latency_seconds, jitter
        self._slow = f"/{slow_folder}/" if slow_folder else None
        self._channels = threading.BoundedSemaphore(channels)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        status = os.lstat(self._real(path))
        return {field: getattr(status, field) for field in _STAT_FIELDS}

    def readdir(self, path: str, fh: int) -> Iterable[str]:
        return [".", "..", *os.listdir(self._real(path))]

    def open(self, path: str, flags: int) -> int:
        return os.open(self._real(path), os.O_RDONLY)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        with self._channels:
            start, latency_seconds = time.monotonic(), self._latency_seconds * draw(self._jitter)
            latency_seconds *= SLOW_TIMES if self._slow and self._slow in path else 1.0
            data = os.pread(fh, size, offset)
            time.sleep(max(0.0, latency_seconds - (time.monotonic() - start)))
        return data

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def _real(self, path: str) -> str:
        return os.path.join(self._source, path.lstrip("/"))


def main() -> None:
    """Mount and serve."""
    source, mount, latency_seconds, channels, *jitter_and_slow_folder = sys.argv[1:]
    model = LatencyModel(source, float(latency_seconds), int(channels), *jitter_and_slow_folder)
    mfusepy.FUSE(model, mount, foreground=True, ro=True, fsname="dlemu-model")


if __name__ == "__main__":
    main()

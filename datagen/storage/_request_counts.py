"""Counters and latency histograms of a process's requests to an object store, which other processes can read live.

With `StorageSpec.account`, each process keeps them in a memory-mapped file in that folder. Counting then costs one
store to memory, and the counts outlive the process.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import platform
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from datagen.errors import UserError
from datagen.quantiles import Percentiles
from datagen.regular import open_descriptor, read_regular

METHODS = ("get", "head", "list", "put", "delete")  # requests by method
_TRAFFIC = ("received_bytes", "sent_bytes", "failed", "retried", "slow_down")  # `slow_down`: statuses 503 and 429
_GAUGES = ("connections_open", "in_flight")
COUNTERS = (*METHODS, *_TRAFFIC, "connections_opened", *_GAUGES)
INDEX = {name: number for number, name in enumerate(COUNTERS)}  # in the array of counts; two histograms follow
_IN_FLIGHT, _RECEIVED_BYTES = INDEX["in_flight"], INDEX["received_bytes"]
LOWEST_US = 10.0  # upper edge of the first bin of a histogram; that of the last is ten hours
GROWTH, FINE = 1.09, 4  # upper edges grow by the factor `GROWTH` over `FINE` bins, so by 2.2 % per bin
BINS = 256 * FINE  # of each histogram
_EDGES_NS = tuple(int(1000 * LOWEST_US * GROWTH ** (number / FINE)) for number in range(BINS - 1))  # upper edges
_SIZE = len(COUNTERS) + 2 * BINS  # of the array of counts
SUFFIX = ".requests"  # of the files of counts


class RequestCounts:
    """Counts of one process, shared by its threads without a lock: simultaneous increments may lose one."""

    def __init__(self, values: NDArray[np.int64] | None = None) -> None:
        self.values = np.zeros(_SIZE, np.int64) if values is None else values
        if len(self.values) != _SIZE:
            raise UserError(f"{len(self.values)} counters of requests, wanted {_SIZE}: the result is damaged")
        self._cells = self.values.data  # the same memory; incremented several times as fast

    @classmethod
    def in_folder(cls, folder: str) -> RequestCounts:
        """Return new counts in a file of the folder, or in this process alone if the folder can't be written."""
        if not folder:
            return cls()
        path = os.path.join(folder, f"{platform.node()}-{os.getpid()}{SUFFIX}")
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
            with open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW) as descriptor:
                os.ftruncate(descriptor, 8 * _SIZE)
                memory = mmap.mmap(descriptor, 8 * _SIZE)
        except OSError:
            return cls()
        return cls(np.frombuffer(memory, np.int64))

    def add(self, counter: str, amount: int = 1) -> None:
        self._cells[INDEX[counter]] += amount

    def count_request(self, method: str) -> None:
        """Count the start of a request."""
        self._cells[INDEX[method]] += 1
        self._cells[_IN_FLIGHT] += 1

    def count_end(self, received_bytes: int) -> None:
        """Count the end of a request, and the bytes of the response body."""
        self._cells[_IN_FLIGHT] -= 1
        self._cells[_RECEIVED_BYTES] += received_bytes

    def add_latencies(self, first_byte_ns: int, last_byte_ns: int) -> None:
        """Record a GET's latencies: from its start to the first and to the last byte of the response."""
        self._cells[len(COUNTERS) + bisect_left(_EDGES_NS, first_byte_ns)] += 1
        self._cells[len(COUNTERS) + BINS + bisect_left(_EDGES_NS, last_byte_ns)] += 1

    def __getitem__(self, counter: str) -> int:
        return int(self.values[INDEX[counter]])

    @property
    def requests(self) -> int:
        """All requests sent, including retries."""
        return sum(self[name] for name in METHODS)

    @property
    def first_byte(self) -> NDArray[np.int64]:
        """Histogram of the GETs' time to first byte."""
        return self.values[len(COUNTERS) : len(COUNTERS) + BINS]

    @property
    def last_byte(self) -> NDArray[np.int64]:
        """Histogram of the GETs' time to last byte."""
        return self.values[len(COUNTERS) + BINS :]


def read_counts(folder: str) -> RequestCounts:
    """Return the sum of the counts of all processes in a folder; zeros if there are none."""
    total = RequestCounts()
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            if name.endswith(SUFFIX):
                with contextlib.suppress(OSError, ValueError):  # no regular file, or none of this size
                    total.values += np.frombuffer(read_regular(os.path.join(folder, name), 8 * _SIZE), np.int64, _SIZE)
    return total


def remove_counts(folder: str) -> None:
    """Remove the count files in a run's folder, and the folder if nothing else is in it."""
    with contextlib.suppress(OSError):
        if not os.path.islink(folder):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if name.endswith(SUFFIX) and os.path.isfile(path) and not os.path.islink(path):
                    os.unlink(path)
            os.rmdir(folder)


def waits_ms(histogram: NDArray[np.int64]) -> Percentiles | None:
    """Return the latency percentiles of a histogram, in ms (the upper edges of bins); None if it is empty."""
    total = int(histogram.sum())
    if not total:
        return None
    cumulative = histogram.cumsum()
    bins = (int(np.searchsorted(cumulative, share * total)) for share in (0.5, 0.9, 0.99, 1))
    p50, p90, p99, maximum = (LOWEST_US * math.pow(GROWTH, number / FINE) / 1000 for number in bins)
    return Percentiles(p50=p50, p90=p90, p99=p99, max=maximum)

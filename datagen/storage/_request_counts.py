"""What the requests of a process to an object store came to, in memory that others may watch.

A process that is asked to (`StorageSpec.account`) keeps its counts in a file of that folder, mapped into its memory:
counting is a store, and what it counted outlives it.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import platform
from bisect import bisect_left
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from datagen.quantiles import Percentiles

COUNTERS = (
    "get",
    "head",
    "list",
    "put",
    "delete",
    "received_bytes",
    "sent_bytes",
    "failed",
    "retried",
    "slow_down",
    "connections_opened",
    "connections_open",
    "in_flight",
)
"""Requests by kind, bytes of bodies, answers that were no success, those asked again, answers 503 and 429."""
FINE = 4
"""Bins where results of older versions have one."""
BINS = 256 * FINE
TLS_CPU_US = "tls_cpu_us"
"""CPU time of TLS, in microseconds."""
INDEX = {name: number for number, name in enumerate(COUNTERS)} | {TLS_CPU_US: len(COUNTERS) + 2 * BINS}
"""Counters by their places; the last lies behind the histograms, for results of older versions have it not."""
_IN_FLIGHT, _RECEIVED_BYTES = INDEX["in_flight"], INDEX["received_bytes"]
LOWEST_US, GROWTH = 10.0, 1.09
"""`FINE` bins are 9 % wide, one 2.2 %, so that a 90th percentile is told from a 50th; to ten hours."""
SUFFIX = ".requests"
_EDGES_NS = tuple(int(1000 * LOWEST_US * GROWTH ** (number / FINE)) for number in range(BINS - 1))
"""Upper ends of the bins, in whole nanoseconds as what is counted."""
_SIZE = len(COUNTERS) + 2 * BINS + 1
_COARSE = len(COUNTERS) + 2 * BINS // FINE
"""Numbers of an older version's counts, one fewer where it knew no CPU time of TLS."""


class RequestCounts:
    """Counts of one process. Threads share it; a count that two threads raise at once may miss one."""

    def __init__(self, values: NDArray[np.int64] | None = None) -> None:
        if values is None:
            values = np.zeros(_SIZE, np.int64)
        self.values = values if len(values) == _SIZE else _refined(values)
        self._cells = self.values.data
        """The same memory: to raise one number of an array takes several times as long."""
        self.on_answer: Callable[[int, int], None] | None = None
        """Is told of each answer what `answered` is."""

    @classmethod
    def kept_in(cls, folder: str) -> RequestCounts:
        """Return counts in a file of the folder, which others can read; in memory where it can't be written."""
        if not folder:
            return cls()
        path = os.path.join(folder, f"{_host()}{os.getpid()}{SUFFIX}")
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                os.ftruncate(descriptor, 8 * _SIZE)
                memory = mmap.mmap(descriptor, 8 * _SIZE)
            finally:
                os.close(descriptor)
        except OSError:
            return cls()
        return cls(np.frombuffer(memory, np.int64))

    def add(self, counter: str, amount: int = 1) -> None:
        """Raise a counter."""
        self._cells[INDEX[counter]] += amount

    def sent(self, kind: str) -> None:
        """Count a request."""
        self._cells[INDEX[kind]] += 1
        self._cells[_IN_FLIGHT] += 1

    def ended(self, received_bytes: int) -> None:
        """Count what came of a request's answer, and that no more will."""
        self._cells[_IN_FLIGHT] -= 1
        self._cells[_RECEIVED_BYTES] += received_bytes

    def answered(self, first_byte_ns: int, last_byte_ns: int) -> None:
        """Count a GET whose answer began and ended so long after it was sent."""
        self._cells[len(COUNTERS) + bisect_left(_EDGES_NS, first_byte_ns)] += 1
        self._cells[len(COUNTERS) + BINS + bisect_left(_EDGES_NS, last_byte_ns)] += 1
        if self.on_answer is not None:
            self.on_answer(first_byte_ns, last_byte_ns)

    def __getitem__(self, counter: str) -> int:
        return int(self.values[INDEX[counter]])

    @property
    def requests(self) -> int:
        """All that were sent, those asked again included."""
        return sum(self[name] for name in ("get", "head", "list", "put", "delete"))

    @property
    def first_byte(self) -> NDArray[np.int64]:
        """Answers to GET by the time to their first byte, in bins."""
        return self.values[len(COUNTERS) : len(COUNTERS) + BINS]

    @property
    def last_byte(self) -> NDArray[np.int64]:
        """Answers to GET by the time to their last byte, in bins."""
        return self.values[len(COUNTERS) + BINS : len(COUNTERS) + 2 * BINS]


def _refined(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an older version's counts as of today: each of its bins is the one that ends where it ended."""
    values = np.resize(np.pad(values, (0, _COARSE + 1)), _COARSE + 1)
    bins = np.zeros(2 * BINS, np.int64)
    bins[::FINE] = values[len(COUNTERS) : _COARSE]
    return np.concatenate([values[: len(COUNTERS)], bins, values[_COARSE:]])


def read_counts(folder: str, *, here: bool = False) -> RequestCounts:
    """Return the sum of what all processes (of this host with `here`) left in a folder; zeros where nobody did."""
    total = RequestCounts()
    for values in _files(folder, _host() if here else ""):
        total.values += values
    return total


def _host() -> str:
    return f"{platform.node()}-"


def _files(folder: str, prefix: str) -> Iterator[NDArray[np.int64]]:
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith(prefix) and name.endswith(SUFFIX))
    except OSError:
        return
    for name in names:
        try:
            values = np.fromfile(os.path.join(folder, name), np.int64)
        except OSError:
            continue
        if len(values) == _SIZE:
            yield values


def remove_counts(folder: str) -> None:
    """Remove what processes left in a folder of a run of ours, and the folder when nothing else is in it."""
    with contextlib.suppress(OSError):
        if not os.path.islink(folder):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                if name.endswith(SUFFIX) and os.path.isfile(path) and not os.path.islink(path):
                    os.unlink(path)
            os.rmdir(folder)


def waits_ms(histogram: NDArray[np.int64]) -> Percentiles | None:
    """Return the percentiles of a histogram of times; None of an empty one. Each is the upper edge of its bin."""
    total = int(histogram.sum())
    if not total:
        return None
    cumulated = histogram.cumsum()
    p50, p90, p99 = (_upper_ms(int(np.searchsorted(cumulated, share * total))) for share in (0.5, 0.9, 0.99))
    return Percentiles(p50=p50, p90=p90, p99=p99, max=_upper_ms(int(np.flatnonzero(histogram)[-1])))


def _upper_ms(number: int) -> float:
    return LOWEST_US * math.pow(GROWTH, number / FINE) / 1000

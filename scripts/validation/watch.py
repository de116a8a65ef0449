"""Samples a drive's counters while a run reads from it: bytes, requests, and when it was busy."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

SECTOR_BYTES = 512
LOOK_SECONDS = 0.01


@dataclass(frozen=True)
class Look:
    """The drive's counters at one moment (Documentation/block/stat.rst)."""

    time_ns: int
    """CLOCK_MONOTONIC, as in the step log."""
    reads: int
    """Completed requests; adjacent ones that the kernel merged count as one."""
    sectors: int
    in_flight: int


@dataclass
class Watch:
    """The samples of a drive's counters, in order."""

    device: str
    looks: list[Look] = field(default_factory=list)

    def look(self) -> None:
        """Add a sample."""
        with open(f"/sys/block/{self.device}/stat") as line:
            fields = line.read().split()
        self.looks.append(Look(time.monotonic_ns(), int(fields[0]), int(fields[2]), int(fields[8])))

    @property
    def bytes(self) -> int:
        """Bytes that were read from the drive."""
        return SECTOR_BYTES * (self.looks[-1].sectors - self.looks[0].sectors)

    @property
    def reads(self) -> int:
        """Requests that the drive completed."""
        return self.looks[-1].reads - self.looks[0].reads

    def until(self, moment_ns: int) -> Watch:
        """Return the samples up to a moment."""
        return Watch(self.device, [look for look in self.looks if look.time_ns <= moment_ns])

    def bytes_between(self, begin_ns: int, end_ns: int) -> int:
        """Return the bytes read from the drive between two moments."""
        within = [look.sectors for look in self.looks if begin_ns <= look.time_ns <= end_ns]
        return SECTOR_BYTES * (within[-1] - within[0]) if within else 0

    def reading_seconds(self, begin_ns: int, end_ns: int) -> float:
        """Return the time from the first to the last read between two moments; 0 if there was none."""
        neighbours = zip(self.looks, self.looks[1:], strict=False)
        within = [(before, now) for before, now in neighbours if begin_ns <= now.time_ns <= end_ns]
        busy = [now.time_ns for before, now in within if now.in_flight or now.sectors > before.sectors]
        return (busy[-1] - busy[0]) / 1e9 if busy else 0.0


@contextlib.contextmanager
def watching(device: str) -> Iterator[Watch]:
    """Sample a drive's counters in a thread, as long as the block lasts."""
    watch, ended = Watch(device), threading.Event()

    def sample() -> None:
        while not ended.wait(LOOK_SECONDS):
            watch.look()

    watch.look()
    thread = threading.Thread(target=sample, name="watch")
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()
        watch.look()

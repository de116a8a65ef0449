"""Looks at a drive from outside while a run reads it: what it counted, and when it had anything to do."""

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
    """The drive's figures at one moment (Documentation/block/stat.rst)."""

    time_ns: int
    """CLOCK_MONOTONIC, as in the step log."""
    reads: int
    """Requests it has answered, those of one piece that were asked for together as one."""
    sectors: int
    in_flight: int


@dataclass
class Watch:
    """All samples of a drive, in order."""

    device: str
    looks: list[Look] = field(default_factory=list)

    def look(self) -> None:
        """Look at it now."""
        with open(f"/sys/block/{self.device}/stat") as line:
            fields = line.read().split()
        self.looks.append(Look(time.monotonic_ns(), int(fields[0]), int(fields[2]), int(fields[8])))

    @property
    def bytes(self) -> int:
        """What was read of it."""
        return SECTOR_BYTES * (self.looks[-1].sectors - self.looks[0].sectors)

    @property
    def reads(self) -> int:
        """Requests that it answered."""
        return self.looks[-1].reads - self.looks[0].reads

    def until(self, moment_ns: int) -> Watch:
        """Return what was seen up to a moment."""
        return Watch(self.device, [one for one in self.looks if one.time_ns <= moment_ns])

    def bytes_between(self, begin_ns: int, end_ns: int) -> int:
        """What was read of it between two moments."""
        within = [one.sectors for one in self.looks if begin_ns <= one.time_ns <= end_ns]
        return SECTOR_BYTES * (within[-1] - within[0]) if within else 0

    def reading_seconds(self, begin_ns: int, end_ns: int) -> float:
        """Return the time from its first read to its last between two moments; 0 when there was none."""
        within = [one for one in zip(self.looks, self.looks[1:], strict=False) if begin_ns <= one[1].time_ns <= end_ns]
        busy = [now.time_ns for before, now in within if now.in_flight or now.sectors > before.sectors]
        return (busy[-1] - busy[0]) / 1e9 if busy else 0.0


@contextlib.contextmanager
def watching(device: str) -> Iterator[Watch]:
    """Look at a drive again and again, as long as the block lasts."""
    watch, ended = Watch(device), threading.Event()

    def go_on() -> None:
        while not ended.wait(LOOK_SECONDS):
            watch.look()

    watch.look()
    thread = threading.Thread(target=go_on, name="watch")
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()
        watch.look()

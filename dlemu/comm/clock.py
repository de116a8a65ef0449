"""The clock that the emulated accelerator's loop reads: the real one, and a fake with which tests take no time."""

from __future__ import annotations

import ctypes
import time
from typing import Protocol

_PR_SET_TIMERSLACK = 29  # linux/prctl.h


class Clock(Protocol):
    """Nanoseconds that only go forward."""

    def now_ns(self) -> int:
        """Return the time."""
        ...

    def sleep_until(self, deadline_ns: int) -> None:
        """Return not before the deadline; at once when it has passed."""
        ...


class MonotonicClock:
    """CLOCK_MONOTONIC. Create it in the thread that will sleep: its timer slack is set to 1 ns (default 50 us)."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def now_ns(self) -> int:
        """Return the time."""
        return time.monotonic_ns()

    def sleep_until(self, deadline_ns: int) -> None:
        """Sleep in the kernel. The thread wakes a little late, which does not count as the accelerator's time."""
        left_ns = deadline_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / 1e9)


class FakeClock:
    """Time that passes only by sleeping, each sleep `oversleep_ns` too long."""

    def __init__(self, start_ns: int = 0, oversleep_ns: int = 0) -> None:
        self.time_ns, self.oversleep_ns = start_ns, oversleep_ns

    def now_ns(self) -> int:
        """Return the time."""
        return self.time_ns

    def sleep_until(self, deadline_ns: int) -> None:
        """Advance the time past the deadline, without waiting."""
        if deadline_ns > self.time_ns:
            self.time_ns = deadline_ns + self.oversleep_ns

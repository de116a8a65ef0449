"""Clocks for the training loop, a real and a fake one, and burners, which use up CPU time on purpose."""

from __future__ import annotations

import ctypes
import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Protocol

_PR_SET_TIMERSLACK = 29  # linux/prctl.h
_MAX_CALL_NS = 20_000_000  # duration of a hash call; the thread's clock is read, and signals are handled, between calls
_ASSUMED_ROUND_NS = 400.0  # duration of a round of the hash, until it has been measured
_SALT = b"dlemu burns a CPU"


class Clock(Protocol):
    """A monotonic clock, in nanoseconds."""

    def now_ns(self) -> int:
        """Return the time."""

    def sleep_until(self, deadline_ns: int) -> None:
        """Sleep until the deadline or a little later; return at once if it has passed."""


class MonotonicClock:
    """CLOCK_MONOTONIC. Create it in the thread that will sleep: its timer slack is set to 1 ns (default 50 us)."""

    def __init__(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_until(self, deadline_ns: int) -> None:
        """Sleep in the kernel. The thread wakes a little late, which callers do not count as the accelerator's time."""
        remaining_ns = deadline_ns - time.monotonic_ns()
        if remaining_ns > 0:
            time.sleep(remaining_ns / 1e9)


class FakeClock:
    """A clock that advances only by sleeping; each sleep takes `oversleep_ns` too long."""

    def __init__(self, start_ns: int = 0, oversleep_ns: int = 0) -> None:
        self.time_ns, self.oversleep_ns = start_ns, oversleep_ns

    def now_ns(self) -> int:
        return self.time_ns

    def sleep_until(self, deadline_ns: int) -> None:
        if deadline_ns > self.time_ns:
            self.time_ns = deadline_ns + self.oversleep_ns


class Burner:
    """Uses CPU time of the calling thread in place of a real job's computing; each thread needs its own object.

    The thread's CPU clock measures this time, so a thread that has to wait for a core takes longer. The work is an
    iterated hash (PBKDF2), whose rounds set the duration; it releases the interpreter lock and hardly accesses memory.
    """

    def __init__(self) -> None:
        self._round_ns = _ASSUMED_ROUND_NS
        self._ahead_ns = 0  # CPU time by which earlier calls overshot; the next call uses that much less

    def burn(self, seconds: float) -> int:
        """Compute for `seconds` of CPU time; return the CPU time that was actually used, in ns."""
        began_ns = now_ns = time.thread_time_ns()
        until_ns = began_ns + round(seconds * 1e9) - self._ahead_ns
        while now_ns < until_ns:
            rounds = max(1, int(min(until_ns - now_ns, _MAX_CALL_NS) / self._round_ns))
            hashlib.pbkdf2_hmac("sha256", _SALT, _SALT, rounds)
            before_ns, now_ns = now_ns, time.thread_time_ns()
            if now_ns > before_ns:
                self._round_ns = max(10.0, (now_ns - before_ns) / rounds)  # no core hashes 2 SHA-256 blocks in 10 ns
        self._ahead_ns = now_ns - until_ns
        return now_ns - began_ns


class BurnerThreads:
    """Uses CPU time on several threads, in equal shares."""

    def __init__(self, threads: int) -> None:
        self._burners = [Burner() for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads, "dlemu-burn")

    def burn(self, seconds: float) -> int:
        """Compute for `seconds` of CPU time in total; return the CPU time that was actually used, in ns."""
        if len(self._burners) == 1:
            return self._burners[0].burn(seconds)
        shares = repeat(seconds / len(self._burners))
        return sum(self._pool.map(Burner.burn, self._burners, shares))

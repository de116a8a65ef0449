"""CPU time that is used up on purpose, where a real job would compute. It is measured by the thread's CPU clock, not by
wall clock, so a thread that gets no core takes longer, as a real one would.
"""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

_LONGEST_NS = 20_000_000
"""Longest single hash call: between calls the thread's clock is read and signals are handled."""
_FIRST_NS = 400.0
"""Assumed time of one round of the hash, until it has been measured."""
_SALT = b"dlemu burns a CPU"


class Burner:
    """Uses up a given CPU time of the calling thread; each thread needs its own object.

    The work is an iterated hash (PBKDF2), for two reasons: the number of rounds sets how long a call takes, and the
    call releases the interpreter lock, as numpy or a decoder does. It causes hardly any memory traffic.
    """

    def __init__(self) -> None:
        self._round_ns = _FIRST_NS
        self._ahead_ns = 0
        """CPU time by which earlier calls overshot; the next one is shortened by it, so that the mean is right."""

    def burn(self, seconds: float) -> int:
        """Compute for `seconds` of CPU time; return the CPU time that was really used, in ns."""
        began_ns = now_ns = time.thread_time_ns()
        until_ns = began_ns + round(seconds * 1e9) - self._ahead_ns
        while now_ns < until_ns:
            rounds = max(1, int(min(until_ns - now_ns, _LONGEST_NS) / self._round_ns))
            hashlib.pbkdf2_hmac("sha256", _SALT, _SALT, rounds)
            before_ns, now_ns = now_ns, time.thread_time_ns()
            if now_ns > before_ns:
                self._round_ns = max(10.0, (now_ns - before_ns) / rounds)  # two SHA-256 blocks take any core longer
        self._ahead_ns = now_ns - until_ns
        return now_ns - began_ns


class BurnerThreads:
    """Uses up CPU time on several threads, in equal shares."""

    def __init__(self, threads: int) -> None:
        self._burners = [Burner() for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads, "dlemu-burn")

    def burn(self, seconds: float) -> int:
        """Compute for `seconds` of CPU time, all threads together; return the CPU time really used, in ns."""
        if len(self._burners) == 1:
            return self._burners[0].burn(seconds)
        shares = repeat(seconds / len(self._burners))
        return sum(self._pool.map(Burner.burn, self._burners, shares))

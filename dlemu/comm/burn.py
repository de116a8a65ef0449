"""CPU time that is used up on purpose, where a real job would compute: by this thread's clock, not by the clock on the
wall, so whoever gets no core is late.
"""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

_LONGEST_NS = 20_000_000
"""Of one call: the kernel's clock is looked at in between, and signals are answered."""
_FIRST_NS = 400.0
"""Of one round of the hash, until it has been measured."""
_SALT = b"dlemu burns a CPU"


class Burner:
    """Computes for so much CPU time of the thread that calls it; one for each thread.

    The work is a hash of itself (PBKDF2), for two reasons: one call takes as long as one likes, and the interpreter is
    free for other threads meanwhile, as while numpy or a decoder computes. It touches no memory.
    """

    def __init__(self) -> None:
        self._round_ns = _FIRST_NS
        self._ahead_ns = 0
        """What earlier calls computed beyond what they were to: nothing is lost or gained in the mean."""

    def burn(self, seconds: float) -> int:
        """Compute for so many seconds of CPU time; return the nanoseconds that it really was."""
        began_ns = now_ns = time.thread_time_ns()
        until_ns = began_ns + round(seconds * 1e9) - self._ahead_ns
        while now_ns < until_ns:
            rounds = max(1, int(min(until_ns - now_ns, _LONGEST_NS) / self._round_ns))
            hashlib.pbkdf2_hmac("sha256", _SALT, _SALT, rounds)
            before_ns, now_ns = now_ns, time.thread_time_ns()
            if now_ns > before_ns:
                self._round_ns = max(10.0, (now_ns - before_ns) / rounds)  # two blocks of SHA-256: no core takes less
        self._ahead_ns = now_ns - until_ns
        return now_ns - began_ns


class BurnerThreads:
    """The same by so many threads, in equal shares."""

    def __init__(self, threads: int) -> None:
        self._burners = [Burner() for _ in range(threads)]
        self._pool = ThreadPoolExecutor(threads, "dlemu-burn")

    def burn(self, seconds: float) -> int:
        """Compute for so many seconds of CPU time, all threads together; return the nanoseconds that it really was."""
        if len(self._burners) == 1:
            return self._burners[0].burn(seconds)
        shares = repeat(seconds / len(self._burners))
        return sum(self._pool.map(Burner.burn, self._burners, shares))

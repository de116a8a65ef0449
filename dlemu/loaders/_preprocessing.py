"""Emulated preprocessing: after reading samples, a worker computes or sleeps for their `reader.preprocess_time`."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlemu.comm.clock import BurnerThreads
from dlemu.config.duration import Duration, draw_seconds, is_zero

DRAWN_AT_ONCE = 1024
"""Samples whose times are drawn together: the samples of one batch would be too few for an even spread of times."""


class Spent(NamedTuple):
    """Wall time and CPU time of preprocessing, in ns."""

    took_ns: int = 0
    cpu_ns: int = 0


class Preprocessing:
    """Preprocesses the samples of one worker."""

    def __init__(self, duration: Duration, how: str, random: np.random.Generator, threads: int = 1) -> None:
        """`threads`: how many threads share the samples of one batch; `how`: `burn` or `sleep`."""
        self._duration, self._random, self._threads = duration, random, threads
        self._burners = BurnerThreads(threads) if how == "burn" and not is_zero(duration) else None
        self._drawn: NDArray[np.float64] = np.empty(0)

    def spend(self, samples: int) -> Spent:
        """Preprocess this number of samples."""
        if is_zero(self._duration):
            return Spent()
        seconds, cpu_ns = self._draw(samples), 0
        began_ns = time.monotonic_ns()
        if self._burners is None:
            time.sleep(seconds / self._threads)
        else:
            cpu_ns = self._burners.burn(seconds)
        return Spent(time.monotonic_ns() - began_ns, cpu_ns)

    def _draw(self, samples: int) -> float:
        """Return the total preprocessing time of this number of samples, in seconds."""
        if len(self._drawn) < samples:
            more = draw_seconds(self._duration, self._random, max(DRAWN_AT_ONCE, samples))
            self._drawn = np.concatenate([self._drawn, more])
        drawn, self._drawn = np.split(self._drawn, [samples])
        return float(drawn.sum())

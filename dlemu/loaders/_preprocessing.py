"""What a worker does with samples after it has read them: it computes for their `reader.preprocess_time`, or sleeps."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlemu.comm.burn import BurnerThreads
from dlemu.config.duration import Duration, draw_seconds, is_zero

DRAWN_AT_ONCE = 1024
"""Samples whose times are drawn together: those of a batch alone would be too few to be spread evenly."""


class Spent(NamedTuple):
    """What it took, in ns."""

    took_ns: int = 0
    cpu_ns: int = 0


class Preprocessing:
    """Preprocesses the samples of one worker."""

    def __init__(self, duration: Duration, how: str, random: np.random.Generator, threads: int = 1) -> None:
        """`threads`: of a loader whose threads share the samples of one batch."""
        self._duration, self._random, self._threads = duration, random, threads
        self._burners = BurnerThreads(threads) if how == "burn" and not is_zero(duration) else None
        self._drawn: NDArray[np.float64] = np.empty(0)

    def spend(self, samples: int) -> Spent:
        """Preprocess so many samples."""
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
        """Return what so many samples take together, in seconds."""
        if len(self._drawn) < samples:
            more = draw_seconds(self._duration, self._random, max(DRAWN_AT_ONCE, samples))
            self._drawn = np.concatenate([self._drawn, more])
        drawn, self._drawn = np.split(self._drawn, [samples])
        return float(drawn.sum())

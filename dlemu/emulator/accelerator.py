"""How long an emulated accelerator computes: nominal nanoseconds for each step, drawn before the epoch begins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlemu.config.duration import draw_seconds
from dlemu.config.schema import Duration


def compute_times_ns(duration: Duration, *, seed: int, rank: int, epoch: int, steps: int) -> NDArray[np.int64]:
    """Return the computation time of each step, shape (steps,); the same for the same seed, rank and epoch."""
    random = np.random.Generator(np.random.Philox(key=[seed & 0xFFFFFFFFFFFFFFFF, (rank << 32) | (epoch & 0xFFFFFFFF)]))
    return np.rint(draw_seconds(duration, random, steps) * 1e9).astype(np.int64)

"""The model to beat: all loads in order of arrival through one pipe of one rate. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def fifo_load_seconds(
    arrived_seconds: NDArray[np.float64], load_bytes: NDArray[np.int64], gb_per_second: float
) -> NDArray[np.float64]:
    """Return how long each load takes from its arrival, arrivals in order: Lindley's recursion (1952).

    finished = max(arrived, finished before) + bytes / rate.
    """
    took = load_bytes / (gb_per_second * 1e9)
    done = np.cumsum(took)
    # The queue was last empty where arrival minus all work before is largest.
    begun = np.maximum.accumulate(arrived_seconds - (done - took))
    finished: NDArray[np.float64] = begun + done - arrived_seconds
    return finished

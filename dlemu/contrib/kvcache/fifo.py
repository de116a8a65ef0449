"""The FIFO model that measured loads are compared with: one pipe of constant rate serves them in order of arrival."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def fifo_load_seconds(
    arrived_seconds: NDArray[np.float64], load_bytes: NDArray[np.int64], gb_per_second: float
) -> NDArray[np.float64]:
    """Return the seconds from each load's arrival to its end, for ascending arrivals: Lindley's recursion (1952).

    finished = max(arrived, finish of the previous load) + bytes / rate.
    """
    took = load_bytes / (gb_per_second * 1e9)
    done = np.cumsum(took)
    # The queue was last empty where arrival minus all work before is largest.
    begun = np.maximum.accumulate(arrived_seconds - (done - took))
    finished: NDArray[np.float64] = begun + done - arrived_seconds
    return finished

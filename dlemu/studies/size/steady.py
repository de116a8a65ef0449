"""The steady part of a run as a series of equal windows: how busy its accelerators were, and what was read for them.

Two things make the AU of a short run too high: batches that were read ahead while its first step waited, and batches
still in the queue at the end of an epoch, when nothing more is read. So both ends are cut off, and the work that the
accelerators did (`busy`) is compared with what was read in the same time (`fed`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics.rates import Intervals
from dlemu.metrics.rows import Rows, in_order

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SteadySeries:
    """One value for each window of time, in percent of it."""

    busy: Values
    """Share of time that accelerators computed: AU, mean over ranks."""
    fed: Values
    """Time that accelerators will compute on what was read in the window; a batch that is half read counts half."""

    @property
    def sustained(self) -> Values:
        """The series with the smaller mean, which can be sustained for ever."""
        return self.fed if len(self.fed) and self.fed.mean() < self.busy.mean() else self.busy


def steady_series(rows: Rows, *, ahead: int, window_seconds: float) -> SteadySeries:
    """Return the series of training rows of one or more ranks; empty when there is no whole window yet.

    `ahead` is how many batches may be read before they are needed. The first step of each block and its last `ahead`
    steps are left out; the latter are needed to know what was in the queue at the end of the last window. The time of
    each rank is by its own clock, from the end of its first step.
    """
    per_block: dict[tuple[int, int], list[Values]] = {}
    for part in in_order(rows).by_block:
        key = int(part["epoch"][0]), int(part["block"][0])
        per_block.setdefault(key, []).append(_of_rank(part, ahead, round(window_seconds * 1e9)))
    merged = [np.empty((2, 0))]
    for _, ranks in sorted(per_block.items()):
        windows = min(part.shape[1] for part in ranks)
        merged.append(np.mean([part[:, :windows] for part in ranks], axis=0))
    busy, fed = np.concatenate(merged, axis=1)
    return SteadySeries(busy=busy, fed=fed)


def _of_rank(part: Rows, ahead: int, window_ns: int) -> Values:
    """Return busy and fed of a rank's block in each window, shape (2, windows)."""
    last = len(part) - 1 - ahead
    if last <= 1:
        return np.empty((2, 0))
    names = ("free_ns", "wait_ns", "compute_ns", "started_ns", "finished_ns")
    free, wait, compute, started, finished = (part[name].astype(np.float64) for name in names)
    begins = free + wait
    edges = free[1] + window_ns * np.arange((free[last] - free[1]) // window_ns + 1)
    computed = Intervals(begins, np.maximum(begins + compute, begins + 1), edges)
    read = Intervals(started, np.maximum(finished, started + 1), edges)
    return 100 * np.stack([spread.rates(compute) for spread in (computed, read)])

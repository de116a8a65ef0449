"""The steady part of a run as a series of equal windows: how busy its accelerators were, and what was read for them.

Two things make the AU of a short run too high: batches that were read ahead while its first step waited, and batches
still in the queue at the end of an epoch, when nothing more is read. So both ends are cut off, and the work that the
accelerators did (`busy`) is compared with what was read in the same time (`fed`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
    start_ns, end_ns = int(part["free_ns"][1]), int(part["free_ns"][last])
    edges = start_ns + window_ns * np.arange((end_ns - start_ns) // window_ns + 1)
    done = np.stack([_computed_ns(part, edges), _read_ns(part, edges)])
    shares: Values = 100 * np.diff(done, axis=1) / window_ns
    return shares


def _computed_ns(part: Rows, edges: NDArray[np.int64]) -> Values:
    """Return the compute time completed by each edge."""
    begin = part["free_ns"] + part["wait_ns"]
    stamps = np.stack([begin, begin + part["compute_ns"]], axis=1).ravel()
    done = np.cumsum(part["compute_ns"])
    totals = np.stack([done - part["compute_ns"], done], axis=1).ravel()
    computed: Values = np.interp(edges, stamps, totals)
    return computed


def _read_ns(part: Rows, edges: NDArray[np.int64]) -> Values:
    """Return the compute time of what was read by each edge, as if batches were read at a constant rate."""
    took = np.maximum(part["finished_ns"] - part["started_ns"], 1)
    read = np.zeros(len(edges))
    for started, length, compute in zip(part["started_ns"], took, part["compute_ns"], strict=True):
        read += compute * np.clip((edges - started) / length, 0, 1)
    return read

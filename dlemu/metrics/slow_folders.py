"""One slow folder among many: sub-folders are on other volumes, servers or shards, and one of these may be slow.

A batch reads its files one after another, so what it took is the sum of what its files took. By least squares over all
batches follows what a sample of each folder takes (docs/metrics.md, section 6). Pure: step rows and the plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics.rows import Columns, Rows, in_order
from dlemu.plan.samples import Plan, hash_samples

TIMES_THE_OTHERS = 2.0
"""How many times the median of the folders a sample must take,"""
ERRORS = 5.0  # by chance 3 of 10 million folders exceed 5
"""and how many standard errors it must lie above that,"""
MOST_SHARE = 1 / 3
"""and the share of the folders that can be slow: more are no exception."""
_ROWS_A_FOLDER, _MOST_ROWS = 10, 20_000  # each half has five equations a folder; more than 20,000 only take time


@dataclass(frozen=True, kw_only=True)
class SlowFolder:
    """A sub-folder of the dataset that reads slower than the others."""

    name: str
    ms_per_sample: float
    others_ms_per_sample: float
    """Median of all folders."""


def find_slow_folders(rows: Rows, plan: Plan, folders: Sequence[str]) -> tuple[SlowFolder, ...]:
    """Return the slow ones of some folders, slowest first. File number f is in folder f modulo their number.

    Batches whose samples are not those that were planned (a loader with an order of its own) show nothing.
    """
    if len(folders) < 3:
        return ()
    table = in_order(rows)
    read = np.flatnonzero((table["read_ns"] > 0) & (table["samples"] == plan.batch_size))
    known = list(_of_folders(table.take(read[:: max(1, len(read) // _MOST_ROWS)]), plan, len(folders)))
    if len(known) < _ROWS_A_FOLDER * len(folders):
        return ()
    counts, took_ms = np.array([of for of, _ in known], float), np.array([took for _, took in known])
    each, errors = _solved(counts, took_ms)
    usual = float(np.median(each))
    limit = TIMES_THE_OTHERS * usual
    slow = (each >= limit) & (each - usual >= ERRORS * errors)
    for half in (slice(None, None, 2), slice(1, None, 2)):  # a few reads that took very long are in one half alone
        slow &= _solved(counts[half], took_ms[half])[0] >= limit
    if usual <= 0 or slow.sum() > MOST_SHARE * len(folders):
        return ()
    return tuple(
        SlowFolder(name=folders[at], ms_per_sample=float(each[at]), others_ms_per_sample=usual)
        for at in np.argsort(-each)
        if slow[at]
    )


def _of_folders(rows: Columns, plan: Plan, folders: int) -> Iterator[tuple[NDArray[np.int64], float]]:
    """Yield for each row how many of its samples are in each folder, and the ms that reading them took."""
    ranks, epochs, steps, hashes, read_ns = (rows[name] for name in ("rank", "epoch", "step", "sample_hash", "read_ns"))
    for rank in np.unique(ranks).tolist():
        for epoch in np.unique(epochs).tolist():
            own = np.flatnonzero((ranks == rank) & (epochs == epoch))
            if not len(own):
                continue
            for at, samples in zip(own.tolist(), plan.batches(rank, epoch, steps[own]), strict=True):
                if hash_samples(samples) == hashes[at]:
                    of = np.bincount(samples // plan.num_samples_per_file % folders, minlength=folders)
                    yield of, float(read_ns[at]) / 1e6


def _solved(
    counts: NDArray[np.float64], took_ms: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what a sample of each folder takes, ms, and its standard error (ordinary least squares)."""
    inverse = np.linalg.pinv(counts.T @ counts)
    each = inverse @ counts.T @ took_ms
    left = took_ms - counts @ each
    variance = float((left**2).sum()) / max(1, len(took_ms) - counts.shape[1])
    return each, np.sqrt(variance * np.maximum(np.diag(inverse), 0))

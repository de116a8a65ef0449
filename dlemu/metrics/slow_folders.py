"""Slow sub-folders of a dataset: each may be on another volume, server or shard, and one of these may be slow.

A batch reads its files one after another, so its read time is the sum of its samples' read times. A least-squares fit
over all batches gives the time per sample of each folder (docs/metrics.md, section 6).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.rows import Columns, Rows, in_order
from dlemu.plan.samples import Plan, hash_samples

_MIN_RATIO = 2.0
"""A slow folder's time per sample is at least this many times the median of all folders."""
_MIN_STANDARD_ERRORS = 5.0  # by chance 3 of 10 million folders exceed 5
"""It is at least this many standard errors above that median."""
_MAX_SLOW_SHARE = 1 / 3
"""Where a greater share of the folders is that slow, none is reported."""
_MIN_BATCHES_PER_FOLDER = 10  # 5 in each of the two halves that are fitted on their own, too
_MAX_BATCHES = 20_000  # more only take time


def find_slow_folders(rows: Rows, plan: Plan, folders: Sequence[str]) -> tuple[Finding, ...]:
    """Return the slow ones of `folders`, slowest first; file f is in folder f modulo their number.

    `others_ms_per_sample` is the median over all folders.
    """
    if len(folders) < 3:
        return ()
    table = in_order(rows)
    read = np.flatnonzero((table["read_ns"] > 0) & (table["samples"] == plan.batch_size))
    batches = list(_samples_by_folder(table.take(read[:: max(1, len(read) // _MAX_BATCHES)]), plan, len(folders)))
    if len(batches) < _MIN_BATCHES_PER_FOLDER * len(folders):
        return ()
    counts, took_ms = np.array([count for count, _ in batches], float), np.array([took for _, took in batches])
    per_sample, errors = _fit(counts, took_ms)
    median = float(np.median(per_sample))
    limit = _MIN_RATIO * median
    slow = (per_sample >= limit) & (per_sample - median >= _MIN_STANDARD_ERRORS * errors)
    for half in (slice(None, None, 2), slice(1, None, 2)):  # a few very long reads are in one half only
        slow &= _fit(counts[half], took_ms[half])[0] >= limit
    if median <= 0 or slow.sum() > _MAX_SLOW_SHARE * len(folders):
        return ()
    return tuple(
        Finding.of(
            Code.SLOW_DRIVE,
            "caution",
            folder=folders[at],
            ms_per_sample=float(per_sample[at]),
            others_ms_per_sample=median,
        )
        for at in np.argsort(-per_sample)
        if slow[at]
    )


def _samples_by_folder(rows: Columns, plan: Plan, folders: int) -> Iterator[tuple[NDArray[np.int64], float]]:
    """Yield for each row its number of samples in each folder, shape (folders,), and its read time in ms."""
    ranks, epochs, steps, hashes, read_ns = (rows[name] for name in ("rank", "epoch", "step", "sample_hash", "read_ns"))
    for rank in np.unique(ranks).tolist():
        for epoch in np.unique(epochs).tolist():
            own = np.flatnonzero((ranks == rank) & (epochs == epoch))
            if not len(own):
                continue
            for at, samples in zip(own.tolist(), plan.batches(rank, epoch, steps[own]), strict=True):
                if hash_samples(samples) == hashes[at]:
                    count = np.bincount(samples // plan.num_samples_per_file % folders, minlength=folders)
                    yield count, float(read_ns[at]) / 1e6


def _fit(counts: NDArray[np.float64], took_ms: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the time per sample of each folder, ms, and its standard error (ordinary least squares)."""
    inverse = np.linalg.pinv(counts.T @ counts)
    per_sample = inverse @ counts.T @ took_ms
    residuals = took_ms - counts @ per_sample
    variance = float((residuals**2).sum()) / max(1, len(took_ms) - counts.shape[1])
    return per_sample, np.sqrt(variance * np.maximum(np.diag(inverse), 0))

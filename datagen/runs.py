"""Runs: consecutive samples of a file, which are planned and read together rather than one by one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LONG_BATCH = 256
"""Larger batches are cut into runs by numpy; for smaller ones a Python loop is faster."""

Run = tuple[int, int]
"""(first sample, number of samples) of a run."""


class Runs:
    """The samples of a batch as runs, in the order requested."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs

    def __len__(self) -> int:
        return sum(count for _, count in self.runs)

    def tolist(self) -> list[int]:
        """Return the sample numbers, like `ndarray.tolist`."""
        return list(itertools.chain.from_iterable(range(first, first + count) for first, count in self.runs))

    def within(self, samples_per_file: int) -> list[Run]:
        """Return the runs, split at file boundaries."""
        cut: list[Run] = []
        for first, count in self.runs:
            while (left := samples_per_file - first % samples_per_file) < count:
                cut.append((first, left))
                first, count = first + left, count - left
            if count:
                cut.append((first, count))
        return cut


Samples = Sequence[int] | NDArray[np.int64] | Runs
"""Sample numbers of a batch, in any of the accepted forms."""


def runs_of(samples: Samples, samples_per_file: int) -> list[Run]:
    """Cut a batch into runs of consecutive samples within a file, in the order given."""
    if isinstance(samples, Runs):
        return samples.within(samples_per_file)
    if isinstance(samples, np.ndarray) or len(samples) > LONG_BATCH:
        return _long_runs(np.asarray(samples, np.int64), samples_per_file)
    batch_runs = []
    first = following = -1
    for sample in samples:
        if sample == following and sample % samples_per_file:
            following += 1
            continue
        if first >= 0:
            batch_runs.append((first, following - first))
        first, following = sample, sample + 1
    if first >= 0:
        batch_runs.append((first, following - first))
    return batch_runs


def _long_runs(samples: NDArray[np.int64], samples_per_file: int) -> list[Run]:
    begins = np.flatnonzero((samples[1:] != samples[:-1] + 1) | (samples[1:] % samples_per_file == 0)) + 1
    begins = np.concatenate([[0], begins])
    counts = np.diff(begins, append=len(samples))
    return list(zip(samples[begins].tolist(), counts.tolist(), strict=True))

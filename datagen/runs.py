"""Samples that follow each other in a file: what is planned, read and accounted for as ranges, not one by one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LONG_BATCH = 256
"""Batches of more samples are cut by numpy, whose calls cost as much as a loop over so many."""

Run = tuple[int, int]
"""First sample, and how many that follow each other in a file."""


class Runs:
    """The samples of a batch as runs, in the order in which they are wanted."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs

    def __len__(self) -> int:
        return sum(count for _, count in self.runs)

    def tolist(self) -> list[int]:
        """Return the samples one by one, as an array of them does."""
        return list(itertools.chain.from_iterable(range(first, first + count) for first, count in self.runs))

    def within(self, samples_per_file: int) -> list[Run]:
        """Return the runs, cut where a file ends."""
        cut: list[Run] = []
        for first, count in self.runs:
            while (left := samples_per_file - first % samples_per_file) < count:
                cut.append((first, left))
                first, count = first + left, count - left
            if count:
                cut.append((first, count))
        return cut


Samples = Sequence[int] | NDArray[np.int64] | Runs
"""Sample numbers, in any of the ways in which a batch may be requested."""


def runs_of(samples: Samples, samples_per_file: int) -> list[Run]:
    """Cut a batch into runs (first sample, count) of ascending neighbours within a file, in the order given."""
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

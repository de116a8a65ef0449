"""Fingerprints of measurements, to find copies: those of independent measurements practically never agree.

A fingerprint has sums over a rank's step times, or the figures of a run. Unlike a hash, sums also recognise a copy with
changed last digits or shuffled steps. Its *sketch*, made from the order of the steps by their waits, also recognises a
copy with scaled times or added noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dlemu.contrib.mlperf.audit.step_files import Logs, Seconds
from dlemu.contrib.mlperf.rules.known import Severity

_MAX_COPY_DIFFERENCE = 1e-8  # relative; sums of hundreds of independently measured times differ by more
_same = partial(math.isclose, rel_tol=_MAX_COPY_DIFFERENCE)
_DECIMALS = 6  # a measured number has more decimals
STAMP_DECIMALS = 3  # a number derived from time stamps in microseconds has more decimals
_MIN_MEASURED = 3  # a list was measured if it has so many different values, or values with more decimals
_MIN_STEPS = 100  # an epoch with fewer steps has no sketch
_PROJECTIONS = 64  # length of a sketch
_MAX_SKETCHES = 2_000  # compared with each other; a larger matrix takes too much memory
_MIN_UNEQUAL = 0.9  # share of the waits that must have different lengths: equal waits have no order
_WARNING_COSINE = 0.97
_ERROR_COSINE = 0.9995
"""Cosine of two sketches, about the rank correlation of their waits: 0.98 or more for copies with 2 % noise, 1 for
scaled copies. Of 2,775 pairs of epochs of v1.0's published runs, the most similar have 0.5; the standard deviation by
chance is 0.13. Honest runs may be similar if a drive limits them and they read files of unequal sizes in one order."""


@dataclass(frozen=True)
class Fingerprint:
    """Fingerprint of one measurement, which `where` names."""

    where: str
    values: tuple[float, ...]
    sketch: tuple[float, ...] = ()  # see `_sketch`; comparable only with that of an epoch of equally many steps
    epoch: int = 0


def step_fingerprints(logs: Logs) -> tuple[Fingerprint, ...]:
    """Return a fingerprint of each epoch of each rank that kept its steps."""
    fingerprints = []
    for rank, blocks in logs.arrays.items():
        for epoch in sorted({epoch for epoch, _ in blocks}):
            epoch_arrays = [arrays for (number, _), arrays in sorted(blocks.items()) if number == epoch]
            load = np.concatenate([arrays.load for arrays in epoch_arrays])
            proc = np.concatenate([arrays.proc for arrays in epoch_arrays])
            if len(np.unique(load)) >= _MIN_MEASURED:
                sums = (float(load.sum()), float(proc.sum()), float(load @ load), float(len(load)))
                fingerprints.append(Fingerprint(f"rank {rank} in epoch {epoch}", sums, _sketch(load), epoch))
    return tuple(fingerprints)


def _sketch(load: Seconds) -> tuple[float, ...]:
    """Return the ranks of an epoch's waits, projected on random signs and scaled to length 1; empty for unfit waits."""
    if len(load) < _MIN_STEPS or len(np.unique(load)) < _MIN_UNEQUAL * len(load):
        return ()
    wait_ranks = np.argsort(np.argsort(load[1:])).astype(np.float64)  # the first step also waits for the loader's start
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(_PROJECTIONS, len(wait_ranks)))
    projected = signs @ (wait_ranks - wait_ranks.mean())
    return tuple((projected / np.linalg.norm(projected)).tolist())


def similar_pairs(fingerprints: Sequence[Fingerprint]) -> Iterator[tuple[Fingerprint, Fingerprint, Severity]]:
    """Yield pairs of epochs with similar sketches, among the first `_MAX_SKETCHES`; `error` above `_ERROR_COSINE`."""
    sketched = [fingerprint for fingerprint in fingerprints if fingerprint.sketch][:_MAX_SKETCHES]
    if sketched:
        sketches = np.array([fingerprint.sketch for fingerprint in sketched])
        cosines = sketches @ sketches.T
        for first, second in np.argwhere(np.triu(cosines > _WARNING_COSINE, 1)).tolist():
            severity: Severity = "error" if cosines[first, second] > _ERROR_COSINE else "warning"
            yield sketched[first], sketched[second], severity


def figure_fingerprints(where: str, figures: Iterable[float], decimals: int = _DECIMALS) -> tuple[Fingerprint, ...]:
    """Return the fingerprint of figures measured together; none if fewer than 3 of them have more than `decimals`."""
    values = tuple(figures)
    measured = sum(round(value, decimals) != value for value in values)
    return (Fingerprint(where, values),) if measured >= _MIN_MEASURED else ()


def copied_pairs(fingerprints: Iterable[Fingerprint]) -> Iterator[tuple[Fingerprint, Fingerprint]]:
    """Yield pairs of fingerprints of the same measurement."""
    ordered = sorted(fingerprints, key=lambda fingerprint: (len(fingerprint.values), fingerprint.values))
    for index, first in enumerate(ordered):
        for second in map(ordered.__getitem__, range(index + 1, len(ordered))):  # a slice would copy the rest each time
            if len(first.values) != len(second.values) or not _same(first.values[0], second.values[0]):
                break  # as they are sorted, no later one matches
            if all(map(_same, first.values, second.values)):
                yield first, second

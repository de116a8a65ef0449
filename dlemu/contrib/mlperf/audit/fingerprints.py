"""Fingerprints of measurements, to find copied ones: two independent measurements never have the same.

A fingerprint consists of sums of a rank's times, or of a run's figures. Unlike a hash, it also recognises a copy whose
last digits were changed, or whose steps were shuffled. A sketch of the order of the steps by their waits recognises one
that was scaled, or to which noise was added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dlemu.contrib.mlperf.audit.step_files import Logs, Seconds
from dlemu.contrib.mlperf.rules.known import Severity

_MAX_COPY_DIFFERENCE = 1e-8  # relative: sums of hundreds of independently measured times differ by more
_DECIMALS = 6  # a measured number has more decimals
STAMP_DECIMALS = 3  # so has one derived from time stamps in microseconds
_MIN_MEASURED = 3
"""A list counts as measured if it has at least this many different values, or values with more decimals."""

_MIN_STEPS = 100  # of a sketch
_PROJECTIONS = 64
_MOST_COMPARED = 2_000  # sketches
_MIN_UNEQUAL = 0.9  # share of the waits that must be of different lengths: equal ones have no order
_MAX_ALIKE, _COPIED = 0.97, 0.9995
"""Cosine of two sketches, about the correlation of the waits' ranks: of copies with 2 % noise 0.98 or more, of scaled
ones 1. Of 2,775 pairs of epochs of published runs of v1.0 the closest have 0.5; chance alone gives 0.13 (standard
deviation). Where a drive is the limit, runs that read files of different sizes in one order may honestly be alike."""


@dataclass(frozen=True)
class Fingerprint:
    """Fingerprint of one measurement."""

    where: str
    sums: tuple[float, ...]
    sketch: tuple[float, ...] = ()
    """Random projections of the steps' ranks by their waits, of length 1; empty for fewer than `_MIN_STEPS`."""
    epoch: int = 0


def step_fingerprints(logs: Logs) -> tuple[Fingerprint, ...]:
    """Return a fingerprint of each epoch of each rank that kept its steps."""
    fingerprints = []
    for rank, blocks in logs.arrays.items():
        for epoch in sorted({epoch for epoch, _ in blocks}):
            of_epoch = [arrays for (number, _), arrays in sorted(blocks.items()) if number == epoch]
            load = np.concatenate([arrays.load for arrays in of_epoch])
            proc = np.concatenate([arrays.proc for arrays in of_epoch])
            if len(np.unique(load)) >= _MIN_MEASURED:
                sums = (float(load.sum()), float(proc.sum()), float(load @ load), float(len(load)))
                fingerprints.append(Fingerprint(f"rank {rank} in epoch {epoch}", sums, _sketch(load), epoch))
    return tuple(fingerprints)


def _sketch(load: Seconds) -> tuple[float, ...]:
    if len(load) < _MIN_STEPS or len(np.unique(load)) < _MIN_UNEQUAL * len(load):
        return ()
    order = np.argsort(np.argsort(load[1:])).astype(np.float64)  # the first step also starts the loader
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(_PROJECTIONS, len(order)))
    projected = signs @ (order - order.mean())
    return tuple((projected / np.linalg.norm(projected)).tolist())


def alike_pairs(fingerprints: Sequence[Fingerprint]) -> Iterator[tuple[Fingerprint, Fingerprint, Severity]]:
    """Yield pairs whose steps waited in nearly the same order: an `error` if in the very same, else a `warning`."""
    sketched = [fingerprint for fingerprint in fingerprints if fingerprint.sketch][:_MOST_COMPARED]
    if sketched:
        sketches = np.array([fingerprint.sketch for fingerprint in sketched])
        cosines = sketches @ sketches.T
        for first, second in np.argwhere(np.triu(cosines > _MAX_ALIKE, 1)).tolist():
            severity: Severity = "error" if cosines[first, second] > _COPIED else "warning"
            yield sketched[first], sketched[second], severity


def figure_fingerprints(where: str, figures: Iterable[float], decimals: int = _DECIMALS) -> tuple[Fingerprint, ...]:
    """Return a fingerprint of figures measured together; none if fewer than 3 have more decimals than `decimals`."""
    sums = tuple(figures)
    measured = sum(round(figure, decimals) != figure for figure in sums)
    return (Fingerprint(where, sums),) if measured >= _MIN_MEASURED else ()


def copied_pairs(fingerprints: Iterable[Fingerprint]) -> Iterator[tuple[Fingerprint, Fingerprint]]:
    """Yield pairs of fingerprints of the same measurement."""
    ordered = sorted(fingerprints, key=lambda fingerprint: (len(fingerprint.sums), fingerprint.sums))
    for index, first in enumerate(ordered):
        for second in ordered[index + 1 :]:
            if len(first.sums) != len(second.sums) or not _same(first.sums[0], second.sums[0]):
                break
            if all(map(_same, first.sums, second.sums)):
                yield first, second


def _same(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=_MAX_COPY_DIFFERENCE)

"""What no two measurements share: the sums of a rank's waits and steps, of a run's figures, of its checkpoints.

Sums are compared, not digests: a copy whose numbers were changed in the last digits still has its original's sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from dlemu.mlperf.audit.step_files import Logs

_COPIED = 1e-8
"""Relative: nearer than that the sums of hundreds of measured times do not lie."""
_DIGITS, STAMP_DIGITS = 6, 3
"""A measured number has more digits than this; one that comes of time stamps ends at microseconds."""
_VARIED = 3
"""So many different values make a list a measured one."""


@dataclass(frozen=True)
class Print:
    """One measurement."""

    where: str
    sums: tuple[float, ...]


def step_prints(logs: Logs) -> tuple[Print, ...]:
    """Return a print of each epoch of each rank that kept its steps."""
    prints = []
    for rank, blocks in logs.arrays.items():
        for epoch in sorted({epoch for epoch, _ in blocks}):
            own = [arrays for (number, _), arrays in sorted(blocks.items()) if number == epoch]
            load, proc = (np.concatenate([getattr(arrays, name) for arrays in own]) for name in ("load", "proc"))
            if len(np.unique(load)) >= _VARIED:
                sums = (float(load.sum()), float(proc.sum()), float(load @ load), float(len(load)))
                prints.append(Print(f"rank {rank} in epoch {epoch}", sums))
    return tuple(prints)


def figure_prints(where: str, figures: Iterable[float], digits: int = _DIGITS) -> tuple[Print, ...]:
    """Return a print of numbers that were measured together; none of fewer than three with a measurement's digits."""
    sums = tuple(figures)
    return (Print(where, sums),) if sum(round(figure, digits) != figure for figure in sums) >= _VARIED else ()


def twins(prints: Iterable[Print]) -> Iterator[tuple[Print, Print]]:
    """Yield pairs of prints that are one measurement."""
    ordered = sorted(prints, key=lambda one: (len(one.sums), one.sums))
    for index, first in enumerate(ordered):
        for second in ordered[index + 1 :]:
            if len(first.sums) != len(second.sums) or not _near(first.sums[0], second.sums[0]):
                break
            if all(map(_near, first.sums, second.sums)):
                yield first, second


def _near(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=_COPIED)

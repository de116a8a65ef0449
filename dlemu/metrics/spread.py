"""A metric of a whole run together with its values per epoch and per rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dlemu.metrics.rows import Rows, StepTable, in_order


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A metric of the whole run, and of each epoch; None if there is no such number."""

    mean: float | None
    per_epoch: tuple[float | None, ...] = ()
    """In order. A last epoch that was stopped before a step of it counted has no value in figures of counted steps."""


@dataclass(frozen=True, kw_only=True)
class Spread(Mean):
    """`Mean` with the population standard deviation over epochs (divided by their number)."""

    std: float | None = None


@dataclass(frozen=True, kw_only=True)
class RankSpread(Spread):
    """`Spread` with a value for each rank."""

    per_rank: tuple[float | None, ...] = ()


Measure = Callable[[StepTable], float]
"""Computes a metric from some steps; NaN if there is none."""


def pooled(rows: Rows, measure: Measure) -> RankSpread:
    """Return the measure of all rows together (so longer epochs weigh more), per epoch and per rank."""
    table = in_order(rows)
    mean = measure(table)  # first: it goes rank by rank, and keeps the sums that the others need
    per_epoch = [measure(part) for part in table.by_epoch]
    return RankSpread(
        mean=known(mean),
        per_epoch=all_known(per_epoch),
        std=known(float(np.std(per_epoch))) if per_epoch else 0.0,
        per_rank=all_known(measure(part) for part in table.by_rank),
    )


def averaged(rows: Rows, measure: Measure) -> Spread:
    """Return the measure per epoch, and the unweighted mean over epochs, as DLIO reports it."""
    return over_epochs([measure(part) for part in by_epoch(rows)])


def over_epochs(per_epoch: Sequence[float]) -> Spread:
    """Return values per epoch with their unweighted mean."""
    return Spread(
        mean=known(float(np.mean(per_epoch))), per_epoch=all_known(per_epoch), std=known(float(np.std(per_epoch)))
    )


def by_epoch(rows: Rows) -> list[StepTable]:
    """Return the rows of each epoch."""
    return in_order(rows).by_epoch


def known(value: float) -> float | None:
    """Return the value, or None for NaN and infinity: then there is no such number."""
    return float(value) if math.isfinite(value) else None


def all_known(values: Iterable[float]) -> tuple[float | None, ...]:
    """Return the values, with None for NaN and infinity."""
    return tuple(known(value) for value in values)

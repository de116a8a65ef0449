"""A figure of a whole run beside those of its epochs and ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from dlemu.metrics.rows import Rows, StepTable, in_order


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A figure of the whole run and of each epoch; None where there is none."""

    mean: float | None
    per_epoch: tuple[float | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Spread(Mean):
    """The same with the population's standard deviation over epochs."""

    std: float | None = None


@dataclass(frozen=True, kw_only=True)
class RankSpread(Spread):
    """The same with a figure of each rank."""

    per_rank: tuple[float | None, ...] = ()


Measure = Callable[[StepTable], float]


def pooled(rows: Rows, measure: Measure) -> RankSpread:
    """Return the measure over all rows together (so that epochs weigh by their time), over epochs and over ranks."""
    table = in_order(rows)
    per_epoch = [measure(part) for part in table.by_epoch]
    return RankSpread(
        mean=known(measure(table)),
        per_epoch=all_known(per_epoch),
        std=known(float(np.std(per_epoch))) if per_epoch else 0.0,
        per_rank=all_known(measure(part) for part in table.by_rank),
    )


def averaged(rows: Rows, measure: Measure) -> Spread:
    """Return the plain mean of the measure over epochs, as DLIO has it, and its parts."""
    per_epoch = [measure(part) for part in by_epoch(rows)]
    return Spread(
        mean=known(float(np.mean(per_epoch))), per_epoch=all_known(per_epoch), std=known(float(np.std(per_epoch)))
    )


def by_epoch(rows: Rows) -> list[StepTable]:
    """Return the rows of each epoch."""
    return in_order(rows).by_epoch


def known(value: float) -> float | None:
    """Return None for NaN and infinity, which say that there is no such number."""
    return float(value) if math.isfinite(value) else None


def all_known(values: Iterable[float]) -> tuple[float | None, ...]:
    """Return the values, None for those that do not exist."""
    return tuple(known(value) for value in values)

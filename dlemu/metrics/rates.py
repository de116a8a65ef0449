"""Metrics of a run and of its epochs, from step rows; a block is the steps between two checkpoints or evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from datagen.quantiles import Percentiles
from dlemu.metrics.rows import Rows, StepTable, in_order


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A metric of the whole run, and of each epoch; None if there is no such number."""

    mean: float | None
    per_epoch: tuple[float | None, ...] = ()
    """In order. A last epoch that was stopped before a step of it counted has no value in figures of counted steps."""


Measure = Callable[[StepTable], float]
"""Computes a metric from some steps; NaN if there is none."""


def pooled(rows: Rows, measure: Measure) -> Mean:
    """Return the measure of all rows together (so longer epochs weigh more), and per epoch."""
    table = in_order(rows)
    return Mean(mean=known(measure(table)), per_epoch=all_known(map(measure, table.by_epoch)))


def over_epochs(per_epoch: Sequence[float]) -> Mean:
    """Return values per epoch with their unweighted mean, as DLIO reports it."""
    return Mean(mean=known(float(np.mean(per_epoch))), per_epoch=all_known(per_epoch))


def averaged(rows: Rows, measure: Measure) -> Mean:
    """Return the measure per epoch, and its unweighted mean."""
    return over_epochs(list(map(measure, by_epoch(rows))))


def by_epoch(rows: Rows) -> list[StepTable]:
    """Return the rows of each epoch."""
    return in_order(rows).by_epoch


def known(value: float) -> float | None:
    """Return the value, or None for NaN and infinity: then there is no such number."""
    return float(value) if math.isfinite(value) else None


def all_known(values: Iterable[float]) -> tuple[float | None, ...]:
    """Return the values, with None for NaN and infinity."""
    return tuple(known(value) for value in values)


def training_ns(rows: Rows) -> int:
    """Return the training time: the sum of all blocks from start to end of the last step, the longest of any rank."""
    ranks, first, last = in_order(rows).ends("free_ns", "wait_ns", "compute_ns", "sync_ns")
    if not len(ranks):
        return 0
    block_ns = sum(last[1:], start=last[0]) - first[0]
    begins = np.flatnonzero(np.append(True, ranks[1:] != ranks[:-1]))
    return int(np.add.reduceat(block_ns, begins).max())


def per_second(amount: float, rows: Rows) -> float:
    """Return `amount` per second of training time; NaN if that is 0."""
    elapsed_ns = training_ns(rows)
    return amount * 1e9 / elapsed_ns if elapsed_ns else math.nan


def first_batch_seconds(rows: Rows) -> float:
    """Return how long the slowest rank waited for the first batch of the epoch."""
    _, (step, wait_ns), _ = in_order(rows).ends("step", "wait_ns")
    return float(wait_ns[step == step.min()].max() / 1e9)


def percentiles_ms(values_ns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Percentiles | None:
    """Return the percentiles, in ms, of durations in ns; None for no durations."""
    if not len(values_ns):
        return None
    p50, p90, p99, maximum = (np.percentile(values_ns, (50, 90, 99, 100)) / 1e6).tolist()
    return Percentiles(p50=p50, p90=p90, p99=p99, max=maximum)

"""Where the loss went: what each step lost, and what its slowest accelerator was waiting for.

All accelerators wait for the slowest, so a step is as long as that one's wait and computation; what it waited for is
what the step lost time to (docs/metrics.md, section 5). Pure: step rows in, percent out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics.rows import (
    Columns,
    Rows,
    StepTable,
    Whole,
    add_at,
    in_order,
    raise_at,
    since_free,
    steps_of,
    sum_of,
)

PARTS = ("reading", "decoding", "queueing", "hand_over")
"""What a batch that is late was kept by, in the order in which the columns of `Steps.parts_ns` stand."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Where time of the accelerators was lost, in % of all their time."""

    first_step: float = 0.0
    """Steps that the headline leaves out, whatever they were lost to; 0 in `kept_loss_percent`."""
    reading: float = 0.0
    """A worker was opening and reading files."""
    decoding: float = 0.0
    """A worker was decoding, copying, preprocessing."""
    queueing: float = 0.0
    """No worker had begun the batch."""
    hand_over: float = 0.0
    """The batch was ready in its worker and not in the trainer's hands."""
    uneven_computation: float = 0.0
    """Draws of the computation time differ between accelerators."""

    @property
    def total(self) -> float:
        """The sum of all parts."""
        parts = (self.first_step, self.reading, self.decoding, self.queueing, self.hand_over, self.uneven_computation)
        return sum(parts)


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps of all accelerators together; every array has one entry a step. Times are summed over the accelerators."""

    epoch: Whole
    critical: Columns
    """The row of the accelerator that ended last, shape (steps,)."""
    accelerators: Whole
    """Rows of the step."""
    total_ns: Whole
    lost_ns: Whole
    """wait + sync of all accelerators; total - lost is computation."""
    uneven_ns: Whole
    """The part of `lost_ns` that the longest computation alone would have cost: draws differ."""
    parts_ns: NDArray[np.float64]
    """The rest of `lost_ns` by `PARTS`, shape (steps, 4)."""


def by_step(rows: Rows) -> Steps:
    """Return the steps that the rows of all ranks make up, in the order of epochs, blocks and steps."""
    return in_order(rows).once(_by_step)


def _by_step(table: StepTable) -> Steps:
    """Go through the rows rank by rank: the critical one has the least sync, and of equal ones the longest wait."""
    steps = steps_of(table)
    accelerators, compute, lost, longest, critical = (np.zeros(steps.count, np.int64) for _ in range(5))
    least_sync, most_wait = np.full(steps.count, np.iinfo(np.int64).max), np.full(steps.count, -1)
    for first, part, place in steps.parts:
        own_compute, wait, sync = part["compute_ns"], part["wait_ns"], part["sync_ns"]
        add_at(accelerators, place, 1)
        add_at(compute, place, own_compute)
        add_at(lost, place, wait + sync)
        raise_at(longest, place, own_compute)
        later = (sync < least_sync[place]) | ((sync == least_sync[place]) & (wait > most_wait[place]))
        at = np.flatnonzero(later) if isinstance(place, slice) else place[later]
        critical[at], least_sync[at], most_wait[at] = first + np.flatnonzero(later), sync[later], wait[later]
    uneven = np.minimum(longest * accelerators - compute, lost)
    late = table if len(steps.parts) == 1 and steps.count == len(table) else table.take(critical)
    parts = _spread(lost - uneven, wait_parts(late))
    return Steps(steps.keys[0], late, accelerators, compute + lost, lost, uneven, parts)


def wait_parts(rows: Columns) -> Whole:
    """Return what the accelerator of each row waited for, in ns by `PARTS`, shape (rows, 4); a row adds up to its wait.

    Of the time from `free_ns` to the batch in hand: what came after `finished_ns`, and before the host had requested a
    batch that nobody had begun, is hand-over; what came before `started_ns` queueing; the rest is the worker's, and is
    reading and decoding in the proportion of `read_ns` to the rest of the time that the worker took for the batch.
    """
    wait = rows["wait_ns"]
    asked, started, finished = (since_free(rows, name) for name in ("asked_ns", "started_ns", "finished_ns"))
    after = np.clip(wait - finished, 0, wait)
    before = wait - after
    queued = np.clip(started, 0, before)
    unasked = np.clip(np.minimum(asked, started), 0, queued)
    working = before - queued
    took = np.maximum(finished - started, 1)
    reading = np.rint(working * np.clip(rows["read_ns"] / took, 0, 1)).astype(np.int64)
    parts: Whole = np.stack([reading, working - reading, queued - unasked, after + unasked], axis=-1)
    return parts


def loss_percent(rows: Rows, kept: Rows) -> Loss:
    """Return the shares of all accelerators' time that were lost, in percent; they add up to 100 - `au_rules`.

    `kept` are the rows that the headline counts. What the others lost is `first_step`, whatever it was lost to.
    """
    return _loss(rows, by_step(kept), slice(None))


def loss_percent_per_epoch(rows: Rows, kept: Rows) -> tuple[Loss, ...]:
    """Return the same for each epoch of the rows, in order."""
    steps, epochs = by_step(kept), in_order(rows).by_epoch
    numbers = [part.values("epoch")[0] for part in epochs]
    bounds = (np.searchsorted(steps.epoch, [number, number + 1]).tolist() for number in numbers)
    return tuple(_loss(part, steps, slice(*of)) for part, of in zip(epochs, bounds, strict=True))


def kept_loss_percent(kept: Rows) -> Loss:
    """Return the same of the rows that the headline counts: the shares add up to 100 - `au`."""
    return _loss(kept, by_step(kept), slice(None))


def _loss(rows: Rows, steps: Steps, counted: slice) -> Loss:
    """Return what some of the steps and all the other rows lost, in percent of the time of all rows."""
    total_ns = sum(sum_of(rows, name) for name in ("wait_ns", "compute_ns", "sync_ns"))
    if not total_ns:
        return Loss()
    first_step_ns = sum_of(rows, "wait_ns") + sum_of(rows, "sync_ns") - int(steps.lost_ns[counted].sum())
    reading, decoding, queueing, hand_over = (100.0 * steps.parts_ns[counted].sum(axis=0) / total_ns).tolist()
    return Loss(
        first_step=100.0 * first_step_ns / total_ns,
        reading=reading,
        decoding=decoding,
        queueing=queueing,
        hand_over=hand_over,
        uneven_computation=100.0 * float(steps.uneven_ns[counted].sum()) / total_ns,
    )


def _spread(lost_ns: Whole, parts: Whole) -> NDArray[np.float64]:
    """Share out what each step lost in proportion to the parts; without any it is the all-reduce's: hand-over."""
    whole = parts.sum(axis=-1, keepdims=True)
    nothing = np.array([0.0, 0.0, 0.0, 1.0])
    shares = np.where(whole > 0, parts / np.maximum(whole, 1), nothing)
    spread: NDArray[np.float64] = shares * lost_ns[:, np.newaxis]
    return spread

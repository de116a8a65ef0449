"""Accelerator time lost to waiting, split by what each step's slowest accelerator waited for.

All accelerators of a step wait for the slowest one, so its wait and computation are the step's length, and what it
waited for is what the whole step lost time to (docs/metrics.md, section 5). AU over counted steps is of the kept steps
only: those left when each block of steps loses its first and last ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.metrics.au import au_percent
from dlemu.metrics.rows import Columns, Rows, StepTable, Whole, in_order, steps_of, sum_of

PARTS = ("reading", "decoding", "queueing", "hand_over")
"""What delays a batch, in the order of the columns of `Steps.parts_ns`; each is explained in `Loss`."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Accelerator time lost, by reason, in % of the time of all accelerators."""

    first_step: float = 0.0
    """Time lost in the steps that the headline AU leaves out, for any reason."""
    reading: float = 0.0
    """A worker was opening or reading files."""
    decoding: float = 0.0
    """A worker was decoding, copying or preprocessing."""
    queueing: float = 0.0
    """No worker had started the batch yet."""
    hand_over: float = 0.0
    """The batch was complete in its worker, but the trainer did not have it yet."""
    uneven_computation: float = 0.0
    """Accelerators waited for another one whose computation time, a random draw, was longer."""

    @property
    def total(self) -> float:
        """The sum of all parts."""
        parts = (self.first_step, self.reading, self.decoding, self.queueing, self.hand_over, self.uneven_computation)
        return sum(parts)


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps, each of all accelerators together: arrays with one entry per step, times summed over the accelerators."""

    epoch: Whole
    critical: Columns
    """The row of the accelerator that finished the step last, shape (steps,)."""
    accelerators: Whole
    """Number of accelerators, each of which has a row for the step."""
    total_ns: Whole
    lost_ns: Whole
    """wait + sync of all accelerators; `total_ns` - `lost_ns` is computation."""
    uneven_ns: Whole
    """The part of `lost_ns` that would remain with no waits for data: computation times (random draws) differ."""
    parts_ns: NDArray[np.float64]
    """The rest of `lost_ns`, split by `PARTS`, shape (steps, 4)."""


def by_step(rows: Rows) -> Steps:
    """Combine the rows of all ranks into steps, in the order of epochs, blocks and steps."""
    return in_order(rows).once(_by_step)


def _by_step(table: StepTable) -> Steps:
    """A step's critical row is the one with the least sync; of equal ones, the longest wait."""
    steps, compute, wait, sync = steps_of(table), table["compute_ns"], table["wait_ns"], table["sync_ns"]
    accelerators, computed, lost = steps.sum(1), steps.sum(compute), steps.sum(wait + sync)
    late = table[steps.first(sync, -wait)]
    uneven = np.minimum(steps.maximum(compute) * accelerators - computed, lost)
    parts = _split(lost - uneven, wait_parts(late))
    return Steps(steps.epoch, late, accelerators, computed + lost, lost, uneven, parts)


def wait_parts(rows: Columns) -> Whole:
    """Return each row's wait split by `PARTS`, in ns, shape (rows, 4).

    Hand-over: after `finished_ns`, or before the host requested a batch not started; queueing: the rest before
    `started_ns`; reading: the share of `read_ns` in the rest; decoding: what remains.
    """
    wait, free = rows["wait_ns"], rows["free_ns"]
    requested, started, finished = (rows[name] - free for name in ("asked_ns", "started_ns", "finished_ns"))
    after = np.clip(wait - finished, 0, wait)
    before = wait - after
    queued = np.clip(started, 0, before)
    unrequested = np.clip(np.minimum(requested, started), 0, queued)
    working = before - queued
    took = np.maximum(finished - started, 1)
    reading = np.rint(working * np.clip(rows["read_ns"] / took, 0, 1)).astype(np.int64)
    parts: Whole = np.stack([reading, working - reading, queued - unrequested, after + unrequested], axis=-1)
    return parts


def loss_percent(rows: Rows, kept: Rows) -> Loss:
    """Return the loss of all rows, in % of all accelerators' time; what rows outside `kept` lost is `first_step`."""
    return _loss(rows, by_step(kept), slice(None))


def kept_loss_percent(kept: Rows) -> Loss:
    """Return the loss of the kept steps' rows, in % of their time; the parts add up to 100 - `au`."""
    return _loss(kept, by_step(kept), slice(None))


def emulated_percent(kept: Rows) -> float:
    """Return the AU of the kept steps if waits for uneven computation counted as computation; NaN for no time."""
    return au_percent(kept) + kept_loss_percent(kept).uneven_computation


def total_ns(rows: Rows) -> int:
    """Return the time of all accelerators in these rows: wait + computation + sync."""
    return sum(sum_of(rows, name) for name in ("wait_ns", "compute_ns", "sync_ns"))


def _loss(rows: Rows, steps: Steps, counted: slice) -> Loss:
    """Return the loss of the `counted` steps by reason and that of all other rows as `first_step`, in % of all rows."""
    all_ns = total_ns(rows)
    if not all_ns:
        return Loss()
    first_step_ns = sum_of(rows, "wait_ns") + sum_of(rows, "sync_ns") - int(steps.lost_ns[counted].sum())
    reading, decoding, queueing, hand_over = (100.0 * steps.parts_ns[counted].sum(axis=0) / all_ns).tolist()
    return Loss(
        first_step=100.0 * first_step_ns / all_ns,
        reading=reading,
        decoding=decoding,
        queueing=queueing,
        hand_over=hand_over,
        uneven_computation=100.0 * float(steps.uneven_ns[counted].sum()) / all_ns,
    )


def _split(lost_ns: Whole, parts: Whole) -> NDArray[np.float64]:
    """Split each step's loss in proportion to its wait's parts; without a wait it is the all-reduce's: hand-over."""
    whole = parts.sum(axis=-1, keepdims=True)
    nothing = np.array([0.0, 0.0, 0.0, 1.0])
    shares = np.where(whole > 0, parts / np.maximum(whole, 1), nothing)
    split: NDArray[np.float64] = shares * lost_ns[:, np.newaxis]
    return split

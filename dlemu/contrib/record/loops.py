"""Finds the training loop in a trainer's rows, and the times of its steps.

A pass is one iteration over a DataLoader. Each step of a pass is a wait (from the request of a batch to its delivery)
and a body (from the delivery to the next request), in which the trainer computes.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.contrib.record.rows import Batch, Over, Pass, ProcessRows

READY_SECONDS = 0.001
READY_SHARE = 0.05
"""A batch was ready if the wait was at most 1 ms (for the transfer) or 5 % of the median body, whichever is longer."""


@dataclass(frozen=True)
class Loop:
    """Measurements of one trainer's batches, without warm-up, in order; times in s, arrays of shape (batches,)."""

    rows: ProcessRows
    passes: tuple[Pass, ...]
    interleaved: bool
    """Passes overlap: several loaders feed the training at once."""
    wait: NDArray[np.float64]
    body: NDArray[np.float64]
    queue: NDArray[np.float64]
    """Time within the body in which the trainer was runnable without a core; `wait_queue`: the same within the wait."""
    wait_queue: NDArray[np.float64]
    taking: NDArray[np.float64]
    """CPU time of the trainer within the wait: receiving a batch from a worker."""
    computation: NDArray[np.float64]
    """Compute time, measured by events on the accelerator; without them, the body minus `queue`."""
    cpu: NDArray[np.float64]
    """CPU time of the trainer within the body."""
    by_device: bool
    ahead: bool
    """Batches are requested by another thread than the one that steps the optimizer: it reads ahead."""
    drained: float | None
    """Share of the steps at whose end the accelerator was idle; None without an accelerator."""
    begin_ns: int
    end_ns: int
    accumulation: int

    @property
    def seconds(self) -> float:
        return float((self.wait + self.body).sum())

    def groups(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of each group of batches that share an optimizer step, as some loops request them at once."""
        size = self.accumulation
        grouped = len(values) // size * size
        return values if size == 1 or grouped == 0 else values[:grouped].reshape(-1, size).mean(axis=1)

    def ready(self) -> NDArray[np.bool_]:
        """Return for each group of `groups` whether its batches were ready when they were requested."""
        wait, body = self.groups(self.wait - self.wait_queue - self.taking), self.groups(self.body)
        found: NDArray[np.bool_] = wait <= max(READY_SECONDS, READY_SHARE * float(np.median(body)))
        return found


def training_loop(rows: ProcessRows, skip: int) -> Loop | None:
    batches: dict[int, list[Batch]] = {one.number: [] for one in rows.passes}
    for batch in rows.batches:
        batches.setdefault(batch.number, []).append(batch)
    training = [
        one
        for one in rows.passes
        if (own := batches[one.number]) and any(own[0].t1 < step.t <= own[-1].t0 for step in rows.steps)
    ]
    in_order = sorted((batches[one.number] for one in training), key=lambda own: own[0].t0)
    unsorted: list[Batch | Over] = [*rows.overs, *rows.batches]
    requests = sorted(unsorted, key=lambda one: one.t0)
    request_times = [one.t0 for one in requests]
    counted = _counted(training, in_order, skip)
    places = [bisect.bisect_left(request_times, max(batch.t1, batch.t0 + 1)) for batch in counted]  # the next ones
    steps = [(batch, requests[at]) for batch, at in zip(counted, places, strict=True) if at < len(requests)]
    device = {one.serial: one for one in rows.devices}
    by_device = sum(batch.serial in device for batch, _ in steps) > len(steps) / 2
    if by_device:
        steps = [(batch, following) for batch, following in steps if batch.serial in device]
    if not steps:
        return None
    kept = [batch for batch, _ in steps]
    trainers = {step.thread for step in rows.steps}
    ahead = sum(batch.thread not in trainers for batch in kept) > len(kept) / 2
    wait = _seconds(batch.t1 - batch.t0 for batch in kept)
    saves = [
        sum(save.t1 - save.t0 for save in rows.saves if one.t1 <= save.t0 and save.t1 <= two.t0) for one, two in steps
    ]
    body = _seconds(two.t0 - one.t1 - saved for (one, two), saved in zip(steps, saves, strict=True))
    queue = np.minimum(_seconds(following.queue0 - batch.queue1 for batch, following in steps), body)
    cpu = _seconds(following.cpu0 - batch.cpu1 for batch, following in steps)
    wait_queue = np.minimum(_seconds(batch.queue1 - batch.queue0 for batch in kept), wait)
    taking = np.zeros(len(kept))
    if training[0].workers:  # loading is in other processes: this one's CPU time while it waits is the trainer's
        taking = np.minimum(_seconds(batch.cpu1 - batch.cpu0 for batch in kept), wait - wait_queue)
    if ahead or by_device:  # the thread that requests batches does not compute
        queue, wait_queue, taking = (np.zeros(len(kept)) for _ in range(3))
    computation = body - queue
    if by_device:
        computation = np.array([device[batch.serial].ms for batch in kept]) / 1e3
        waited = np.array([device[batch.serial].waited_ms for batch in kept]) / 1e3
        took = wait + body
        wait = np.where(waited >= 0, np.minimum(waited, took), wait)  # negative: not known
        body = took - wait
    drained = [batch.drained for batch in kept if batch.drained is not None]
    return Loop(
        rows=rows,
        passes=tuple(training),
        interleaved=any(later[0].t0 < one[-1].t1 for one, later in itertools.pairwise(in_order)),
        wait=wait,
        body=body,
        queue=queue,
        wait_queue=wait_queue,
        taking=taking,
        computation=computation,
        cpu=cpu,
        by_device=by_device,
        ahead=ahead,
        drained=float(np.mean(drained)) if drained else None,
        begin_ns=kept[0].t0,
        end_ns=kept[-1].t1,
        accumulation=_accumulation(rows, in_order),
    )


def _seconds(ns: Iterable[int]) -> NDArray[np.float64]:
    return np.array([max(0, value) for value in ns], float) / 1e9


def _counted(training: Sequence[Pass], in_order: Sequence[Sequence[Batch]], skip: int) -> list[Batch]:
    """Return the batches to measure: no warm-up and, in passes long enough, none that were prefetched at the start."""
    counted: list[Batch] = []
    leads = {one.number: one.workers * (one.prefetch or 2) for one in training}
    for place, own in enumerate(in_order):
        kept, lead = own[skip if place == 0 else 0 :], leads[own[0].number]
        counted += kept[lead:] if len(kept) > 3 * lead else kept
    return counted


def _accumulation(rows: ProcessRows, turns: Sequence[Sequence[Batch]]) -> int:
    """Return how many batches share an optimizer step; several optimizers that step together count as one."""
    steps = sorted(step.t for step in rows.steps)
    taken = groups = 0
    for batches in turns:
        taken += len(batches)
        groups += 1 + sum(
            bisect.bisect(steps, following.t0) > bisect.bisect(steps, one.t1)
            for one, following in itertools.pairwise(batches)
        )
    return max(1, round(taken / groups))

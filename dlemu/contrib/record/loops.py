"""Finds the training loop in a trainer's rows, and the times of its steps.

A pass is one iteration over a DataLoader. Each step of a pass is a wait (from the request of a batch to its delivery)
and a body (from the delivery to the next request), in which the trainer computes.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.contrib.record.rows import Batch, Pass, PassEnd, ProcessRows

READY_SECONDS = 0.001  # A batch was ready if the wait was no longer than this, in which it was only transferred,
READY_SHARE = 0.05  # or no longer than this share of the median body.
_IDLE_SHARE = 0.8  # Training is synchronous if the accelerator was idle at the end of at least this share of steps.
Steps = list[tuple[Batch, Batch | PassEnd]]  # each batch with the trainer's next request, which ends the body


@dataclass(frozen=True)
class Loop:
    """Measurements of one trainer's batches after the warm-up, in order; times in s, arrays of shape (batches,)."""

    rows: ProcessRows
    passes: tuple[Pass, ...]
    interleaved: bool  # whether passes overlap: several loaders feed the training at once
    wait: NDArray[np.float64]
    body: NDArray[np.float64]
    queue: NDArray[np.float64]  # time within the body in which the trainer was runnable without a core
    wait_queue: NDArray[np.float64]  # the same within the wait
    receive_cpu: NDArray[np.float64]  # CPU time of the trainer within the wait: receiving a batch from a worker
    computation: NDArray[np.float64]  # compute time by events on the accelerator; without them, the body minus `queue`
    cpu: NDArray[np.float64]  # CPU time of the trainer within the body
    by_device: bool  # whether events on the accelerator gave `computation`
    reads_ahead: bool  # whether a thread other than the one that steps the optimizer requests the batches
    is_synchronous: bool  # whether the accelerator has mostly computed a batch before the next is requested
    begin_ns: int
    end_ns: int
    accumulation: int  # batches per optimizer step

    def group_means(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of each group of batches that share an optimizer step, as some loops request them at once."""
        size = self.accumulation
        grouped = len(values) // size * size
        return values if size == 1 or grouped == 0 else values[:grouped].reshape(-1, size).mean(axis=1)

    def ready(self) -> NDArray[np.bool_]:
        """Return an array (groups,): whether the batches of each group were ready when the trainer requested them."""
        wait, body = self.group_means(self.wait - self.wait_queue - self.receive_cpu), self.group_means(self.body)
        is_ready: NDArray[np.bool_] = wait <= max(READY_SECONDS, READY_SHARE * float(np.median(body)))
        return is_ready


def training_loop(rows: ProcessRows, skip: int) -> Loop | None:
    """Return the training of a process without its first `skip` batches; None if that leaves no step."""
    batches_of = defaultdict[int, list[Batch]](list)
    for batch in rows.batches:
        batches_of[batch.number].append(batch)
    training = []  # the passes in which the optimizer steps: it does not during an evaluation
    for loader_pass in rows.passes:
        pass_batches = batches_of[loader_pass.number]
        if pass_batches and any(pass_batches[0].t1 < step.t <= pass_batches[-1].t0 for step in rows.steps):
            training.append(loader_pass)
    by_pass = sorted((batches_of[loader_pass.number] for loader_pass in training), key=lambda batches: batches[0].t0)
    requests: list[Batch | PassEnd] = [*rows.pass_ends, *rows.batches]
    requests.sort(key=lambda request: request.t0)
    steps: Steps = []
    for batch in _without_warm_up(training, by_pass, skip):
        index = bisect.bisect_left(requests, max(batch.t1, batch.t0 + 1), key=lambda request: request.t0)
        if index < len(requests):
            steps.append((batch, requests[index]))
    return _loop(rows, training, by_pass, steps)


def _loop(rows: ProcessRows, passes: Sequence[Pass], by_pass: Sequence[Sequence[Batch]], steps: Steps) -> Loop | None:
    """Return the measurements of these steps, None without any; `by_pass` has the batches of each training pass."""
    device_times = {time.serial: time for time in rows.device_times}
    by_device = sum(batch.serial in device_times for batch, _ in steps) > len(steps) / 2
    if by_device:
        steps = [step for step in steps if step[0].serial in device_times]
    if not steps:
        return None
    batches = [batch for batch, _ in steps]
    trainers = {step.thread for step in rows.steps}
    reads_ahead = sum(batch.thread not in trainers for batch in batches) > len(batches) / 2
    wait = _seconds(batch.t1 - batch.t0 for batch in batches)
    body_ns = []
    for batch, request in steps:
        saves = [save for save in rows.saves if batch.t1 <= save.t0 and save.t1 <= request.t0]
        body_ns.append(request.t0 - batch.t1 - sum(save.t1 - save.t0 for save in saves))
    body = _seconds(body_ns)
    queue = np.minimum(_seconds(request.queue0 - batch.queue1 for batch, request in steps), body)
    wait_queue = np.minimum(_seconds(batch.queue1 - batch.queue0 for batch in batches), wait)
    receive_cpu = np.zeros(len(batches))
    if passes[0].workers:  # Workers load the batches, so the trainer's CPU time in a wait is for receiving a batch.
        receive_cpu = np.minimum(_seconds(batch.cpu1 - batch.cpu0 for batch in batches), wait - wait_queue)
    if reads_ahead or by_device:  # The thread that requests batches does not compute.
        queue = wait_queue = receive_cpu = np.zeros(len(batches))
    computation = body - queue
    if by_device:
        computation = np.array([device_times[batch.serial].ms for batch in batches]) / 1e3
        idle = np.array([device_times[batch.serial].waited_ms for batch in batches]) / 1e3
        step = wait + body
        wait = np.where(idle >= 0, np.minimum(idle, step), wait)  # Negative: the accelerator's idle time is unknown.
        body = step - wait
    drained = [batch.drained for batch in batches if batch.drained is not None]
    return Loop(
        rows=rows,
        passes=tuple(passes),
        interleaved=any(later[0].t0 < earlier[-1].t1 for earlier, later in itertools.pairwise(by_pass)),
        wait=wait,
        body=body,
        queue=queue,
        wait_queue=wait_queue,
        receive_cpu=receive_cpu,
        computation=computation,
        cpu=_seconds(request.cpu0 - batch.cpu1 for batch, request in steps),
        by_device=by_device,
        reads_ahead=reads_ahead,
        # Without an accelerator, the trainer computes: batches are requested meanwhile only if another thread does it.
        is_synchronous=float(np.mean(drained)) >= _IDLE_SHARE if drained else not reads_ahead,
        begin_ns=batches[0].t0,
        end_ns=batches[-1].t1,
        accumulation=_accumulation(rows, by_pass),
    )


def _seconds(ns: Iterable[int]) -> NDArray[np.float64]:
    """Return times in seconds; negative differences become 0."""
    return np.array([max(0, value) for value in ns], float) / 1e9


def _without_warm_up(training: Sequence[Pass], by_pass: Sequence[Sequence[Batch]], skip: int) -> list[Batch]:
    """Return the batches to measure: no warm-up and, in passes long enough, none that were prefetched at the start."""
    measured: list[Batch] = []
    prefetch_of = {loader_pass.number: loader_pass.workers * (loader_pass.prefetch or 2) for loader_pass in training}
    for batches in by_pass:
        after_skip, skip = batches[skip:], 0  # The warm-up is in the first pass.
        prefetched = prefetch_of[batches[0].number]  # batches that workers began to load at the pass's start
        measured += after_skip[prefetched:] if len(after_skip) > 3 * prefetched else after_skip
    return measured


def _accumulation(rows: ProcessRows, by_pass: Sequence[Sequence[Batch]]) -> int:
    """Return how many batches share an optimizer step; several optimizers that step together count as one.

    Example: steps after each 4th of 80 batches -> 20 groups of batches -> 4.
    """
    step_times = sorted(step.t for step in rows.steps)
    groups = len(by_pass)
    for batches in by_pass:
        for batch, next_batch in itertools.pairwise(batches):
            groups += bisect.bisect(step_times, next_batch.t0) > bisect.bisect(step_times, batch.t1)  # steps between
    return max(1, round(sum(map(len, by_pass)) / groups))

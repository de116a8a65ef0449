"""Finds the training loop in a trainer's rows: passes (iterations of a DataLoader) that train, batches, waits."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.studies.record.rows import Batch, Over, Pass, ProcessRows

_SHORT_BODY = 0.1
"""Without steps of an optimizer, a pass trains if its mean body is at least this share of its loader's longest."""
READY_SECONDS = 0.001
READY_SHARE = 0.05
"""A batch was ready if the wait was no longer than the larger of these: 1 ms for the transfer, or 5 % of the body."""
_REFILL = 8
"""Steps after a stall in which a thread that reads ahead refills its queue: their times do not show computation."""


@dataclass(frozen=True)
class Loop:
    """The counted batches of one trainer, in order; times in s, arrays of shape (batches,)."""

    rows: ProcessRows
    passes: tuple[Pass, ...]
    """The passes that train."""
    evaluations: int
    wait: NDArray[np.float64]
    body: NDArray[np.float64]
    """From a batch's delivery until the trainer requests the next, checkpoints left out."""
    queue: NDArray[np.float64]
    """Time within the body in which the trainer was runnable without a core; `wait_queue`: the same within the wait."""
    wait_queue: NDArray[np.float64]
    taking: NDArray[np.float64]
    """CPU time within the wait, in which the trainer receives a worker's batch."""
    computation: NDArray[np.float64]
    """Compute time by events on the accelerator; without them, the body less `queue`."""
    cpu: NDArray[np.float64]
    by_device: bool
    ahead: bool
    """Batches are requested by another thread than the optimizer's."""
    late: NDArray[np.bool_]
    """With `ahead`: one of the two threads lacked a core when the step began or ended."""
    drained: float | None
    """Share of the steps at whose end the accelerator was idle; None without an accelerator."""
    begin_ns: int
    end_ns: int
    accumulation: int

    @property
    def seconds(self) -> float:
        return float((self.wait + self.body).sum())

    def groups(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return means over the batches that share a step of the optimizer, as some loops request them all at once."""
        size = self.accumulation
        whole = len(values) // size * size
        return values if size == 1 or whole == 0 else values[:whole].reshape(-1, size).mean(axis=1)

    def ready(self) -> NDArray[np.bool_]:
        """Return, for each group, whether its batches were ready when they were requested."""
        wait, body = self.groups(self.wait - self.wait_queue - self.taking), self.groups(self.body)
        found = wait <= max(READY_SECONDS, READY_SHARE * float(np.median(body)))
        if self.ahead:
            since = np.zeros(len(found), int)
            for place in range(1, len(found)):
                since[place] = since[place - 1] + 1 if found[place] else 0
            found &= since >= _REFILL
        return found


def training_loop(rows: ProcessRows, skip: int) -> Loop | None:
    """Return the loop of a process, without its first `skip` batches (warm-up); None where it trained nothing."""
    batches: dict[int, list[Batch]] = {one.number: [] for one in rows.passes}
    for batch in rows.batches:
        batches.setdefault(batch.number, []).append(batch)
    every: list[Batch | Over] = [*rows.overs, *rows.batches]
    asked = sorted(every, key=lambda one: one.t0)
    moments = [one.t0 for one in asked]
    training = _training(rows, batches, moments)
    device = {one.serial: one for one in rows.devices}
    steps = [
        (batch, following) for batch in _counted(training, batches, skip) for following in _after(asked, moments, batch)
    ]
    by_device = sum(batch.serial in device for batch, _ in steps) > len(steps) / 2
    if by_device:
        steps = [(batch, following) for batch, following in steps if batch.serial in device]
    if not steps:
        return None
    kept = [batch for batch, _ in steps]
    ahead = _is_ahead(rows, kept)
    wait = _seconds(batch.t1 - batch.t0 for batch in kept)
    body = _seconds(following.t0 - batch.t1 - _save_ns(rows, batch.t1, following.t0) for batch, following in steps)
    queue = np.minimum(_seconds(following.queue0 - batch.queue1 for batch, following in steps), body)
    cpu = _seconds(following.cpu0 - batch.cpu1 for batch, following in steps)
    wait_queue = np.minimum(_seconds(batch.queue1 - batch.queue0 for batch in kept), wait)
    taking = np.zeros(len(kept))
    if training[0].workers:  # with worker processes, CPU time of this one while it waits is the trainer's own
        within = _seconds(batch.cpu1 - batch.cpu0 for batch in kept)
        taking = np.minimum(within, wait - wait_queue)
        cpu += within
    if ahead or by_device:  # the thread that requests batches does not compute
        queue, wait_queue, taking = (np.zeros(len(kept)) for _ in range(3))
    computation = body - queue
    if by_device:
        computation = np.array([device[batch.serial].ms for batch in kept]) / 1e3
        waited = np.array([device[batch.serial].waited_ms for batch in kept]) / 1e3
        wait, body = _device_times(wait, body, waited)
    drained = [batch.drained for batch in kept if batch.drained is not None]
    return Loop(
        rows=rows,
        passes=tuple(training),
        evaluations=len([one for one in batches.values() if one]) - len(training),
        wait=wait,
        body=body,
        queue=queue,
        wait_queue=wait_queue,
        taking=taking,
        computation=computation,
        cpu=cpu,
        by_device=by_device,
        ahead=ahead,
        late=_late(kept, body) if ahead else np.zeros(len(kept), bool),
        drained=float(np.mean(drained)) if drained else None,
        begin_ns=kept[0].t0,
        end_ns=kept[-1].t1,
        accumulation=_accumulation(rows, [batches[one.number] for one in training]),
    )


def _late(batches: Sequence[Batch], body: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the steps of a trainer that reads ahead whose length, for lack of a core, is not their compute time.

    A thread that waits for a core makes its step appear longer, and the next one shorter.
    """
    wanted = np.array([max(0, batch.main_queue) + max(0, batch.queue1) for batch in batches], float) / 1e9
    found: NDArray[np.bool_] = np.diff(wanted, prepend=wanted[:1]) > READY_SHARE * float(np.median(body))
    ends: NDArray[np.bool_] = np.append(found[1:], False)  # seen only when the next batch is delivered
    return found | ends


def _device_times(
    wait: NDArray[np.float64], body: NDArray[np.float64], waited: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return wait and body by the accelerator's waits, not the host's, which runs ahead; their sum is unchanged."""
    known = np.where(waited >= 0, np.minimum(waited, wait + body), wait)
    return known, wait + body - known


def _after(asked: Sequence[Batch | Over], moments: Sequence[int], batch: Batch) -> Sequence[Batch | Over]:
    """Return the trainer's next request; nothing where the rows end before it."""
    place = max(asked.index(batch, bisect.bisect_left(moments, batch.t0)) + 1, bisect.bisect_left(moments, batch.t1))
    return asked[place : place + 1]


def _seconds(ns: Iterable[int]) -> NDArray[np.float64]:
    return np.array([max(0, value) for value in ns], float) / 1e9


def _save_ns(rows: ProcessRows, begin: int, end: int) -> int:
    return sum(save.t1 - save.t0 for save in rows.saves if begin <= save.t0 and save.t1 <= end)


def _training(rows: ProcessRows, batches: dict[int, list[Batch]], asked: Sequence[int]) -> list[Pass]:
    """Return the passes that train: those within which an optimizer stepped.

    A job whose optimizers are not PyTorch's shows no steps. Then they are the passes of the loader whose batches, with
    gradients enabled, took longest in total, without passes that compute nothing.
    """
    passes = [one for one in rows.passes if batches[one.number]]
    steps = sorted(step.t for step in rows.steps)
    if steps:
        return [one for one in passes if _steps_within(steps, batches[one.number])]
    body: dict[int, float] = {}
    for one in passes:
        ends = [(batch.t1, bisect.bisect_left(asked, batch.t1)) for batch in batches[one.number] if batch.grad]
        body[one.number] = float(np.mean([asked[place] - at for at, place in ends if place < len(asked)] or [0]))
    total: dict[int, float] = {}
    for one in passes:
        total[one.loader] = total.get(one.loader, 0.0) + body[one.number] * len(batches[one.number])
    if not total or max(total.values()) == 0:
        return []
    chosen = max(total, key=lambda loader: total[loader])
    longest = max(body[one.number] for one in passes if one.loader == chosen)
    return [one for one in passes if one.loader == chosen and body[one.number] >= _SHORT_BODY * longest]


def _steps_within(steps: Sequence[int], batches: Sequence[Batch]) -> int:
    """Return the number of optimizer steps between the first delivery of a pass and its last request."""
    return bisect.bisect(steps, batches[-1].t0) - bisect.bisect(steps, batches[0].t1)


def _counted(training: Sequence[Pass], batches: dict[int, list[Batch]], skip: int) -> list[Batch]:
    """Return the batches that count: no warm-up and, in passes long enough, none that were read ahead at the start."""
    counted: list[Batch] = []
    for one in training:
        found = batches[one.number][skip:] if one is training[0] else batches[one.number]
        lead = one.workers * (one.prefetch or 2)
        counted += found[lead:] if len(found) > 3 * lead else found
    return counted


def _is_ahead(rows: ProcessRows, batches: Sequence[Batch]) -> bool:
    own = {step.thread for step in rows.steps} or {rows.process.pid}  # the main thread's id is the process's
    return sum(batch.thread not in own for batch in batches) > len(batches) / 2


def _accumulation(rows: ProcessRows, passes: Sequence[Sequence[Batch]]) -> int:
    """Return how many batches share a step of the optimizer; several optimizers that step together count as one."""
    steps = sorted(step.t for step in rows.steps)
    taken = groups = 0
    for batches in passes:
        taken += len(batches)
        groups += 1 + sum(
            bisect.bisect(steps, following.t0) > bisect.bisect(steps, one.t1)
            for one, following in itertools.pairwise(batches)
        )
    return max(1, round(taken / groups)) if steps else 1

"""From a trainer's rows to its training loop: which passes train, which batches count, what each waited for."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.studies.record.rows import Batch, Over, Pass, ProcessRows

_SHORT_BODY = 0.1
"""Of a loader's longest mean body: without steps of an optimizer, a pass below it computes nothing: no training."""
READY_SECONDS = 0.001
READY_SHARE = 0.05
"""A batch was ready if it was waited for no longer than these: what handing it over takes, and 5 % of the step."""
_REFILL = 8
"""Steps after a stall in which a thread that reads ahead fills its queue: how long it takes a batch says nothing."""


@dataclass(frozen=True)
class Loop:
    """The counted batches of one trainer, in order; times in s, arrays of shape (batches,)."""

    rows: ProcessRows
    passes: tuple[Pass, ...]
    """Those that train."""
    evaluations: int
    wait: NDArray[np.float64]
    body: NDArray[np.float64]
    """From a batch's delivery until the trainer requests the next, checkpoints left out."""
    queue: NDArray[np.float64]
    """Of the body: the trainer wanted a core and had none. So `wait_queue` of the wait."""
    wait_queue: NDArray[np.float64]
    taking: NDArray[np.float64]
    """Of the wait: the trainer computed, to take over what a worker had made."""
    computation: NDArray[np.float64]
    """The body on the accelerator where its events show, else on a host with a core for it."""
    cpu: NDArray[np.float64]
    by_device: bool
    ahead: bool
    """Another thread than that of the optimizer requests batches."""
    late: NDArray[np.bool_]
    """With `ahead`: the host had no core for one of the two when the step began or ended."""
    drained: float | None
    """Share of the steps at whose end the accelerator had nothing left to do; None without one."""
    begin_ns: int
    end_ns: int
    accumulation: int

    @property
    def seconds(self) -> float:
        return float((self.wait + self.body).sum())

    def groups(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of each group of batches that share an optimizer's step: some loops request them at once."""
        size = self.accumulation
        whole = len(values) // size * size
        return values if size == 1 or whole == 0 else values[:whole].reshape(-1, size).mean(axis=1)

    def ready(self) -> NDArray[np.bool_]:
        """Say of each group whether its batches were ready when they were requested."""
        wait, body = self.groups(self.wait - self.wait_queue - self.taking), self.groups(self.body)
        found = wait <= max(READY_SECONDS, READY_SHARE * float(np.median(body)))
        if self.ahead:
            since = np.zeros(len(found), int)
            for place in range(1, len(found)):
                since[place] = since[place - 1] + 1 if found[place] else 0
            found &= since >= _REFILL
        return found


def training_loop(rows: ProcessRows, skip: int) -> Loop | None:
    """Return the loop of a process, its first `skip` batches left out as warm-up; None where it trained nothing."""
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
    if training[0].workers:  # what the process computes while it waits is the trainer's, too: threads of its own
        within = _seconds(batch.cpu1 - batch.cpu0 for batch in kept)
        taking = np.minimum(within, wait - wait_queue)
        cpu += within
    if ahead or by_device:  # not this thread computes
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
    """Return which steps of a trainer that reads ahead do not last as long as they compute, because of the host.

    Late by the time that its threads wanted a core: such a step seems longer, and the one after it shorter.
    """
    wanted = np.array([max(0, batch.main_queue) + max(0, batch.queue1) for batch in batches], float) / 1e9
    found: NDArray[np.bool_] = np.diff(wanted, prepend=wanted[:1]) > READY_SHARE * float(np.median(body))
    ends: NDArray[np.bool_] = np.append(found[1:], False)  # it is known when the next batch is delivered
    return found | ends


def _device_times(
    wait: NDArray[np.float64], body: NDArray[np.float64], waited: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the accelerator's wait in place of the host's, which runs ahead of it; the step stays as long."""
    known = np.where(waited >= 0, np.minimum(waited, wait + body), wait)
    return known, wait + body - known


def _after(asked: Sequence[Batch | Over], moments: Sequence[int], batch: Batch) -> Sequence[Batch | Over]:
    """Return what the trainer requested next; nothing where the rows end before."""
    place = max(asked.index(batch, bisect.bisect_left(moments, batch.t0)) + 1, bisect.bisect_left(moments, batch.t1))
    return asked[place : place + 1]


def _seconds(ns: Iterable[int]) -> NDArray[np.float64]:
    return np.array([max(0, value) for value in ns], float) / 1e9


def _save_ns(rows: ProcessRows, begin: int, end: int) -> int:
    return sum(save.t1 - save.t0 for save in rows.saves if begin <= save.t0 and save.t1 <= end)


def _training(rows: ProcessRows, batches: dict[int, list[Batch]], asked: Sequence[int]) -> list[Pass]:
    """Return the passes that train: those within which an optimizer stepped.

    A job whose optimizers are not PyTorch's has no such steps: then they are those of the loader with gradients that
    took longest, but for passes that compute nothing.
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
    """Return how many steps lie between the first delivery of a pass and its last request."""
    return bisect.bisect(steps, batches[-1].t0) - bisect.bisect(steps, batches[0].t1)


def _counted(training: Sequence[Pass], batches: dict[int, list[Batch]], skip: int) -> list[Batch]:
    """Return the batches that count: neither warm-up nor, in passes long enough, what was read ahead of their begin."""
    counted: list[Batch] = []
    for one in training:
        found = batches[one.number][skip:] if one is training[0] else batches[one.number]
        lead = one.workers * (one.prefetch or 2)
        counted += found[lead:] if len(found) > 3 * lead else found
    return counted


def _is_ahead(rows: ProcessRows, batches: Sequence[Batch]) -> bool:
    own = {step.thread for step in rows.steps} or {rows.process.pid}  # the main thread has the process's number
    return sum(batch.thread not in own for batch in batches) > len(batches) / 2


def _accumulation(rows: ProcessRows, passes: Sequence[Sequence[Batch]]) -> int:
    """Return how many batches share a step of the optimizer. Several optimizers that step together are one step."""
    steps = sorted(step.t for step in rows.steps)
    taken = groups = 0
    for batches in passes:
        taken += len(batches)
        groups += 1 + sum(
            bisect.bisect(steps, following.t0) > bisect.bisect(steps, one.t1)
            for one, following in itertools.pairwise(batches)
        )
    return max(1, round(taken / groups)) if steps else 1

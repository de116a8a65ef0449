"""Discrete-event simulation of one epoch: readers share the storage, and accelerators synchronise after each step.

All active readers share the storage's throughput equally (processor sharing: Kleinrock, Queueing Systems II, 1976,
section 4.4); its total depends on their number. So one number, `given`, is enough for all reads: the bytes that a
reader active since the start would have got. A read that begins at `given` = g ends when `given` reaches g + its bytes,
whatever begins or ends meanwhile. A heap holds the reads by that value.

Loaders and trainers behave as dlemu's own (`loop` and `prefetch` of training): a window limits the batches ready or in
the making, batches are delivered in order, and one is taken off the loader while the previous step computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class HostCosts:
    """The host's overhead, in seconds."""

    hand_over_seconds: float = 0.0005
    """From the completion of a batch in its worker until the trainer has it."""
    take_seconds: float = 0.0
    """From the trainer's request for a batch until it has it, if it is ready: receiving tensors (`reader.tensors`)."""
    between_seconds: float = 0.0
    """From the completion of a batch until its worker starts the next one."""
    epoch_start_seconds: float = 0.005
    """From the start of an epoch to its first reads."""
    step_seconds: float = 0.0005
    """From the end of a step on all accelerators until the trainer requests the next batch."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Scene:
    """One epoch of all ranks; arrays have the shape (ranks, steps)."""

    work_bytes: Floats
    """Bytes read for each batch times the read's work (`Calibration.work`): what a mean read would get in its time."""
    after_seconds: Floats
    """Time that a worker needs after reading each batch, with a core of its own."""
    compute_seconds: Floats
    rate: Floats
    """Bytes/s that 0, 1, ... readers get together, up to all workers of all ranks."""
    workers: int
    """Workers per rank; 0: the trainer itself reads each batch when it needs it."""
    window: int
    """Maximum number of batches of a rank that are ready or in the making, without those that the trainer has."""
    in_turn: bool
    """Batch k is made by worker k modulo `workers`; otherwise by any free worker."""
    synchronous: bool
    """The trainer requests a batch only after the previous step."""
    cores: float
    """Cores of all hosts, which batches that are decoded at the same time share evenly."""
    costs: HostCosts
    asleep_seconds: Floats | None = None
    """Time that a worker then sleeps, for which it needs no core; None: it does not."""


@dataclass(frozen=True, eq=False)
class EpochTimes:
    """Times of events, in seconds since the epoch's start; shape (ranks, steps), except `free`."""

    free: Floats
    """When each step began, and when the last was over: shape (steps + 1,)."""
    ready: Floats
    """When the trainer received the batch."""
    started: Floats
    read: Floats
    """When all bytes of the batch had been read."""
    finished: Floats
    """When the worker had completed the batch."""


def simulate(scene: Scene) -> EpochTimes:
    """Return when each batch was read, delivered and used: processes the events in order of time.

    Batch k of rank r has the index r * steps + k; so have its times.
    """
    ranks, steps = scene.work_bytes.shape
    shape, count = (ranks, steps), ranks * steps
    own = scene.workers == 0  # the trainer itself is the only worker
    workers, in_turn, ahead = max(1, scene.workers), scene.in_turn, not (scene.synchronous or own)
    window = 1 if own else max(workers if in_turn else 1, scene.window)
    share = [0.0, *(np.maximum(scene.rate[1:], 1e-3) / np.arange(1, len(scene.rate))).tolist()]
    work, compute = scene.work_bytes.ravel().tolist(), scene.compute_seconds.ravel().tolist()
    after = scene.after_seconds.ravel().tolist() if scene.after_seconds.any() else None
    asleep = None if scene.asleep_seconds is None else scene.asleep_seconds.ravel().tolist()
    ready, started, read, finished = ([0.0] * count for _ in range(4))
    done, requested = bytearray(count), bytearray(ranks)  # requested: the trainer waits for the rank's next batch
    free = [0.0] * (steps + 1)
    costs = scene.costs
    take_seconds, late = costs.take_seconds, costs.step_seconds
    hand_over = max(costs.hand_over_seconds, take_seconds)
    never, begun_first = math.inf, min(window, steps)
    queued = [begun_first] * ranks  # batches that workers may begin
    begun = [0] * ranks  # without `in_turn`: batches begun
    idle = [workers] * ranks  # without `in_turn`: workers that have no batch
    resting = bytearray(b"\1") * (ranks * workers)  # with `in_turn`: whether that worker has no batch
    taken, delivered = [0] * ranks, [0] * ranks
    reads: list[tuple[float, int]] = []
    making: list[tuple[float, int]] = []  # batches being decoded or preprocessed, by the value of `made` at the end
    # Moment, and -1: the step is over; -2 - rank: the rank gets a batch; -2 - ranks: all trainers request one; or a
    # batch whose worker has slept.
    timed: list[tuple[float, int]] = []
    active = 0
    now, given, rate = 0.0, 0.0, 0.0  # `rate`: growth of `given` per second
    made, pace = 0.0, 1.0  # as `given` and `rate`, for seconds of a core that a batch in the making gets
    step, waiting, latest = 0, ranks, 0.0  # of the step: ranks that have not begun it, the latest end so far
    free_at = 0.0

    def begin(batch: int) -> None:
        nonlocal active
        started[batch] = now
        active += 1
        heappush(reads, (given + work[batch], batch))

    def share_cores() -> float:
        """Return the share of a core, at most 1, that each batch in the making gets."""
        return min(1.0, scene.cores / len(making)) if making else 1.0

    def put(rank: int, number: int) -> None:
        """Queue a batch for the rank's workers."""
        queued[rank] = number + 1
        if in_turn:
            worker = rank * workers + number % workers
            if resting[worker]:
                resting[worker] = 0
                begin(rank * steps + number)
        elif idle[rank]:
            idle[rank] -= 1
            begun[rank] = number + 1
            begin(rank * steps + number)

    def finish(batch: int) -> None:
        """Have the batch delivered if its trainer waits for it; the worker begins its next one."""
        rank, number = divmod(batch, steps)
        finished[batch] = now
        done[batch] = 1
        if requested[rank] and delivered[rank] == number:
            requested[rank] = 0
            heappush(timed, (now + hand_over, -2 - rank))
        if in_turn:
            following = number + workers
            if following < queued[rank]:
                begin(rank * steps + following)
            else:
                resting[rank * workers + number % workers] = 1
        elif begun[rank] < queued[rank]:
            begin(rank * steps + begun[rank])
            begun[rank] += 1
        else:
            idle[rank] += 1

    def request_batch(rank: int) -> None:
        """Have the rank's next batch delivered once it is complete."""
        number = delivered[rank]
        if number >= steps:
            return
        batch = rank * steps + number
        if own:
            put(rank, number)
        if done[batch]:
            heappush(timed, (max(now + take_seconds, finished[batch] + hand_over), -2 - rank))
        else:
            requested[rank] = 1

    def take(rank: int) -> None:
        """Start the rank's step on a batch that is ready."""
        nonlocal waiting, latest
        batch = rank * steps + taken[rank]
        taken[rank] += 1
        ended = max(ready[batch], free_at) + compute[batch]
        if ended > latest:
            latest = ended
        waiting -= 1
        if not waiting:
            heappush(timed, (max(now, latest), -1))
        if ahead:
            request_batch(rank)

    # All workers begin, and each trainer requests its first batch.
    now = costs.epoch_start_seconds
    for rank in range(ranks):
        if own:
            queued[rank] = 0
            continue
        first = min(workers, begun_first)
        for number in range(first):
            begin(rank * steps + number)
            resting[rank * workers + number] = 0
        begun[rank], idle[rank] = first, workers - first
    for rank in range(ranks):
        request_batch(rank)
    rate = share[active]
    while step < steps:
        over = now + (reads[0][0] - given) / rate if active else never
        complete = now + (making[0][0] - made) / pace if making else never
        if timed and timed[0][0] <= over and timed[0][0] <= complete:
            moment, code = heappop(timed)
            if moment > now:
                given += (moment - now) * rate
                made += (moment - now) * pace
                now = moment
            if code == -1:  # a step is over on all accelerators
                step += 1
                free_at = free[step] = latest
                if step == steps:
                    break
                latest, waiting = 0.0, ranks
                if late:
                    heappush(timed, (now + late, -2 - ranks))
                    continue
                code = -2 - ranks
            if code == -2 - ranks:  # the trainers request their next batches
                for rank in range(ranks):
                    if delivered[rank] > step == taken[rank]:
                        take(rank)
                    elif not ahead:
                        request_batch(rank)
                rate = share[active]
                continue
            if code >= 0:
                finish(code)
                rate = share[active]
                continue
            # A trainer receives a batch.
            rank = -2 - code
            number = delivered[rank]
            ready[rank * steps + number] = now
            delivered[rank] = number + 1
            if number + window < steps and not own:
                put(rank, number + window)
            if taken[rank] == number == step and now >= free_at + (late if step else 0.0):
                take(rank)
            rate = share[active]
            continue
        if complete <= over:
            given += (complete - now) * rate
            made, batch = heappop(making)
            now, pace = complete, share_cores()
        else:
            made += (over - now) * pace
            given, batch = heappop(reads)
            now = read[batch] = over
            active -= 1
            if after is not None:
                heappush(making, (made + after[batch], batch))
                rate, pace = share[active], share_cores()
                continue
        if asleep is None:
            finish(batch)
        else:
            heappush(timed, (now + asleep[batch], batch))
        rate = share[active]
    arrays = (np.array(times).reshape(shape) for times in (ready, started, read, finished))
    return EpochTimes(np.array(free), *arrays)

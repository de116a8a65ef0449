"""One epoch, event by event: readers share the storage, batches come in order, accelerators meet after each step.

The storage is a link that all active readers share alike (processor sharing), whose speed depends on how many they are.
Since all of them get the same, one number grows with time that says how many bytes each active reader has been given
(`given`), and a read that begins at `given` = g is over when it reaches g + its bytes: one heap holds all reads, and
neither arrivals nor departures change an entry. Kleinrock, Queueing Systems II (1976), section 4.4.

What a rank's loader and trainer do is what dlemu's own do (loop.py and prefetch.py of training, the loaders): so many
batches ready or under way, one taken off the loader while the step before it computes, delivered in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class HostCosts:
    """What the host takes for itself, in seconds."""

    hand_over_seconds: float = 0.0005
    """From a batch that is complete in its worker to the trainer's hands."""
    between_seconds: float = 0.0
    """A worker's, from a batch that is complete to the next one that waits for it."""
    epoch_start_seconds: float = 0.005
    """From the start of an epoch to its first reads."""
    step_seconds: float = 0.0005
    """From the end of a step on all accelerators to the moment when the trainer requests the next batch."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Scene:
    """One epoch of all ranks; arrays have the shape (ranks, steps)."""

    app_bytes: Floats
    """Of each batch: what is read."""
    work_bytes: Floats
    """The same times what its read takes of the storage, beside the mean read of so many bytes."""
    after_seconds: Floats
    """Of each batch: what its worker does after reading, with a core of its own."""
    compute_seconds: Floats
    rate: Floats
    """Bytes/s that 0, 1, ... readers get together, up to `workers` of all ranks."""
    workers: int
    """Of each rank; 0: the trainer reads by itself, when it wants the batch."""
    window: int
    """Batches of a rank ready or under way, the trainer's own not among them."""
    in_turn: bool
    """Batch k is always made by worker k modulo `workers`; else by whoever is free."""
    synchronous: bool
    """The host needs a batch only after the step before it."""
    cores: float
    """Of all hosts: batches that are decoded at once share them evenly."""
    costs: HostCosts


@dataclass(frozen=True, eq=False)
class EpochTimes:
    """When what happened, in seconds since the epoch's start; shape (ranks, steps) but for `free`."""

    free: Floats
    """When each step began, and when the last was over: shape (steps + 1,)."""
    ready: Floats
    started: Floats
    read: Floats
    """When the batch's bytes were there."""
    finished: Floats


def simulate(scene: Scene) -> EpochTimes:
    """Return when each batch was read and used."""
    return _Epoch(scene).run()


class _Epoch:
    """The state of one epoch. Batch k of rank r has the index r * steps + k; so have its times."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        ranks, steps = scene.work_bytes.shape
        self._ranks, self._steps = ranks, steps
        self._own = scene.workers == 0  # the trainer itself is the one worker
        self._workers = max(1, scene.workers)
        self._window = 1 if self._own else max(self._workers if scene.in_turn else 1, scene.window)
        readers = np.arange(1, len(scene.rate))
        self._share = [0.0, *(np.maximum(scene.rate[1:], 1e-3) / readers).tolist()]
        self._work, self._compute = scene.work_bytes.ravel().tolist(), scene.compute_seconds.ravel().tolist()
        self._after = scene.after_seconds.ravel().tolist() if scene.after_seconds.any() else None
        count = ranks * steps
        self._ready, self._started = [0.0] * count, [0.0] * count
        self._read, self._finished = [0.0] * count, [0.0] * count
        self._done = bytearray(count)
        self._requested = bytearray(ranks)  # somebody wants the rank's next batch off the loader
        self._free = [0.0] * (steps + 1)

    def run(self) -> EpochTimes:
        """Take one event after the other."""
        scene, steps, ranks, workers = self._scene, self._steps, self._ranks, self._workers
        work, compute, after = self._work, self._compute, self._after
        ready, started, read, finished, done = self._ready, self._started, self._read, self._finished, self._done
        share, free, requested = self._share, self._free, self._requested
        costs, in_turn, ahead = scene.costs, scene.in_turn, not (scene.synchronous or self._own)
        hand_over, late = costs.hand_over_seconds, costs.step_seconds
        never, begun_first = float("inf"), min(self._window, steps)
        queued = [begun_first] * ranks  # batches that workers may begin
        begun = [0] * ranks  # of a pool: batches begun
        idle = [workers] * ranks  # of a pool: workers without work
        resting = bytearray(b"\1") * (ranks * workers)  # in turn: that worker has no work
        taken, delivered = [0] * ranks, [0] * ranks
        reads: list[tuple[float, int]] = []
        making: list[tuple[float, int]] = []  # batches that were read, and are decoded or preprocessed
        timed: list[tuple[float, int]] = []  # a code of -1: the step is over; else rank -2 - code
        active = 0
        now, given, rate = 0.0, 0.0, 0.0
        made, pace = 0.0, 1.0  # seconds of work that each of `making` has had, and in a second from now
        step, waiting, latest = 0, ranks, 0.0  # of the step: ranks that have not begun it, the latest end so far
        free_at = 0.0

        def begin(batch: int) -> None:
            nonlocal active
            started[batch] = now
            active += 1
            heappush(reads, (given + work[batch], batch))

        def share_cores() -> float:
            """Return how fast each batch in the making gets on: as fast as on a core of its own, or by its share."""
            return min(1.0, scene.cores / len(making)) if making else 1.0

        def put(rank: int, number: int) -> None:
            """Give a batch to the loader's workers."""
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

        def request_batch(rank: int) -> None:
            """Want the rank's next batch: now, when it is in the trainer's process, or once it is read."""
            number = delivered[rank]
            if number >= steps:
                return
            batch = rank * steps + number
            if self._own:
                put(rank, number)
            if done[batch]:
                heappush(timed, (max(now, finished[batch] + hand_over), -2 - rank))
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

        # The workers begin, and every rank wants its first batch.
        now = costs.epoch_start_seconds
        for rank in range(ranks):
            if self._own:
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
                if code == -2 - ranks:  # the trainers ask for their next batches
                    for rank in range(ranks):
                        if delivered[rank] > step == taken[rank]:
                            take(rank)
                        elif not ahead:
                            request_batch(rank)
                    rate = share[active]
                    continue
                # A batch comes into the trainer's hands.
                rank = -2 - code
                number = delivered[rank]
                ready[rank * steps + number] = now
                delivered[rank] = number + 1
                if number + self._window < steps and not self._own:
                    put(rank, number + self._window)
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
            rate = share[active]
        shape = ranks, steps
        arrays = (np.array(times).reshape(shape) for times in (ready, started, read, finished))
        return EpochTimes(np.array(free), *arrays)

"""Storages in virtual time, probed and trained on: what `dlemu predict` is told of one, and what it then must say.

Requests go first come, first served to servers that each take a drawn time, as a drive's channels do: not the shared
link that the model makes of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np
import pytest

from dlemu.config.schema import Workload
from dlemu.jobs.training import pattern
from dlemu.jobs.training.pattern import (
    READ_DTYPE,
    Level,
    fewest_at_full_speed,
    judge_level,
    repeat_seconds,
)
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.prediction import model_run
from dlemu.jobs.training.prediction.batches import planned_job
from dlemu.jobs.training.prediction.calibration import given_speed
from dlemu.jobs.training.prediction.event_model import EpochTimes, HostCosts, Scene
from dlemu.jobs.training.prediction.from_reads import calibrate_from_levels
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.model_run import Model, ModelRun
from dlemu.jobs.training.prediction.prediction import Prediction

COSTS = HostCosts(hand_over_seconds=0.0005, between_seconds=0.0003, epoch_start_seconds=0.005)
BETWEEN_SECONDS = 0.0003

Draw = Callable[[np.random.Generator], float]
Then = Callable[[], None]


class Clock:
    """Events in the order of their time."""

    def __init__(self) -> None:
        self.now, self._number = 0.0, 0
        self._events: list[tuple[float, int, Then]] = []

    def at(self, moment: float, then: Then) -> None:
        self._number += 1
        heappush(self._events, (moment, self._number, then))

    def run(self) -> None:
        while self._events:
            self.now, _, then = heappop(self._events)
            then()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Servers, and how long one takes for a request."""

    servers: int = 1
    mb_per_second: float = 0.0
    seconds: Draw = lambda _: 0.0
    open_seconds: float = 0.0005
    """Of the host, before each request."""


class Storage:
    """One of a kind, under way."""

    def __init__(self, kind: Kind, clock: Clock, seed: int) -> None:
        self._kind, self._clock, self._random = kind, clock, np.random.default_rng(seed)
        self._free = [0.0] * kind.servers

    def read(self, sizes: list[float], then: Then) -> None:
        """Read one request after the other."""
        if not sizes:
            then()
            return
        clock = self._clock
        clock.at(clock.now + self._kind.open_seconds, lambda: self._send(sizes, then))

    def _send(self, sizes: list[float], then: Then) -> None:
        took = self._kind.seconds(self._random)
        if self._kind.mb_per_second:
            took += sizes[0] / 1e6 / self._kind.mb_per_second
        over = max(self._clock.now, heappop(self._free)) + took
        heappush(self._free, over)
        self._clock.at(over, lambda: self.read(sizes[1:], then))


def probed(kind: Kind, job: TrainingJob, again: int, seed: int) -> list[Level]:
    """Return what the levels of `dlemu predict`'s probe would be."""
    samples, size = job.workload.reader.batch_size, int(job.workload.dataset.record_length_bytes)
    levels: list[Level] = []
    for readers in (1, 2, 4, 8, 16):
        levels.append(_level(kind, readers, samples, size, pattern.LEVEL_SECONDS, seed + readers))
    readers = again or fewest_at_full_speed(levels)
    nearest = min(levels, key=lambda level: abs(level.readers - readers))
    for turn in range(pattern.REPEATS):
        seconds = min(40.0, repeat_seconds(nearest, readers))
        levels.append(_level(kind, readers, samples, size, seconds, seed + 100 + turn))
    return levels


def _level(kind: Kind, readers: int, samples: int, size: int, seconds: float, seed: int) -> Level:
    clock = Clock()
    storage = Storage(kind, clock, seed)
    rows: list[tuple[int, ...]] = []

    def begin(reader: int) -> None:
        began = clock.now
        if began > pattern.SETTLE_SECONDS + seconds:
            return

        def end() -> None:
            rows.append((round(began * 1e9), round(clock.now * 1e9), samples * size, samples, 0, 0, reader))
            clock.at(clock.now + BETWEEN_SECONDS, lambda: begin(reader))

        storage.read([float(size)] * samples, end)

    for reader in range(readers):
        clock.at(1e-4 * reader, lambda reader=reader: begin(reader))  # type: ignore[misc]  # a default binds it now
    clock.run()
    return judge_level(np.array(rows, READ_DTYPE), readers, 0, seconds)


class _Epoch:
    """An epoch of a pytorch loader's ranks on such a storage."""

    def __init__(self, scene: Scene, kind: Kind, workload: Workload, seed: int) -> None:
        self._scene, self._costs, self._clock = scene, scene.costs, Clock()
        self._storage = Storage(kind, self._clock, seed)
        self._sizes = [float(workload.dataset.record_length_bytes)] * workload.reader.batch_size
        ranks, steps = scene.work_bytes.shape
        self._ranks, self._steps = ranks, steps
        self._queues: list[list[list[int]]] = [[[] for _ in range(scene.workers)] for _ in range(ranks)]
        self._busy = np.zeros((ranks, scene.workers), bool)
        self._times = {name: np.full((ranks, steps), -1.0) for name in ("ready", "started", "finished")}
        self._free, self._step = np.zeros(steps + 1), 0
        self._delivered, self._taken = [0] * ranks, [0] * ranks
        self._wanted = [False] * ranks
        self._ends: list[float] = []

    def run(self) -> EpochTimes:
        def begin() -> None:
            for batch in range(self._scene.window):
                for rank in range(self._ranks):
                    self._put(rank, batch)
            for rank in range(self._ranks):
                self._ask(rank)

        self._clock.at(self._costs.epoch_start_seconds, begin)
        self._clock.run()
        times = self._times
        return EpochTimes(self._free, times["ready"], times["started"], times["finished"], times["finished"])

    def _put(self, rank: int, batch: int) -> None:
        if batch < self._steps:
            worker = batch % self._scene.workers
            self._queues[rank][worker].append(batch)
            self._go(rank, worker)

    def _go(self, rank: int, worker: int) -> None:
        if self._busy[rank, worker] or not self._queues[rank][worker]:
            return
        batch = self._queues[rank][worker].pop(0)
        self._busy[rank, worker] = True
        self._times["started"][rank, batch] = self._clock.now

        def end() -> None:
            self._times["finished"][rank, batch] = self._clock.now
            if self._wanted[rank] and self._delivered[rank] == batch:
                self._wanted[rank] = False
                self._clock.at(self._clock.now + self._costs.hand_over_seconds, lambda: self._hand(rank))
            self._clock.at(self._clock.now + BETWEEN_SECONDS, rest)

        def rest() -> None:
            self._busy[rank, worker] = False
            self._go(rank, worker)

        self._storage.read(self._sizes, end)

    def _ask(self, rank: int) -> None:
        batch = self._delivered[rank]
        if batch >= self._steps:
            return
        if self._times["finished"][rank, batch] >= 0:
            self._clock.at(self._clock.now + self._costs.hand_over_seconds, lambda: self._hand(rank))
        else:
            self._wanted[rank] = True

    def _hand(self, rank: int) -> None:
        batch = self._delivered[rank]
        self._times["ready"][rank, batch] = self._clock.now
        self._delivered[rank] += 1
        self._put(rank, batch + self._scene.window)
        if self._taken[rank] == batch == self._step:
            self._take(rank)

    def _take(self, rank: int) -> None:
        batch = self._taken[rank]
        self._taken[rank] += 1
        begin = max(self._times["ready"][rank, batch], self._free[self._step])
        self._ends.append(begin + self._scene.compute_seconds[rank, batch])
        if len(self._ends) == self._ranks:
            self._clock.at(max(self._clock.now, *self._ends, 0.0), self._over)
        self._ask(rank)

    def _over(self) -> None:
        self._step += 1
        self._free[self._step], self._ends = max(self._ends), []
        for rank in range(self._ranks):
            if self._delivered[rank] > self._step == self._taken[rank]:
                self._take(rank)


def trained(kind: Kind, workload: Workload, ranks: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> ModelRun:
    """Return what a run on such a storage gives."""
    costs = HostCosts(hand_over_seconds=COSTS.hand_over_seconds, epoch_start_seconds=COSTS.epoch_start_seconds)

    def simulate(scene: Scene) -> EpochTimes:
        return _Epoch(replace(scene, costs=costs), kind, workload, seed).run()

    with monkeypatch.context() as patch:
        patch.setattr(model_run, "simulate", simulate)
        return Model(workload, given_speed(1.0, cores=2)).run(ranks)


def predicted(kind: Kind, workload: Workload, ranks: int, seed: int) -> Prediction:
    """Return what is predicted of so many ranks on such a storage, from a probe of it."""
    job = planned_job(workload, 1)
    levels = probed(kind, job, ranks * workload.reader.read_threads, seed)
    return predict(workload, calibrate_from_levels(job, levels, COSTS, cores=2, folder="virtual"), ranks=ranks)

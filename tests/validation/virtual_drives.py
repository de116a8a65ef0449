"""Drives in virtual time, and training on them: theory for what a noisy machine can't show (docs/validation.md).

It shares no code with `dlemu predict`: there readers share one link; here each request of each reader waits in one
queue for a channel of the drive, which serves it as the drive would.
No time passes and nothing is read, so a run takes a fraction of a second and comes out the same on every machine.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from dlemu.jobs.training.steplog import STEP_DTYPE, StepRows

MB = 1e6
START_SECONDS = 10.0
"""When the first epoch begins."""


class Request(NamedTuple):
    """What a channel of a drive is asked for."""

    at_seconds: float
    """When it is served."""
    size_bytes: float


Serve = Callable[[Request, np.random.Generator], float]
"""Returns how long one request takes."""


@dataclass(frozen=True, kw_only=True)
class Drive:
    """So many channels, each of which serves one request at a time."""

    channels: int
    serve: Serve


def lognormal(channels: int, mean_seconds: float, sigma: float, grows: tuple[float, float] = (math.inf, 1.0)) -> Drive:
    """Return a drive with tails: latencies are lognormal; from a moment on they are so many times as long."""
    from_seconds, times = grows
    location = math.log(mean_seconds) - sigma**2 / 2

    def serve(request: Request, random: np.random.Generator) -> float:
        factor = times if request.at_seconds >= from_seconds else 1.0
        return factor * random.lognormal(location, sigma)

    return Drive(channels=channels, serve=serve)


def link(mb_per_second: Callable[[Request], float], spread: float = 0.05) -> Drive:
    """Return a drive that gives so much at each moment, with a little chance."""

    def serve(request: Request, random: np.random.Generator) -> float:
        return max(0.5, random.normal(1.0, spread)) * request.size_bytes / MB / mb_per_second(request)

    return Drive(channels=1, serve=serve)


@dataclass(frozen=True, kw_only=True)
class Training:
    """What trains on it. Batches come in order; batch k is made by worker k modulo their number, as PyTorch's are."""

    ranks: int = 1
    workers: int
    """Of each rank."""
    ahead: int = 2
    """Batches a worker may have ready or under way."""
    steps: int
    epochs: int = 1
    step_seconds: float
    batch_bytes: float
    requests: int = 1
    """Of a batch, one after the other."""
    samples: int = 4


def train(drive: Drive, job: Training, seed: int = 0) -> StepRows:
    """Return the step log of such a run."""
    random = np.random.default_rng(seed)
    parts, start = [], START_SECONDS
    for epoch in range(1, job.epochs + 1):
        ran = _Epoch(drive, job, epoch, start, random)
        parts.append(ran.rows())
        start = ran.over + 0.01
    rows: StepRows = np.concatenate(parts)
    return rows


class _Epoch:
    """One epoch, event by event."""

    def __init__(self, drive: Drive, job: Training, epoch: int, start: float, random: np.random.Generator) -> None:
        self._drive, self._job, self._epoch, self._random, self._start = drive, job, epoch, random, start
        shape = job.ranks, job.steps
        self._began, self._finished, self._taken = (np.full(shape, math.inf) for _ in range(3))
        self._waiting: deque[tuple[int, int, int]] = deque()  # rank, batch, requests left
        self._idle_channels = drive.channels
        self._events: list[tuple[float, int, tuple[int, int, int]]] = []
        self._number = itertools.count()
        self._queues: dict[tuple[int, int], deque[int]] = {
            (rank, worker): deque() for rank in range(job.ranks) for worker in range(job.workers)
        }
        self._idle = set(self._queues)
        self._next = [0] * job.ranks  # the batch that the trainer takes next
        self._called = [0.0] * job.ranks  # when it looks again
        self._free = np.full(job.steps + 1, math.inf)
        self._free[0] = start
        self._now = start
        for batch in range(min(job.steps, job.workers * job.ahead)):
            for rank in range(job.ranks):
                self._put(rank, batch)
        self._serve()
        while self._events:
            self._now, _, (rank, batch, left) = heappop(self._events)
            if left >= 0:
                self._served(rank, batch, left)
            self._take_all()
            self._serve()
        self.over = float(self._free[-1])

    def _put(self, rank: int, batch: int) -> None:
        place = rank, batch % self._job.workers
        self._queues[place].append(batch)
        self._begin(place)

    def _begin(self, place: tuple[int, int]) -> None:
        if place in self._idle and self._queues[place]:
            self._idle.discard(place)
            batch = self._queues[place].popleft()
            self._began[place[0], batch] = self._now
            self._waiting.append((place[0], batch, self._job.requests))

    def _serve(self) -> None:
        while self._waiting and self._idle_channels:
            rank, batch, left = self._waiting.popleft()
            self._idle_channels -= 1
            request = Request(self._now - START_SECONDS, self._job.batch_bytes / self._job.requests)
            seconds = self._drive.serve(request, self._random)
            heappush(self._events, (self._now + seconds, next(self._number), (rank, batch, left - 1)))

    def _served(self, rank: int, batch: int, left: int) -> None:
        self._idle_channels += 1
        if left:
            self._waiting.append((rank, batch, left))
            return
        self._finished[rank, batch] = self._now
        place = rank, batch % self._job.workers
        self._idle.add(place)
        self._begin(place)

    def _take_all(self) -> None:
        """Let trainers take what is ready: batch k once it is read and step k - 1 has begun everywhere it can."""
        job, moved = self._job, True
        while moved:
            moved = False
            for rank in range(job.ranks):
                batch = self._next[rank]
                if batch == job.steps or self._finished[rank, batch] > self._now:
                    continue
                may = self._start if batch == 0 else max(self._taken[rank, batch - 1], self._free[batch - 1])
                if may > self._now:
                    if math.isfinite(may) and self._called[rank] != may:
                        self._called[rank] = may
                        heappush(self._events, (may, next(self._number), (rank, batch, -1)))
                    continue
                self._taken[rank, batch] = self._now
                self._next[rank] = batch + 1
                moved = True
                if batch + job.workers * job.ahead < job.steps:
                    self._put(rank, batch + job.workers * job.ahead)
                if np.isfinite(self._taken[:, batch]).all():
                    begins = np.maximum(self._taken[:, batch], self._free[batch])
                    self._free[batch + 1] = float(begins.max()) + job.step_seconds

    def rows(self) -> StepRows:
        """Return the step log."""
        job = self._job
        rows = np.zeros((job.ranks, job.steps), STEP_DTYPE)

        def ns(seconds: object) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
            return np.rint(np.asarray(seconds) * 1e9).astype(np.int64)

        free, compute = ns(self._free), round(job.step_seconds * 1e9)
        rows["rank"] = np.arange(job.ranks)[:, np.newaxis]
        rows["epoch"], rows["block"], rows["step"] = self._epoch, 1, np.arange(1, job.steps + 1)
        rows["free_ns"], rows["compute_ns"], rows["ready_ns"] = free[:-1], compute, ns(self._taken)
        rows["wait_ns"] = np.maximum(0, rows["ready_ns"] - free[:-1])
        rows["sync_ns"] = free[1:] - free[:-1] - rows["wait_ns"] - compute
        rows["slept_ns"], rows["met_ns"] = free[:-1] + rows["wait_ns"] + compute, free[1:]
        rows["asked_ns"], rows["got_ns"] = free[:-1], np.maximum(rows["ready_ns"], free[:-1])
        rows["started_ns"], rows["finished_ns"] = ns(self._began), ns(self._finished)
        rows["read_ns"] = rows["finished_ns"] - rows["started_ns"]
        rows["worker"] = (rows["step"] - 1) % job.workers
        rows["samples"], rows["read_calls"], rows["cpu_ns"] = job.samples, job.requests, 1
        rows["app_bytes"] = rows["storage_bytes"] = round(job.batch_bytes)
        flat: StepRows = rows.reshape(-1)
        return flat

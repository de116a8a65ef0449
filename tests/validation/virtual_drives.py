"""Simulates drives and training on them in virtual time, for what a noisy machine can't show (docs/validation.md).

It shares no code with `dlemu predict`, in which readers share one link. Here, the requests of all readers wait in one
queue for a channel of the drive.
No time passes and nothing is read, so a run takes a fraction of a second and has the same result on every machine.
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
"""Start of the first epoch."""


class Request(NamedTuple):
    at_seconds: float
    """Start of its service."""
    size_bytes: float


Serve = Callable[[Request, np.random.Generator], float]
"""Returns the time that a request takes."""


@dataclass(frozen=True, kw_only=True)
class Drive:
    """A drive with channels, each of which serves one request at a time."""

    channels: int
    serve: Serve


def lognormal(channels: int, mean_seconds: float, sigma: float, grows: tuple[float, float] = (math.inf, 1.0)) -> Drive:
    """Return a drive with lognormal latencies, which are multiplied by a factor from a moment on (`grows`)."""
    from_seconds, times = grows
    location = math.log(mean_seconds) - sigma**2 / 2

    def serve(request: Request, random: np.random.Generator) -> float:
        factor = times if request.at_seconds >= from_seconds else 1.0
        return factor * random.lognormal(location, sigma)

    return Drive(channels=channels, serve=serve)


def link(mb_per_second: Callable[[Request], float], spread: float = 0.05) -> Drive:
    """Return a drive with one channel and a rate that may depend on time, with a little noise."""

    def serve(request: Request, random: np.random.Generator) -> float:
        return max(0.5, random.normal(1.0, spread)) * request.size_bytes / MB / mb_per_second(request)

    return Drive(channels=1, serve=serve)


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training. As in PyTorch, worker k modulo their number reads batch k, and batches are used in order."""

    ranks: int = 1
    workers: int
    """Workers per rank."""
    ahead: int = 2
    """Batches that a worker may have ready or in progress."""
    steps: int
    epochs: int = 1
    step_seconds: float
    batch_bytes: float
    requests: int = 1
    """Requests per batch, one after the other."""
    samples: int = 4


def train(drive: Drive, job: Training, seed: int = 0) -> StepRows:
    random = np.random.default_rng(seed)
    parts, start = [], START_SECONDS
    for number in range(1, job.epochs + 1):
        epoch = _Epoch(drive, job, number, start, random)
        parts.append(epoch.rows())
        start = epoch.end + 0.01
    rows: StepRows = np.concatenate(parts)
    return rows


class _Epoch:
    def __init__(self, drive: Drive, job: Training, epoch: int, start: float, random: np.random.Generator) -> None:
        self._drive, self._job, self._epoch, self._random, self._start = drive, job, epoch, random, start
        shape = job.ranks, job.steps
        self._began, self._finished, self._taken = (np.full(shape, math.inf) for _ in range(3))
        self._waiting: deque[tuple[int, int, int]] = deque()  # rank, batch, remaining requests
        self._idle_channels = drive.channels
        self._events: list[tuple[float, int, tuple[int, int, int]]] = []
        self._number = itertools.count()
        self._queues: dict[tuple[int, int], deque[int]] = {
            (rank, worker): deque() for rank in range(job.ranks) for worker in range(job.workers)
        }
        self._idle = set(self._queues)
        self._next = [0] * job.ranks  # the batch that each trainer takes next
        self._wake_up = [0.0] * job.ranks  # when each trainer is scheduled to try again
        self._free = np.full(job.steps + 1, math.inf)
        self._free[0] = start
        self._now = start
        for batch in range(min(job.steps, job.workers * job.ahead)):
            for rank in range(job.ranks):
                self._put(rank, batch)
        self._serve()
        while self._events:
            self._now, _, (rank, batch, remaining) = heappop(self._events)
            if remaining >= 0:
                self._complete(rank, batch, remaining)
            self._take_all()
            self._serve()
        self.end = float(self._free[-1])

    def _put(self, rank: int, batch: int) -> None:
        worker = rank, batch % self._job.workers
        self._queues[worker].append(batch)
        self._begin(worker)

    def _begin(self, worker: tuple[int, int]) -> None:
        if worker in self._idle and self._queues[worker]:
            self._idle.discard(worker)
            batch = self._queues[worker].popleft()
            self._began[worker[0], batch] = self._now
            self._waiting.append((worker[0], batch, self._job.requests))

    def _serve(self) -> None:
        while self._waiting and self._idle_channels:
            rank, batch, remaining = self._waiting.popleft()
            self._idle_channels -= 1
            request = Request(self._now - START_SECONDS, self._job.batch_bytes / self._job.requests)
            seconds = self._drive.serve(request, self._random)
            heappush(self._events, (self._now + seconds, next(self._number), (rank, batch, remaining - 1)))

    def _complete(self, rank: int, batch: int, remaining: int) -> None:
        self._idle_channels += 1
        if remaining:
            self._waiting.append((rank, batch, remaining))
            return
        self._finished[rank, batch] = self._now
        worker = rank, batch % self._job.workers
        self._idle.add(worker)
        self._begin(worker)

    def _take_all(self) -> None:
        """Let trainers take what is ready: batch k once it is read and step k - 1 has begun everywhere it can."""
        job, progress = self._job, True
        while progress:
            progress = False
            for rank in range(job.ranks):
                batch = self._next[rank]
                if batch == job.steps or self._finished[rank, batch] > self._now:
                    continue
                earliest = self._start if batch == 0 else max(self._taken[rank, batch - 1], self._free[batch - 1])
                if earliest > self._now:
                    if math.isfinite(earliest) and self._wake_up[rank] != earliest:
                        self._wake_up[rank] = earliest
                        heappush(self._events, (earliest, next(self._number), (rank, batch, -1)))
                    continue
                self._taken[rank, batch] = self._now
                self._next[rank] = batch + 1
                progress = True
                if batch + job.workers * job.ahead < job.steps:
                    self._put(rank, batch + job.workers * job.ahead)
                if np.isfinite(self._taken[:, batch]).all():
                    begins = np.maximum(self._taken[:, batch], self._free[batch])
                    self._free[batch + 1] = float(begins.max()) + job.step_seconds

    def rows(self) -> StepRows:
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

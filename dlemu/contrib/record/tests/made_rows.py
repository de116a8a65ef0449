"""Rows as the hook leaves them, made by hand: a trainer on a clock of its own, and its workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dlemu.contrib.record.rows import Batch, DeviceTime, Fetch, Pass, PassEnd, Process, ProcessRows, Save, Step

MS = 1_000_000


class Trainer:
    """Writes what a loop does, ms by ms. Files of 1000 bytes, batches of 8 samples."""

    def __init__(self, *, pid: int = 100, ranks: int = 1, workers: int = 1) -> None:
        self.rows, self.worker = (ProcessRows(Process(version=1, pid=each, ranks=ranks)) for each in (pid, pid + 100))
        self.workers, self.now, self.thread = workers, 0, pid
        self._passes = self._serial = 0

    def begin(self) -> int:
        self._passes += 1
        loader = {"iterable": False, "workers": self.workers, "prefetch": 2, "batch": 8, "samples": 800}
        passed = {"k": "pass", "pass": self._passes, "method": "fork", "order": "shuffled", "t": self.now}
        self.rows.passes.append(msgspec.convert(loader | passed, Pass))
        return self._passes

    def batch(
        self,
        number: int,
        wait_ms: float,
        body_ms: float,
        *,
        steps: int = 1,
        samples: int | None = 8,
        blocked_ms: float = 1.0,
        device_ms: float | None = None,
        save_ms: float = 0.0,
    ) -> None:
        """Wait for a batch, then compute; the optimizer's steps come at the end."""
        asked = self.now
        self._fetch(asked, samples, blocked_ms)
        self.now += round(wait_ms * MS)
        taken = [one for one in self.rows.batches if one.number == number]
        times = {"t0": asked, "t1": self.now, "cpu0": asked // 2, "cpu1": self.now // 2, "thread": self.thread}
        pids = [self.worker.process.pid] if self.workers and not taken else []
        row = {"k": "batch", "pass": number, "serial": self._serial, "pids": pids}
        self.rows.batches.append(msgspec.convert(times | row, Batch))
        if device_ms is not None:
            self.rows.device_times.append(DeviceTime(serial=self._serial, ms=device_ms, waited_ms=wait_ms))
        self._serial += 1
        self.now += round(body_ms * MS)
        if save_ms:
            self.rows.saves.append(Save(t0=self.now, t1=self.now + round(save_ms * MS), bytes=4000))
            self.now += round(save_ms * MS)
        for _ in range(steps):
            self.now += 1000
            self.rows.steps.append(Step(t=self.now, thread=self.rows.process.pid))

    def train(self, batches: int, wait_ms: Any, body_ms: Any, **each: Any) -> Trainer:
        """Train one pass of batches; a value that differs between them is a function of the batch's place."""
        number, values = self.begin(), {"wait_ms": wait_ms, "body_ms": body_ms} | each
        for place in range(batches):
            self.batch(number, **{key: value(place) if callable(value) else value for key, value in values.items()})
        self.over(number)
        return self

    def fetched(self, **values: Any) -> Trainer:
        for fetch in self.worker.fetches:
            for name, value in values.items():
                setattr(fetch, name, value)
        return self

    def over(self, number: int) -> None:
        self.rows.pass_ends.append(PassEnd(number=number, t0=self.now, cpu0=self.now // 2))
        self.now += MS

    def _fetch(self, at: int, samples: int | None, blocked_ms: float) -> None:
        rows = self.worker if self.workers else self.rows
        made, cpu = len(rows.fetches) + 1, 2 * MS
        since_start = {"process_read": made * 8000, "process_device": 0, "process_cpu": made * cpu}
        of_thread = {"cpu": cpu, "process_cpu_in": cpu, "system_cpu": 0, "queue": 0, "device": 0, "read": 8000}
        ended = at + round((blocked_ms + 2) * MS)
        of_batch = {"n": samples, "bytes": 4000, "calls": 16, "opens": 8, "arrays": 0}
        rows.fetches.append(
            msgspec.convert({"k": "fetch", "t0": at, "t1": ended} | since_start | of_thread | of_batch, Fetch)
        )

    @property
    def processes(self) -> Sequence[ProcessRows]:
        return [self.rows, self.worker] if self.workers else [self.rows]


def steady(batches: int = 60, wait_ms: Any = 0.1, body_ms: Any = 20, **each: Any) -> Trainer:
    return Trainer().train(batches, wait_ms, body_ms, **each)

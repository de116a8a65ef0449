"""Rows as the hook leaves them, made by hand: a trainer on a clock of its own, and its workers."""

from __future__ import annotations

from collections.abc import Sequence

from dlemu.contrib.record.rows import Batch, Device, Fetch, Over, Pass, Process, ProcessRows, Save, Step

MS = 1_000_000
TRAINER, WORKER = 100, 200


class Trainer:
    """Writes what a loop does, ms by ms. Files of 1000 bytes, batches of 8 samples."""

    def __init__(self, *, pid: int = TRAINER, ranks: int = 1, workers: int = 1) -> None:
        self.rows, self.worker = (ProcessRows(Process(version=1, pid=each, ranks=ranks)) for each in (pid, pid + 100))
        self.workers, self.now, self.thread = workers, 0, pid
        self._passes = self._serial = 0

    def begin(self) -> int:
        """Begin a pass; return its number."""
        self._passes += 1
        self.rows.passes.append(
            Pass(
                number=self._passes,
                iterable=False,
                workers=self.workers,
                prefetch=2,
                method="fork",
                batch=8,
                samples=800,
                order="shuffled",
                t=self.now,
            )
        )
        return self._passes

    def batch(
        self,
        number: int,
        wait_ms: float,
        body_ms: float,
        *,
        steps: int = 1,
        grad: bool = True,
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
        cpu = self.now // 2
        self.rows.batches.append(
            Batch(
                number=number,
                serial=self._serial,
                t0=asked,
                t1=self.now,
                grad=grad,
                cpu0=asked // 2,
                cpu1=cpu,
                thread=self.thread,
                pids=[self.worker.process.pid] if self.workers and not taken else [],
            )
        )
        if device_ms is not None:
            self.rows.devices.append(Device(serial=self._serial, ms=device_ms, waited_ms=wait_ms))
        self._serial += 1
        self.now += round(body_ms * MS)
        if save_ms:
            self.rows.saves.append(Save(t0=self.now, t1=self.now + round(save_ms * MS), bytes=4000))
            self.now += round(save_ms * MS)
        for _ in range(steps):
            self.now += 1000
            self.rows.steps.append(Step(t=self.now, thread=self.rows.process.pid))

    def over(self, number: int) -> None:
        """End a pass."""
        self.rows.overs.append(Over(number=number, t0=self.now, cpu0=self.now // 2))
        self.now += MS

    def _fetch(self, at: int, samples: int | None, blocked_ms: float) -> None:
        rows = self.worker if self.workers else self.rows
        made, read = len(rows.fetches) + 1, 8000
        rows.fetches.append(
            Fetch(
                t0=at,
                t1=at + round((blocked_ms + 2) * MS),
                n=samples,
                bytes=4000,
                cpu=2 * MS,
                queue=0,
                read=read,
                calls=16,
                device=0,
                process_read=made * read,
                process_device=0,
                process_cpu=made * 2 * MS,
                process_cpu_in=2 * MS,
                system_cpu=0,
                opens=8,
                arrays=0,
            )
        )

    @property
    def processes(self) -> Sequence[ProcessRows]:
        return [self.rows, self.worker] if self.workers else [self.rows]


def steady(trainer: Trainer, batches: int, wait_ms: float, body_ms: float, **each: float) -> None:
    """Train one pass of batches that are all alike."""
    number = trainer.begin()
    for _ in range(batches):
        trainer.batch(number, wait_ms, body_ms, **each)  # type: ignore[arg-type]  # numbers all
    trainer.over(number)

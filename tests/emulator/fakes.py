"""Fakes of what the training loop uses: scripted batches, and a communicator with scripted other ranks."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from dlemu.accelerators.accelerator_base import AcceleratorSpec
from dlemu.accelerators.sleep import Accelerator
from dlemu.config.duration import NO_TIME
from dlemu.jobs.training.loop import BatchQueue, StepRange, TakenBatch
from dlemu.jobs.training.steplog import TRAINING, StepRecord
from dlemu.loaders.loader_base import Batch, BatchTrace
from dlemu.machine.clock import FakeClock
from dlemu.ranks import Comm


def trace(**changes: int) -> BatchTrace:
    values: dict[str, Any] = dict.fromkeys(BatchTrace._fields, 0) | {"places": [], "samples": 7, "app_bytes": 700}
    return BatchTrace(**(values | changes))


def numbered(step: int) -> tuple[StepRecord, BatchTrace]:
    """Return a record and a trace for a row with the step's number in every column."""
    return StepRecord(*[step] * len(StepRecord._fields)), BatchTrace(0, [], *[step] * (len(BatchTrace._fields) - 2))


def sleeping(clock: FakeClock) -> Accelerator:
    """Return an accelerator on a fake clock, whose computation takes no time."""
    return Accelerator(AcceleratorSpec(rank=0, seed=0, computation_time=NO_TIME, eval_time=NO_TIME), clock)


def steps_of(compute_ns: Iterable[int], **changes: Any) -> StepRange:
    """Return the steps of a first block of training, with these computation times."""
    times_ns = np.array([*compute_ns], dtype=np.int64)
    return StepRange(phase=TRAINING, epoch=1, block=1, first_step=1, compute_ns=times_ns, **changes)


class ScriptedQueue(BatchQueue):
    """A queue of batches that are ready at these times; the host waits for a batch that is not."""

    def __init__(self, ready_ns: Iterable[int], clock: FakeClock) -> None:
        self._ready, self._time = iter(ready_ns), clock
        self.read_ahead_times = 0

    def take(self) -> TakenBatch:
        ready_ns = next(self._ready)
        self._time.time_ns = max(self._time.time_ns, ready_ns)
        return TakenBatch(ready_ns, Batch(None, trace()))

    def read_ahead(self) -> None:
        self.read_ahead_times += 1


class ScriptedComm(Comm):
    """Rank 0 of 2; the other's ends of steps are given. An all-reduce takes `latency_ns` on the host's clock."""

    rank, size, local_rank, local_size, node = 0, 2, 0, 2, 0
    hosts: tuple[str, ...] = ("here",)

    def __init__(self, others_end_ns: Iterable[int], clock: FakeClock, latency_ns: int = 0) -> None:
        self._others, self._clock, self._latency_ns = iter(others_end_ns), clock, latency_ns

    def all_reduce_max(self, value_ns: int) -> int:
        slowest = max(value_ns, next(self._others))
        self._clock.time_ns = max(self._clock.time_ns, slowest) + self._latency_ns
        return slowest

    def synchronise_clocks(self) -> tuple[int, ...]:
        return (0,)

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value

    def close(self) -> None:
        pass

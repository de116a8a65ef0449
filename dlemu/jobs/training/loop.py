"""A rank's training loop: in each step, wait for the batch, compute, synchronise with all ranks, log the times.

The accelerator has its own timeline (docs/metrics.md); the host's lateness is logged and never counts as computation.
A thread may prefetch batches from the loader for the trainer, as PyTorch's pin-memory thread does.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from datagen.errors import DlemuError
from dlemu.accelerators.accelerator_base import Accelerator
from dlemu.jobs.training.steplog import StepLog, StepRecord
from dlemu.loaders.loader_base import Batch, TimedBatches
from dlemu.machine.clock import Clock
from dlemu.ranks import Comm
from dlemu.ranks.process_control import start_thread


class TakenBatch(NamedTuple):
    """A batch and the time (CLOCK_MONOTONIC) at which the loader had delivered it."""

    ready_ns: int
    batch: Batch


class BatchQueue:
    """The batches of an epoch, in order: the trainer itself takes each off the loader when it needs it."""

    def __init__(self, batches: Iterator[Batch], clock: Clock) -> None:
        self._batches, self._clock = batches, clock

    def take(self) -> TakenBatch:
        """Return the next batch; raises DlemuError if it can't be made or does not arrive within the timeout."""
        batch = next(self._batches)
        return TakenBatch(self._clock.now_ns(), batch)

    def read_ahead(self) -> None:
        """Called, perhaps repeatedly, before the trainer does something else; here nothing is fetched ahead."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        pass


class PrefetchQueue(BatchQueue):
    """Prefetches one batch: while the trainer uses batch k, batch k+1 is taken off the loader as soon as it is ready.

    Handing a batch from thread to thread costs up to 50 us, so a thread waits only for a batch that is not ready yet.
    """

    def __init__(self, batches: Iterator[Batch], clock: Clock, timeout_seconds: float, rank: int) -> None:
        super().__init__(batches, clock)
        self._timed = batches if isinstance(batches, TimedBatches) else None
        self._timeout_seconds, self._rank = timeout_seconds, rank
        self._held: TakenBatch | None = None
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()  # a threading.Semaphore costs 10 us a batch
        self._ready: queue.SimpleQueue[TakenBatch | BaseException] = queue.SimpleQueue()
        self._requested = False
        """Whether the thread is waiting for a batch, or holds one that `take` has not received yet."""
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._timed is None:
            self.read_ahead()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._requests.put(False)
        if self._thread is not None and kind is None:
            self._thread.join()  # but after a failure it may hang in the loader; as a daemon it ends with the rank

    def take(self) -> TakenBatch:
        taken: TakenBatch | BaseException | None
        taken, self._held = self._held, None
        if self._requested or self._timed is None:
            with contextlib.suppress(queue.Empty):
                taken = self._ready.get(timeout=self._timeout_seconds)
                self._requested = False
        elif taken is None and (batch := self._timed.take(self._timeout_seconds)) is not None:
            taken = TakenBatch(self._clock.now_ns(), batch)
        if taken is None:
            raise DlemuError(
                f"rank {self._rank} has waited {self._timeout_seconds:g} s for a batch (timeout_seconds); its "
                "workers are stuck in reads: check the storage (`dmesg`, mount state), or raise timeout_seconds"
            )
        if isinstance(taken, BaseException):
            raise taken
        if self._timed is None:
            self.read_ahead()
        return taken

    def read_ahead(self) -> None:
        """Take the next batch off the loader if it is ready, else have the thread wait for it."""
        if self._held is not None or self._requested:
            return
        if self._timed is not None:
            try:
                batch = self._timed.take(0)
            except StopIteration:
                return
            if batch is not None:
                self._held = TakenBatch(self._clock.now_ns(), batch)
                return
        if self._thread is None:
            self._thread = threading.Thread(target=self._pump, name="dlemu-prefetch", daemon=True)
            start_thread(self._thread)
        self._requested = True
        self._requests.put(True)

    def _pump(self) -> None:
        try:
            while self._requests.get():
                batch = next(self._batches)
                self._ready.put(TakenBatch(self._clock.now_ns(), batch))
        except StopIteration:
            return
        except BaseException as error:  # raised again in `take`
            self._ready.put(error)


@dataclass(frozen=True, kw_only=True)
class StepRange:
    """Consecutive steps to run without interruption; `phase`, `epoch` and `block` are columns of the step log."""

    phase: int
    epoch: int
    block: int
    first_step: int
    compute_ns: NDArray[np.int64]  # nominal computation time of each step, shape (steps,)
    cpu_seconds: NDArray[np.float64] | None = None  # CPU time that the trainer's own process uses in each step


# A rank adds this to its end time in the all-reduce, so that the run ends on all ranks after this step
STOP_NS = 1 << 61  # 73 years, beyond any real time
Stop = Callable[[], bool]  # called in each step, on rank 0 only; returns whether the run is to end after this step
Watcher = Callable[[], None]  # called in each step, while the accelerator computes


@dataclass(frozen=True, kw_only=True)
class StepLoop:
    """One rank's loop and the objects it uses."""

    accelerator: Accelerator
    comm: Comm
    clock: Clock
    log: StepLog
    watch: Watcher | None = None
    stop: Stop | None = None
    burn: Callable[[float], object] | None = None  # uses the given seconds of CPU time

    def run(self, step_range: StepRange, free_ns: int, batch_queue: BatchQueue) -> bool:
        """Run the steps of a range, from `free_ns` on (the same on all ranks), and log each as it ends. Collective.

        Return whether `stop` ended the range early, on all ranks after the same step.
        """
        request_ns = free_ns
        waits_for_others = self.comm.size > 1
        for step, nominal_ns in enumerate(step_range.compute_ns.tolist(), step_range.first_step):
            ready_ns, batch = batch_queue.take()
            got_ns = self.clock.now_ns()
            begin_ns = max(ready_ns, free_ns)
            end_ns = self.accelerator.start(batch.data, begin_ns, nominal_ns)
            if nominal_ns or waits_for_others:  # else the trainer takes the next batch at once
                batch_queue.read_ahead()
            if self.watch is not None:
                self.watch()
            computed_ns = 0
            if step_range.cpu_seconds is not None and self.burn is not None:
                self.burn(float(step_range.cpu_seconds[step - step_range.first_step]))
                computed_ns = self.clock.now_ns()
            end_ns = self.accelerator.finish(end_ns)
            woke_ns = self.clock.now_ns()
            next_free_ns, stopped = self._slowest_end(max(end_ns, computed_ns))
            synced_ns = self.clock.now_ns()
            self.log.add(
                StepRecord(
                    rank=self.comm.rank,
                    phase=step_range.phase,
                    epoch=step_range.epoch,
                    block=step_range.block,
                    step=step,
                    free_ns=free_ns,
                    wait_ns=begin_ns - free_ns,
                    compute_ns=end_ns - begin_ns,
                    sync_ns=next_free_ns - end_ns,
                    asked_ns=request_ns,
                    got_ns=got_ns,
                    slept_ns=woke_ns,
                    met_ns=synced_ns,
                    ready_ns=ready_ns,
                ),
                batch.trace,
            )
            if stopped:
                return True
            free_ns, request_ns = next_free_ns, synced_ns
        return False

    def _slowest_end(self, end_ns: int) -> tuple[int, bool]:
        """Return the latest end of the step over all ranks, and whether it is the last step of the run."""
        stop = self.stop is not None and self.stop()
        latest_ns = self.comm.all_reduce_max(end_ns + STOP_NS if stop else end_ns)
        if latest_ns < STOP_NS // 2:
            return latest_ns, False
        return self.comm.all_reduce_max(end_ns), True  # again, without STOP_NS, which hides the latest end

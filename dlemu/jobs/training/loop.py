"""The loop: for each step wait for the batch, compute, meet the other ranks, and log what the accelerator saw.

The accelerator has a timeline of its own (docs/metrics.md). The host follows it, a little late; the lateness is logged
and never credited, and never charged to the storage unless the next batch is late because of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.accelerators.accelerator_base import Accelerator
from dlemu.comm import Comm
from dlemu.comm.clock import Clock
from dlemu.jobs.training.prefetch import BatchQueue
from dlemu.jobs.training.steplog import StepLog, StepRecord


@dataclass(frozen=True, kw_only=True)
class StepRange:
    """The steps to run without interruption, and what they are in the log."""

    phase: int
    epoch: int
    block: int
    first_step: int
    compute_ns: NDArray[np.int64]
    """Nominal computation time of each step, shape (steps,)."""
    cpu_seconds: NDArray[np.float64] | None = None
    """CPU time that the trainer itself computes in each step, shape (steps,); None for none."""


STOP_NS = 1 << 61
"""Added to a rank's end of step it says: this was the last step. No clock comes near it."""

Stop = Callable[[], bool]
"""Called once a step, on one rank: whether the run is to end after this step."""

Watcher = Callable[[StepRange, int, StepLog], None]
"""Called once a step, while the accelerator computes: step range, step in the epoch, the log of the steps before."""


@dataclass(frozen=True, kw_only=True)
class StepLoop:
    """One rank's loop with what it works with."""

    accelerator: Accelerator
    comm: Comm
    clock: Clock
    log: StepLog
    watch: Watcher | None = None
    stop: Stop | None = None
    burn: Callable[[float], object] | None = None
    """Computes for so many seconds of CPU time."""

    def run(self, step_range: StepRange, free_ns: int, batch_queue: BatchQueue) -> bool:
        """Run the steps of a range, every rank as many, from `free_ns` on. Rows go to the log as each step ends.

        Return whether a rank's `stop` ended it; all ranks end after the same step.
        """
        asked_ns = free_ns
        for step, nominal_ns in enumerate(step_range.compute_ns.tolist(), step_range.first_step):
            ready_ns, batch = batch_queue.take()
            got_ns = self.clock.now_ns()
            begin_ns = max(ready_ns, free_ns)
            end_ns = self.accelerator.start(batch.data, begin_ns, nominal_ns)
            if self.watch is not None:
                self.watch(step_range, step, self.log)
            computed_ns = self._compute(step_range, step)
            end_ns = self.accelerator.finish(end_ns)
            slept_ns = self.clock.now_ns()
            next_free_ns, stopped = self._slowest_end(max(end_ns, computed_ns))
            met_ns = self.clock.now_ns()
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
                    asked_ns=asked_ns,
                    got_ns=got_ns,
                    slept_ns=slept_ns,
                    met_ns=met_ns,
                    ready_ns=ready_ns,
                ),
                batch.trace,
            )
            if stopped:
                return True
            free_ns, asked_ns = next_free_ns, met_ns
        return False

    def _compute(self, step_range: StepRange, step: int) -> int:
        """Do the trainer's own part of the step; return when it was done, 0 where it has none."""
        if step_range.cpu_seconds is None or self.burn is None:
            return 0
        self.burn(float(step_range.cpu_seconds[step - step_range.first_step]))
        return self.clock.now_ns()

    def _slowest_end(self, end_ns: int) -> tuple[int, bool]:
        """Return the latest end of the step over the ranks, and whether one of them wants it to be the last."""
        stop = self.stop is not None and self.stop()
        latest_ns = self.comm.all_reduce_max(end_ns + STOP_NS if stop else end_ns)
        if latest_ns < STOP_NS // 2:
            return latest_ns, False
        return self.comm.all_reduce_max(end_ns), True  # who stops hid the others' ends

"""A rank's training loop: in each step, wait for the batch, compute, synchronise with all ranks, log the times.

The accelerator has its own timeline (docs/metrics.md); the host's lateness is logged, and never counts as computation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.accelerators.accelerator_base import Accelerator
from dlemu.jobs.training.prefetch import BatchQueue
from dlemu.jobs.training.steplog import StepLog, StepRecord
from dlemu.machine.clock import Clock
from dlemu.ranks import Comm


@dataclass(frozen=True, kw_only=True)
class StepRange:
    """Consecutive steps to run without interruption; `phase`, `epoch` and `block` are columns of the step log."""

    phase: int
    epoch: int
    block: int
    first_step: int
    compute_ns: NDArray[np.int64]
    """Nominal computation time of each step, shape (steps,)."""
    cpu_seconds: NDArray[np.float64] | None = None
    """CPU time that the trainer's own process uses in each step, shape (steps,); None for none."""


STOP_NS = 1 << 61
"""A rank adds this to its end time in the all-reduce to end the run after this step; 73 years, beyond any real time."""

Stop = Callable[[], bool]
"""Called in each step, on rank 0 only; returns whether the run is to end after this step."""

Watcher = Callable[[], None]
"""Called in each step, while the accelerator computes."""


@dataclass(frozen=True, kw_only=True)
class StepLoop:
    """One rank's loop and the objects it uses."""

    accelerator: Accelerator
    comm: Comm
    clock: Clock
    log: StepLog
    watch: Watcher | None = None
    stop: Stop | None = None
    burn: Callable[[float], object] | None = None
    """Uses the given seconds of CPU time."""

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
            if nominal_ns or waits_for_others:  # else the next batch is waited for at once
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
        return self.comm.all_reduce_max(end_ns), True  # again, without STOP_NS, which hid the latest end

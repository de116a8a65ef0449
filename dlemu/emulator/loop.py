"""The loop: for each step wait for the batch, compute, meet the other ranks, and log what the accelerator saw.

The accelerator has a timeline of its own (docs/metrics.md). The host follows it, a little late; the lateness is logged
and never credited, and never charged to the storage unless the next batch is late because of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlemu.comm import Comm
from dlemu.emulator.clock import Clock
from dlemu.emulator.prefetch import BatchQueue
from dlemu.emulator.steplog import StepLog


@dataclass(frozen=True, kw_only=True)
class StepRange:
    """The steps to run without interruption, and what they are in the log."""

    phase: int
    epoch: int
    block: int
    first_step: int
    compute_ns: NDArray[np.int64]
    """Nominal computation time of each step, shape (steps,)."""


STOP_NS = 1 << 61
"""Added to a rank's word at a meeting it says: this was the last step. No clock comes near it."""

Stop = Callable[[], bool]
"""Asked once a step, on one rank: whether the run is to end after this step."""

Watcher = Callable[[StepRange, int, StepLog], None]
"""Called once a step, while the accelerator computes: step range, step in the epoch, the log of the steps before."""


def run_steps(
    step_range: StepRange,
    free_ns: int,
    batch_queue: BatchQueue,
    comm: Comm,
    clock: Clock,
    log: StepLog,
    watch: Watcher | None = None,
    stop: Stop | None = None,
) -> bool:
    """Run the steps of a range, every rank as many, from `free_ns` on. Rows go to the log as each step ends.

    Return whether a rank's `stop` ended it; all ranks end after the same step.
    """
    asked_ns = free_ns
    for index, compute_ns in enumerate(step_range.compute_ns.tolist()):
        step = step_range.first_step + index
        taken = batch_queue.take()
        got_ns = clock.now_ns()
        begin_ns = max(taken.ready_ns, free_ns)
        end_ns = begin_ns + compute_ns
        if watch is not None:
            watch(step_range, step, log)
        clock.sleep_until(end_ns)
        slept_ns = clock.now_ns()
        next_free_ns, stopped = _meet(comm, end_ns, stop is not None and stop())
        met_ns = clock.now_ns()
        trace = taken.batch.trace
        log.add(
            comm.rank,
            step_range.phase,
            step_range.epoch,
            step_range.block,
            step,
            free_ns,
            begin_ns - free_ns,
            compute_ns,
            next_free_ns - end_ns,
            asked_ns,
            got_ns,
            slept_ns,
            met_ns,
            taken.ready_ns,
            trace.started_ns,
            trace.finished_ns,
            trace.read_ns,
            trace.decode_ns,
            trace.worker,
            trace.samples,
            trace.app_bytes,
            trace.read_calls,
            trace.sample_hash,
            trace.cpu_ns,
            trace.cpu_wait_ns,
            trace.storage_bytes,
        )
        if stopped:
            return True
        free_ns = next_free_ns
        asked_ns = met_ns
    return False


def _meet(comm: Comm, end_ns: int, stop: bool) -> tuple[int, bool]:
    """Return the latest end of the ranks, and whether one of them wants this step to be the last."""
    told_ns = comm.all_reduce_max(end_ns + STOP_NS if stop else end_ns)
    if told_ns < STOP_NS // 2:
        return told_ns, False
    return comm.all_reduce_max(end_ns), True  # who stops hid the others' ends

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
from dlemu.emulator.handover import Handover
from dlemu.emulator.steplog import StepLog


@dataclass(frozen=True, kw_only=True)
class Stretch:
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

Watcher = Callable[[Stretch, int, StepLog], None]
"""Called once a step, while the accelerator computes: stretch, step within the epoch, the log of the steps before."""


def run_stretch(
    stretch: Stretch,
    free_ns: int,
    handover: Handover,
    comm: Comm,
    clock: Clock,
    log: StepLog,
    watch: Watcher | None = None,
    stop: Stop | None = None,
) -> bool:
    """Run the steps of a stretch, every rank as many, from `free_ns` on. Rows go to the log as each step ends.

    Return whether a rank's `stop` ended it; all ranks end after the same step.
    """
    asked_ns = free_ns
    for index, compute_ns in enumerate(stretch.compute_ns.tolist()):
        step = stretch.first_step + index
        handed = handover.take()
        got_ns = clock.now_ns()
        begin_ns = max(handed.ready_ns, free_ns)
        end_ns = begin_ns + compute_ns
        if watch is not None:
            watch(stretch, step, log)
        clock.sleep_until(end_ns)
        slept_ns = clock.now_ns()
        next_free_ns, stopped = _meet(comm, end_ns, stop is not None and stop())
        met_ns = clock.now_ns()
        story = handed.batch.story
        log.add(
            comm.rank,
            stretch.phase,
            stretch.epoch,
            stretch.block,
            step,
            free_ns,
            begin_ns - free_ns,
            compute_ns,
            next_free_ns - end_ns,
            asked_ns,
            got_ns,
            slept_ns,
            met_ns,
            handed.ready_ns,
            story.started_ns,
            story.finished_ns,
            story.read_ns,
            story.decode_ns,
            story.worker,
            story.samples,
            story.app_bytes,
            story.read_calls,
            story.sample_hash,
            story.cpu_ns,
            story.cpu_wait_ns,
            story.storage_bytes,
        )
        if stopped:
            return True
        free_ns = next_free_ns
        asked_ns = met_ns
    return False


def _meet(comm: Comm, end_ns: int, stop: bool) -> tuple[int, bool]:
    """Return the latest end of the ranks, and whether one of them wants this step to be the last."""
    told_ns = comm.meet(end_ns + STOP_NS if stop else end_ns)
    if told_ns < STOP_NS // 2:
        return told_ns, False
    return comm.meet(end_ns), True  # who stops hid the others' ends

"""Eighteen ranks with a core each, which no small machine has: the real loop and tree, on clocks of their own."""

from __future__ import annotations

import numpy as np
import pytest

from dlemu.jobs.training.loop import BatchQueue, StepLoop, TakenBatch
from dlemu.jobs.training.steplog import StepLog, StepRows
from dlemu.loaders.loader_base import Batch
from dlemu.machine.clock import FakeClock
from dlemu.metrics.au import au_percent, kept_rows
from dlemu.ranks import Comm
from tests.emulator.fakes import ScriptedComm, sleeping, steps_of, trace
from tests.ranks.memory_links import TimedLink, run

RANKS, STEPS = 18, 400
COMPUTE_NS = 375_000
"""A step of DLRM on an accelerator of 2024."""
LATE_NS, STEP_NS = 60_000, 40_000
"""How late a host wakes from sleep, and what the loop itself takes of a step."""
WORKERS, AHEAD, READ_NS = 4, 8, 800_000
"""Of a rank, with the batches begun ahead and the time a worker takes for one: half of what steps leave it."""


class TreeComm(ScriptedComm):
    def __init__(self, tree: Comm, clock: FakeClock) -> None:
        super().__init__((), clock)
        self._tree = tree

    def all_reduce_max(self, value_ns: int) -> int:
        self._clock.time_ns += STEP_NS
        return self._tree.all_reduce_max(value_ns)


class ReadAhead(BatchQueue):
    """Batches of workers on storage that costs nothing: each begins the next one when a batch is taken."""

    def __init__(self, clock: FakeClock) -> None:
        self._time = clock
        self._ready_ns: list[int] = []
        self._taken_ns: list[int] = []

    def take(self) -> TakenBatch:
        number = len(self._taken_ns)
        asked_ns = self._taken_ns[number - AHEAD] if number >= AHEAD else 0
        idle_ns = self._ready_ns[number - WORKERS] if number >= WORKERS else 0
        ready_ns = max(asked_ns, idle_ns) + READ_NS
        self._time.time_ns = max(self._time.time_ns, ready_ns)
        self._ready_ns.append(ready_ns)
        self._taken_ns.append(self._time.time_ns)
        return TakenBatch(ready_ns, Batch(None, trace()))


def ceiling_percent(hop_ns: int) -> float:
    clocks = [FakeClock(0, LATE_NS) for _ in range(RANKS)]

    def rank_rows(tree: Comm, rank: int) -> StepRows:
        clock, log = clocks[rank], StepLog(STEPS)
        loop = StepLoop(accelerator=sleeping(clock), comm=TreeComm(tree, clock), clock=clock, log=log)
        loop.run(steps_of([COMPUTE_NS] * STEPS), 0, ReadAhead(clock))
        return log.rows

    rows = run(RANKS, rank_rows, lambda incoming, outgoing, rank: TimedLink(incoming, outgoing, clocks[rank], hop_ns))
    return au_percent(kept_rows(np.concatenate(rows), 1, 0))


@pytest.mark.parametrize("hop_us", [5, 17, 40])
def test_with_a_core_each_ranks_that_meet_after_every_short_step_are_not_held_up(hop_us: int) -> None:
    """A hop to a process that it wakes was seen to take 17 us (`scripts/bench barrier`)."""
    assert ceiling_percent(1000 * hop_us) >= 97


def test_ranks_that_can_not_meet_as_fast_as_they_step_are_seen_to_be_the_emulator_s_limit() -> None:
    assert ceiling_percent(200_000) < 60

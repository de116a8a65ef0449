"""The replay in a clock of its own: against an independent model of one pipe, and what it may never do."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlemu.contrib.kvcache.load import Prompt
from dlemu.contrib.kvcache.mover import Batch, Operation
from dlemu.contrib.kvcache.plan import RankPlan, plan_rank
from dlemu.contrib.kvcache.replay import Replay
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.contrib.kvcache.summary import Row

SMALL = KvSettings(layers=1, kv_heads=1, head_dim=1024, element_bytes=1, block_tokens=2, prefill_tokens_per_second=1e6)
SECOND_NS = 10**9
BEGIN_NS = 1000 * SECOND_NS


class Pipe:
    """One pipe that moves a block in so many nanoseconds, reads first, in a clock that jumps."""

    def __init__(self, block_ns: int, writes_ns: int | None = None) -> None:
        self.block_ns, self.writes_ns = block_ns, block_ns if writes_ns is None else writes_ns
        self.time_ns = self.free_ns = BEGIN_NS
        self.waiting: list[tuple[int, int, Batch]] = []
        self.moving: tuple[int, Batch] | None = None
        self.written: set[int] = set()
        self.being_read: list[int] = []
        self.asked = itertools.count()
        self.removed: list[int] = []

    @property
    def now_ns(self) -> Callable[[], int]:
        return lambda: self.time_ns

    def is_written(self, number: int) -> bool:
        return number in self.written

    def submit(self, batch: Batch) -> None:
        if batch.operation is Operation.REMOVE:
            (number,) = batch.objects
            assert number in self.written, "removed before it was there"
            assert number not in self.being_read, "removed while somebody reads it"
            self.removed.append(number)
            return
        if batch.operation is Operation.READ:
            assert set(batch.objects) <= self.written - set(self.removed)
            self.being_read += batch.objects
        heapq.heappush(self.waiting, (batch.operation, next(self.asked), batch))
        self._start()

    def _start(self) -> None:
        if self.moving is None and self.waiting:
            way, _, batch = heapq.heappop(self.waiting)
            each_ns = self.block_ns if way is Operation.READ else self.writes_ns
            self.moving = max(self.time_ns, self.free_ns) + each_ns * len(batch.objects), batch

    def wait(self, until_ns: int) -> Batch | None:
        if self.moving is None or self.moving[0] > until_ns:
            self.time_ns = max(self.time_ns, until_ns)
            return None
        (self.time_ns, batch), self.moving = self.moving, None
        self.free_ns = batch.ended_ns = self.time_ns
        if batch.operation is Operation.WRITE:
            self.written |= set(batch.objects)
        else:
            for number in batch.objects:
                self.being_read.remove(number)
        self._start()
        return batch


def replayed(plan: RankPlan, pipe: Pipe) -> tuple[list[Row], Replay]:
    served: list[Row] = []
    replay = Replay(plan, cast(Any, pipe), on_served=served.append)
    replay.run(BEGIN_NS)
    return sorted(served, key=lambda one: one.prompt), replay


def plan(kv: KvSettings, *prompts: tuple[float, list[int]], tail: int = 1) -> RankPlan:
    load = [Prompt(round(at * SECOND_NS), 2 * len(c) + tail, 1, np.array(c, np.int64)) for at, c in prompts]
    return plan_rank(kv, load, range(len(load)))


@settings(deadline=None)
@given(
    gaps=st.lists(st.integers(0, 3000), min_size=2, max_size=40),
    sizes=st.lists(st.integers(1, 40), min_size=40, max_size=40),
    block_ms=st.integers(1, 100),
)
def test_loads_take_as_long_as_by_a_model_of_one_pipe(gaps: list[int], sizes: list[int], block_ms: int) -> None:
    """Reads of blocks that a first prompt wrote, computing and further writing at no cost: nothing but the queue."""
    whole = list(range(100))
    at_ms = (10_000 + np.cumsum(gaps)).tolist()
    sizes = sizes[: len(at_ms)]
    asked = [(0.0, whole), *((at / 1e3, whole[:size]) for at, size in zip(at_ms, sizes, strict=True)), (10_000.0, [0])]
    served, _ = replayed(plan(replace(SMALL, accelerators=1000), *asked), Pipe(block_ms * 10**6, writes_ns=1))
    free_ms, wanted = 0, []
    for at, size in zip(at_ms, sizes, strict=True):  # the model: a clerk who serves one after the other
        free_ms = max(free_ms, at) + size * block_ms
        wanted.append((free_ms - at) / 1e3)
    got = [(one.loaded_ns - one.arrived_ns) / 1e9 for one in served[1:-1]]
    assert got == pytest.approx(wanted)


def test_an_accelerator_waits_for_blocks_computes_and_takes_the_next_in_order() -> None:
    kv = replace(SMALL, prefill_tokens_per_second=1.0, accelerators=1)
    asked = plan(kv, (0.0, [1, 2]), (100.0, [1, 2]), (100.5, [8]), tail=2)
    first, second, third = replayed(asked, Pipe(SECOND_NS))[0]
    assert first.computed_ns - BEGIN_NS == 6 * SECOND_NS, "6 tokens at one a second, nothing to load"
    assert first.written_ns - BEGIN_NS == 8 * SECOND_NS, "two blocks, once they are computed"
    assert second.loaded_ns - BEGIN_NS == 102 * SECOND_NS
    assert second.computed_ns - BEGIN_NS == 104 * SECOND_NS, "waited 2 s, computed the 2 tokens that no block has"
    assert second.without_ns - second.compute_ns == 4 * SECOND_NS
    assert third.start_ns - BEGIN_NS == 104 * SECOND_NS, "nothing to load, but the accelerator was held"
    assert third.computed_ns - BEGIN_NS == 108 * SECOND_NS


def test_reads_go_before_writes_and_what_is_being_written_is_read_from_memory() -> None:
    pipe = Pipe(SECOND_NS)
    asked = plan(
        replace(SMALL, accelerators=4), (0.0, [1]), (10.0, [5, 6, 7]), (10.1, [8]), (10.2, [1]), (10.3, [5, 6, 7])
    )
    served, _ = replayed(asked, pipe)
    assert served[1].written_ns - BEGIN_NS == pytest.approx(13e9, rel=1e-5), "the first write is under way and ends"
    assert served[3].loaded_ns - BEGIN_NS == pytest.approx(14e9, rel=1e-5), "then the read, asked for last"
    assert served[2].written_ns - BEGIN_NS == pytest.approx(15e9, rel=1e-5)
    assert (served[4].pending_blocks, served[4].storage_blocks) == (3, 0)
    assert served[4].loaded_ns == served[4].arrived_ns


def test_what_nobody_has_computed_yet_is_computed_again() -> None:
    kv = replace(SMALL, prefill_tokens_per_second=1.0, accelerators=2)
    first, second = replayed(plan(kv, (0.0, [1, 2]), (1.0, [1, 2])), Pipe(1))[0]
    assert (second.cached_tokens, second.compute_ns) == (0, 5 * SECOND_NS)
    assert (first.written_blocks, second.written_blocks) == (2, 0)


@settings(deadline=None)
@given(
    chains=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=25),
    gap_ms=st.integers(1, 3000),
    rate=st.sampled_from([0.5, 1000.0]),
)
def test_blocks_go_once_each_and_never_while_they_are_needed(chains: list[list[int]], gap_ms: int, rate: float) -> None:
    """The pipe refuses to remove what is not written or still read, and to read what is gone."""
    trees = [[hash(tuple(chain[: end + 1])) for end in range(len(chain))] for chain in chains]
    kv = replace(SMALL, capacity_gb=4.5 * 4096 / 1e9, prefill_tokens_per_second=rate, accelerators=3)
    pipe = Pipe(SECOND_NS // 2)
    planned = plan(kv, *((place * gap_ms / 1e3, chain) for place, chain in enumerate(trees)))
    served, replay = replayed(planned, pipe)
    if not replay.unfinished:
        objects = len(planned.sizes)
        dropped = objects - sum(one.written_blocks for one in served)
        assert len(pipe.written) == objects - dropped
        assert len(set(pipe.removed)) == len(pipe.removed) == replay.evicted - dropped
        assert len(pipe.written) - len(pipe.removed) <= 4


def test_a_load_that_never_ends_is_given_up() -> None:
    asked = [(0.0, list(range(50))), *((10.0 + place, list(range(50))) for place in range(20))]
    served, replay = replayed(plan(replace(SMALL, accelerators=1000), *asked), Pipe(SECOND_NS, writes_ns=1))
    assert len(replay.unfinished) > 10
    assert len(served) + len(replay.unfinished) == 21

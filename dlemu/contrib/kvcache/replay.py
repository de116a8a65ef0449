"""The replay of a load: prompts arrive by the load's clock, load blocks from storage, compute, and write new blocks.

Open loop: a prompt arrives at its time, whether or not earlier prompts are served, and every latency counts from its
arrival. Accelerators are emulated: a copy of the model takes the next prompt in order of arrival, waits until its
blocks are loaded, and computes. Times are nanoseconds of the mover's clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from dlemu.contrib.kvcache.mover import Batch, Mover, Operation
from dlemu.contrib.kvcache.plan import BlockCache, RankPlan, cached_tokens
from dlemu.contrib.kvcache.summary import Row

DRAIN_SHARE, DRAIN_NS = 0.5, 10_000_000_000
"""Timeout for everything in progress after the last arrival: this share of the load's duration, at least DRAIN_NS."""
_NEVER_NS = 1 << 62


class Replay:
    """Serves one rank's prompts."""

    def __init__(self, plan: RankPlan, mover: Mover, *, on_served: Callable[[Row], object]) -> None:
        self._plan, self._mover, self._on_served = plan, mover, on_served
        self._settings = plan.model.settings
        self._cache, objects = BlockCache(plan.model), len(plan.sizes)
        self._computed, self._evicted, self._submitted = (np.zeros(objects, np.bool_) for _ in range(3))
        """Of each object, whether it was computed, evicted, and the write of it requested."""
        self._users = np.zeros(objects, np.int32)  # of each object: batches in progress that read or write it
        self._served: dict[int, Row] = {}  # prompts in progress by index in the plan
        self._writes: dict[int, Sequence[int]] = {}  # what they write when they are computed
        self._queue: deque[int] = deque()  # indices of prompts that no copy of the model has taken yet
        self._ends: list[tuple[int, int]] = []  # heap of (end of computing, index)
        self._idle: list[int] = []  # for each idle copy of the model, since when; a heap
        self.evicted = 0

    @property
    def unfinished(self) -> list[Row]:
        return list(self._served.values())

    def run(self, begin_ns: int, on_progress: Callable[[int], object] = lambda arrived: None) -> None:
        """Serve all prompts; those in progress when the timeout after the last arrival expires stay `unfinished`."""
        prompts = self._plan.prompts
        copies = max(1, self._plan.accelerators // self._settings.tp)
        self._idle = [begin_ns] * copies
        span_ns = prompts[-1].at_ns if prompts else 0
        give_up_ns = begin_ns + span_ns + max(DRAIN_NS, round(DRAIN_SHARE * span_ns))
        index = 0
        while index < len(prompts) or self._served:
            next_ns = begin_ns + prompts[index].at_ns if index < len(prompts) else _NEVER_NS
            due_ns = min(next_ns, self._ends[0][0] if self._ends else _NEVER_NS, give_up_ns)
            batch = self._mover.wait(due_ns)
            if batch is not None:
                self._moved(batch)
            now_ns = self._mover.now_ns()
            while self._ends and self._ends[0][0] <= min(now_ns, next_ns):
                self._end(*heapq.heappop(self._ends))
            if now_ns >= give_up_ns:
                return
            if index < len(prompts) and now_ns >= next_ns:
                self._arrive(index, next_ns, now_ns)
                index += 1
                on_progress(index)

    def _arrive(self, index: int, at_ns: int, now_ns: int) -> None:
        prompt, model = self._plan.prompts[index], self._plan.model
        use = self._cache.use(prompt)
        self._writes[index] = use.writes
        reads, before_storage, blocks = list[int](), None, 0
        self._served[index] = served = Row(
            prompt=prompt.number,
            arrived_ns=at_ns,
            late_ns=now_ns - at_ns,
            input_tokens=prompt.input_tokens,
            output_tokens=prompt.output_tokens,
        )
        for number, in_memory in use.found:
            if not self._computed[number]:
                break  # the prompt that produces it is still being computed
            if in_memory:
                served.memory_blocks += 1
            else:
                before_storage = blocks if before_storage is None else before_storage
                if self._mover.is_written(number):
                    reads.append(number)
                else:
                    served.pending_blocks += 1
            blocks += 1
        served.storage_blocks, served.read_bytes = len(reads), len(reads) * model.block_bytes
        served.cached_tokens = cached_tokens(self._settings, prompt, blocks)
        without = cached_tokens(self._settings, prompt, blocks if before_storage is None else before_storage)
        served.compute_ns, served.without_ns = (
            round(1e9 * model.prefill_seconds(cached, prompt.input_tokens - cached))
            for cached in (served.cached_tokens, without)
        )
        for number in reads:
            self._users[number] += 1
        for number in use.evicts:
            self.evicted += 1
            self._evicted[number] = True
            self._remove_if_free(number)
        if reads:
            self._mover.submit(Batch(Operation.READ, index, tuple(reads)))
        else:
            served.loaded_ns = at_ns
        self._queue.append(index)
        self._assign()

    def _assign(self) -> None:
        while self._queue and self._idle:
            served, index = self._served[self._queue[0]], self._queue.popleft()
            served.start_ns = max(heapq.heappop(self._idle), served.arrived_ns)
            if served.loaded_ns:
                self._begin(index, served)

    def _begin(self, index: int, served: Row) -> None:
        heapq.heappush(self._ends, (max(served.start_ns, served.loaded_ns) + served.compute_ns, index))

    def _end(self, at_ns: int, index: int) -> None:
        served, computed = self._served[index], self._writes.pop(index)
        served.computed_ns = at_ns
        self._computed[computed] = True
        writes = [number for number in computed if not self._evicted[number]]
        served.written_blocks, served.written_bytes = len(writes), len(writes) * self._plan.model.block_bytes
        if writes:
            self._submitted[writes] = True
            self._users[writes] += 1
            self._mover.submit(Batch(Operation.WRITE, index, tuple(writes)))
        heapq.heappush(self._idle, at_ns)
        self._assign()
        self._finish(index, served)

    def _moved(self, batch: Batch) -> None:
        served = self._served[batch.owner]
        if batch.operation is Operation.READ:
            served.loaded_ns, served.read_call_ns = batch.ended_ns, batch.call_ns
            if served.start_ns:
                self._begin(batch.owner, served)
        else:
            served.written_ns, served.write_call_ns = batch.ended_ns, batch.call_ns
        for number in batch.objects:
            self._users[number] -= 1
            self._remove_if_free(number)
        self._finish(batch.owner, served)

    def _finish(self, index: int, served: Row) -> None:
        if served.computed_ns and (served.written_ns or not served.written_blocks):
            del self._served[index]
            self._on_served(served)

    def _remove_if_free(self, number: int) -> None:
        if self._evicted[number] and self._submitted[number] and not self._users[number]:
            self._mover.submit(Batch(Operation.REMOVE, -1, (number,)))

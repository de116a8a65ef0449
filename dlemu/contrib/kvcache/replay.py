"""The replay of a load: prompts arrive, load blocks from storage, compute, and write new blocks.

In an open loop a prompt arrives at its time, whether or not earlier prompts are served; in a closed one, a user's next
prompt arrives some time after the answer to the last. Every latency counts from the arrival. Accelerators are emulated:
a copy of the model takes the next prompt in order of arrival, waits until its blocks are loaded, and computes. The
answer is there when the prompt is computed. Times are nanoseconds of the mover's clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from dlemu.contrib.kvcache.mover import Batch, Mover, Operation
from dlemu.contrib.kvcache.plan import BlockCache, RankPlan, cached_tokens
from dlemu.contrib.kvcache.summary import Row
from dlemu.extend import DlemuError

DRAIN_SHARE, DRAIN_NS = 0.5, 10_000_000_000
"""Timeout for everything in progress after the last arrival: this share of the load's duration, at least DRAIN_NS."""
_NEVER_NS = 1 << 62


class Replay:
    """Serves one rank's prompts."""

    def __init__(self, plan: RankPlan, mover: Mover, *, on_served: Callable[[Row], object]) -> None:
        self._plan, self._mover, self._on_served = plan, mover, on_served
        self._settings = plan.settings
        self._cache, objects = BlockCache(plan.settings), len(plan.sizes)
        self._computed, self._evicted = (np.zeros(objects, np.bool_) for _ in range(2))  # whether each object is
        self._users = np.zeros(objects, np.int32)  # of each object: batches in progress that read or write it
        self._served: dict[int, Row] = {}  # prompts in progress by index in the plan
        self._writes: dict[int, Sequence[int]] = {}  # what they write when they are computed
        self._queue: deque[int] = deque()  # indices of prompts that no copy of the model has taken yet
        self._unsent: dict[int, deque[int]] = {}  # user -> indices of the prompts that have not arrived yet
        self._events: list[tuple[int, bool, int]] = []  # heap of (moment, whether a prompt arrives or ends, its index)
        self._idle: list[int] = []  # for each idle copy of the model, since when; a heap
        self.evicted = 0

    @property
    def unfinished(self) -> list[Row]:
        return list(self._served.values())

    def run(self, begin_ns: int, on_progress: Callable[[int], object] = lambda arrived: None) -> None:
        """Serve the prompts; those in progress when the timeout after the load's end expires stay `unfinished`."""
        prompts, span_ns = self._plan.prompts, round(self._settings.seconds * 1e9) or _NEVER_NS
        self._idle = [begin_ns] * max(1, self._plan.accelerators // self._settings.tp)
        if self._settings.loop == "open":
            span_ns = prompts[-1].after_ns if prompts else 0
        self._over_ns = begin_ns + span_ns
        give_up_ns = self._over_ns + max(DRAIN_NS, round(DRAIN_SHARE * span_ns))
        for index, prompt in enumerate(prompts):
            self._unsent.setdefault(prompt.user, deque()).append(index)
        for user in self._unsent:
            self._send_next(user, begin_ns)
        arrived = 0
        while self._events or self._served:
            batch = self._mover.wait(min(self._events[0][0], give_up_ns) if self._events else give_up_ns)
            if batch is not None:
                self._moved(batch)
            now_ns = self._mover.now_ns()
            if self._events and self._events[0][0] <= now_ns:
                at_ns, arrives, index = heapq.heappop(self._events)
                if arrives:
                    self._arrive(index, at_ns, now_ns)
                    arrived += 1
                    on_progress(arrived)
                else:
                    self._end(at_ns, index)
            elif now_ns >= give_up_ns:
                return

    def _send_next(self, user: int, since_ns: int) -> None:
        """Let a user's next prompt arrive, in its time after `since_ns`, unless the load is over by then."""
        if not self._unsent[user]:
            return
        index = self._unsent[user].popleft()
        at_ns = since_ns + self._plan.prompts[index].after_ns
        if at_ns <= self._over_ns:
            heapq.heappush(self._events, (at_ns, True, index))

    def _arrive(self, index: int, at_ns: int, now_ns: int) -> None:
        prompt, settings = self._plan.prompts[index], self._settings
        found, self._writes[index], evicts = self._cache.use(prompt)
        if self._cache.objects > len(self._plan.sizes):  # in another order than planned; fewer prompts make up for that
            raise DlemuError("evicted blocks were written again more often than planned: set a larger kv.capacity_gb")
        reads, before_storage, blocks = list[int](), None, 0
        self._served[index] = served = Row(
            prompt=prompt.number,
            arrived_ns=at_ns,
            late_ns=now_ns - at_ns,
            input_tokens=prompt.input_tokens,
            output_tokens=prompt.output_tokens,
        )
        for number, in_memory in found:
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
        served.storage_blocks, served.read_bytes = len(reads), len(reads) * settings.block_bytes
        served.cached_tokens = cached_tokens(settings, prompt, blocks)
        without = cached_tokens(settings, prompt, blocks if before_storage is None else before_storage)
        served.compute_ns, served.without_ns = (
            round(1e9 * settings.prefill_seconds(prompt.input_tokens, cached))
            for cached in (served.cached_tokens, without)
        )
        self._users[reads] += 1
        for number in evicts:
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
        end_ns = max(served.start_ns, served.loaded_ns) + served.compute_ns
        heapq.heappush(self._events, (end_ns, False, index))

    def _end(self, at_ns: int, index: int) -> None:
        served, computed = self._served[index], self._writes.pop(index)
        served.computed_ns = at_ns
        self._computed[computed] = True
        writes = [number for number in computed if not self._evicted[number]]
        served.written_blocks, served.written_bytes = len(writes), len(writes) * self._settings.block_bytes
        if writes:
            self._users[writes] += 1
            self._mover.submit(Batch(Operation.WRITE, index, tuple(writes)))
        heapq.heappush(self._idle, at_ns)
        self._send_next(self._plan.prompts[index].user, at_ns)
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
        if self._evicted[number] and self._computed[number] and not self._users[number]:  # else it is never written
            self._mover.submit(Batch(Operation.REMOVE, -1, (number,)))

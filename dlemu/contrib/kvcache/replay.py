"""The replay of a load: prompts arrive, load blocks from storage, compute, and write new blocks.

In an open loop a prompt arrives at its time, whether or not earlier prompts are served; in a closed loop, a user's next
prompt arrives some time after the answer to the last. Every latency counts from the arrival. Accelerators are emulated:
a copy of the model takes the next prompt in order of arrival, waits until its blocks are loaded, and computes. Times
are nanoseconds of the mover's clock:

    prompt:   arrived -- waits for a copy of the model -- start -- waits for blocks -- computes -- computed (the answer)
    storage:  arrived -- reads its blocks -------------------------- loaded            computed -- writes -- written
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

DRAIN_SHARE = 0.5  # timeout for prompts in progress after the last arrival, as a share of the load's duration
DRAIN_NS = 10_000_000_000  # minimum of that timeout
_NEVER_NS = 1 << 62


class Replay:
    """Serves one rank's prompts."""

    def __init__(self, plan: RankPlan, mover: Mover, *, on_served: Callable[[Row], object]) -> None:
        self._plan, self._mover, self._on_served = plan, mover, on_served
        self._settings, self._cache = plan.settings, BlockCache(plan.settings)
        self._computed = np.zeros(len(plan.sizes), np.bool_)  # of each object: whether its prompt has been computed
        self._evicted = np.zeros(len(plan.sizes), np.bool_)  # of each object: whether it has been evicted
        self._in_use = np.zeros(len(plan.sizes), np.int32)  # of each object: batches in progress that read or write it
        self._served: dict[int, Row] = {}  # index in the plan -> row of a prompt in progress
        self._writes: dict[int, Sequence[int]] = {}  # index of a prompt -> objects to write when it is computed
        self._queue: deque[int] = deque()  # indices of prompts that no copy of the model has taken yet
        self._next: dict[int, int] = {}  # index of a prompt -> index of its user's next prompt
        self._events: list[tuple[int, bool, int]] = []  # heap of (moment, whether a prompt arrives or ends, its index)
        self._idle: list[int] = []  # heap of the moments since when copies of the model are idle
        self._over_ns = 0  # end of the load
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
        arrived = 0
        last = dict[int, int]()  # user -> index of its last prompt so far
        for index, prompt in enumerate(prompts):
            if prompt.user in last:
                self._next[last[prompt.user]] = index
            else:
                self._send(index, begin_ns)
            last[prompt.user] = index
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

    def _send(self, index: int, since_ns: int) -> None:
        """Let a prompt arrive in its time after `since_ns`, unless the load is over by then."""
        at_ns = since_ns + self._plan.prompts[index].after_ns
        if at_ns <= self._over_ns:
            heapq.heappush(self._events, (at_ns, True, index))

    def _arrive(self, index: int, at_ns: int, now_ns: int) -> None:
        prompt, settings = self._plan.prompts[index], self._settings
        prefix, self._writes[index], evicts = self._cache.use(prompt)
        if self._cache.objects > len(self._plan.sizes):  # A closed loop has another order of prompts than was planned.
            raise DlemuError("evicted blocks were written again more often than planned: set a larger kv.capacity_gb")
        reads = list[int]()
        blocks = 0  # that need no computing
        memory_prefix: int | None = None  # blocks before the first block from storage
        self._served[index] = served = Row(
            prompt=prompt.number,
            arrived_ns=at_ns,
            late_ns=now_ns - at_ns,
            input_tokens=prompt.input_tokens,
            output_tokens=prompt.output_tokens,
        )
        for stored, in_memory in prefix:
            if not self._computed[stored]:  # The prompt that produces the block is still being computed.
                break
            if in_memory:
                served.memory_blocks += 1
            else:
                memory_prefix = blocks if memory_prefix is None else memory_prefix
                if self._mover.is_written(stored):
                    reads.append(stored)
                else:
                    served.pending_blocks += 1
            blocks += 1
        served.storage_blocks, served.read_bytes = len(reads), len(reads) * settings.block_bytes
        served.cached_tokens = cached_tokens(settings, prompt, blocks)
        without_storage = cached_tokens(settings, prompt, blocks if memory_prefix is None else memory_prefix)
        served.compute_ns = round(1e9 * settings.prefill_seconds(prompt.input_tokens, served.cached_tokens))
        served.without_ns = round(1e9 * settings.prefill_seconds(prompt.input_tokens, without_storage))
        self._in_use[reads] += 1
        for stored in evicts:
            self.evicted += 1
            self._evicted[stored] = True
            self._remove_if_free(stored)
        if reads:
            self._mover.submit(Batch(Operation.READ, index, tuple(reads)))
        else:
            served.loaded_ns = at_ns
        self._queue.append(index)
        self._assign()

    def _assign(self) -> None:
        while self._queue and self._idle:
            index = self._queue.popleft()
            served = self._served[index]
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
        writes = [stored for stored in computed if not self._evicted[stored]]
        served.written_blocks, served.written_bytes = len(writes), len(writes) * self._settings.block_bytes
        if writes:
            self._in_use[writes] += 1
            self._mover.submit(Batch(Operation.WRITE, index, tuple(writes)))
        heapq.heappush(self._idle, at_ns)
        if index in self._next:
            self._send(self._next[index], at_ns)
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
        for stored in batch.objects:
            self._in_use[stored] -= 1
            self._remove_if_free(stored)
        self._finish(batch.owner, served)

    def _finish(self, index: int, served: Row) -> None:
        if served.computed_ns and (served.written_ns or not served.written_blocks):
            del self._served[index]
            self._on_served(served)

    def _remove_if_free(self, stored: int) -> None:
        """Remove an evicted object that no batch uses; if its prompt is still to be computed, it is never written."""
        if self._evicted[stored] and self._computed[stored] and not self._in_use[stored]:
            self._mover.submit(Batch(Operation.REMOVE, -1, (stored,)))

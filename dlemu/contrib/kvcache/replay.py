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
from itertools import takewhile

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
        self._computed = np.zeros(len(plan.sizes), np.bool_)  # by object id: its prompt has been computed
        self._evicted = np.zeros(len(plan.sizes), np.bool_)  # by object id: it has been evicted
        self._in_use = np.zeros(len(plan.sizes), np.int32)  # by object id: batches in progress that read or write it
        self._in_progress: dict[int, Row] = {}  # index of a prompt in the plan -> its row
        self._writes: dict[int, Sequence[int]] = {}  # index of a prompt -> ids of objects to write once it is computed
        self._queue: deque[int] = deque()  # indices of prompts that no copy of the model has taken yet
        self._next: dict[int, int] = {}  # index of a prompt -> index of its user's next prompt
        self._events: list[tuple[int, bool, int]] = []  # heap of (time, whether a prompt arrives or ends, its index)
        self._idle: list[int] = []  # heap of the times since when copies of the model are idle
        self._load_end_ns = 0
        self.evicted = 0  # number of evicted objects

    @property
    def unfinished(self) -> list[Row]:
        return list(self._in_progress.values())

    def run(self, begin_ns: int, on_progress: Callable[[int], object] = lambda arrived: None) -> None:
        """Serve the prompts; those in progress when the timeout after the load's end expires stay `unfinished`."""
        prompts, span_ns = self._plan.prompts, round(self._settings.seconds * 1e9) or _NEVER_NS
        self._idle = [begin_ns] * max(1, self._plan.accelerators // self._settings.tp)
        if self._settings.loop == "open":
            span_ns = prompts[-1].after_ns if prompts else 0
        self._load_end_ns = begin_ns + span_ns
        give_up_ns = self._load_end_ns + max(DRAIN_NS, round(DRAIN_SHARE * span_ns))
        arrived = 0
        last = dict[int, int]()  # user -> index of its last prompt so far
        for index, prompt in enumerate(prompts):
            if prompt.user in last:
                self._next[last[prompt.user]] = index
            else:
                self._schedule_arrival(index, begin_ns)
            last[prompt.user] = index
        while self._events or self._in_progress:
            batch = self._mover.wait(min(self._events[0][0], give_up_ns) if self._events else give_up_ns)
            if batch is not None:
                self._on_done(batch)
            now_ns = self._mover.now_ns()
            if self._events and self._events[0][0] <= now_ns:
                at_ns, arrives, index = heapq.heappop(self._events)
                if arrives:
                    self._arrive(index, at_ns, now_ns)
                    arrived += 1
                    on_progress(arrived)
                else:
                    self._end_computing(index, at_ns)
            elif now_ns >= give_up_ns:
                return

    def _schedule_arrival(self, index: int, since_ns: int) -> None:
        """Let a prompt arrive `after_ns` after `since_ns`, unless the load is over by then."""
        at_ns = since_ns + self._plan.prompts[index].after_ns
        if at_ns <= self._load_end_ns:
            heapq.heappush(self._events, (at_ns, True, index))

    def _arrive(self, index: int, at_ns: int, now_ns: int) -> None:
        """Look up the prompt's blocks in the cache, start to read those on storage, and queue the prompt."""
        prompt, settings = self._plan.prompts[index], self._settings
        cached_prefix, self._writes[index], evicts = self._cache.use(prompt)
        if self._cache.objects > len(self._plan.sizes):  # A closed loop has another order of prompts than was planned.
            raise DlemuError("evicted blocks were written again more often than planned: set a larger kv.capacity_gb")
        # The first block whose own prompt is still being computed, and all after it, can't be used yet.
        prefix = list(takewhile(lambda block: self._computed[block.object_id], cached_prefix))
        memory_prefix = list(takewhile(lambda block: block.in_memory, prefix))
        from_storage = [block.object_id for block in prefix if not block.in_memory]
        reads = [object_id for object_id in from_storage if self._mover.is_written(object_id)]
        tokens, memory_tokens = (cached_tokens(settings, prompt, len(blocks)) for blocks in (prefix, memory_prefix))
        self._in_progress[index] = Row(
            prompt=prompt.number,
            arrived_ns=at_ns,
            late_ns=now_ns - at_ns,
            input_tokens=prompt.input_tokens,
            output_tokens=prompt.output_tokens,
            cached_tokens=tokens,
            memory_blocks=len(prefix) - len(from_storage),
            pending_blocks=len(from_storage) - len(reads),
            storage_blocks=len(reads),
            read_bytes=len(reads) * settings.block_bytes,
            loaded_ns=0 if reads else at_ns,
            compute_ns=round(1e9 * settings.prefill_seconds(prompt.input_tokens, tokens)),
            without_ns=round(1e9 * settings.prefill_seconds(prompt.input_tokens, memory_tokens)),
        )
        self._in_use[reads] += 1
        for object_id in evicts:
            self.evicted += 1
            self._evicted[object_id] = True
            self._remove_if_free(object_id)
        if reads:
            self._mover.submit(Batch(Operation.READ, index, tuple(reads)))
        self._queue.append(index)
        self._assign()

    def _assign(self) -> None:
        """Let idle copies of the model take prompts from the queue."""
        while self._queue and self._idle:
            index = self._queue.popleft()
            row = self._in_progress[index]
            row.start_ns = max(heapq.heappop(self._idle), row.arrived_ns)
            if row.loaded_ns:
                self._compute(index, row)

    def _compute(self, index: int, row: Row) -> None:
        end_ns = max(row.start_ns, row.loaded_ns) + row.compute_ns
        heapq.heappush(self._events, (end_ns, False, index))

    def _end_computing(self, index: int, at_ns: int) -> None:
        """Write the prompt's new blocks, free its copy of the model, and let its user's next prompt arrive in time."""
        row, computed = self._in_progress[index], self._writes.pop(index)
        row.computed_ns = at_ns
        self._computed[computed] = True
        writes = [object_id for object_id in computed if not self._evicted[object_id]]
        row.written_blocks, row.written_bytes = len(writes), len(writes) * self._settings.block_bytes
        if writes:
            self._in_use[writes] += 1
            self._mover.submit(Batch(Operation.WRITE, index, tuple(writes)))
        heapq.heappush(self._idle, at_ns)
        if index in self._next:
            self._schedule_arrival(self._next[index], at_ns)
        self._assign()
        self._finish_if_done(index, row)

    def _on_done(self, batch: Batch) -> None:
        row = self._in_progress[batch.owner]
        if batch.operation is Operation.READ:
            row.loaded_ns, row.read_call_ns = batch.ended_ns, batch.call_ns
            if row.start_ns:
                self._compute(batch.owner, row)
        else:
            row.written_ns, row.write_call_ns = batch.ended_ns, batch.call_ns
        for object_id in batch.blocks:
            self._in_use[object_id] -= 1
            self._remove_if_free(object_id)
        self._finish_if_done(batch.owner, row)

    def _finish_if_done(self, index: int, row: Row) -> None:
        if row.computed_ns and (row.written_ns or not row.written_blocks):
            del self._in_progress[index]
            self._on_served(row)

    def _remove_if_free(self, object_id: int) -> None:
        """Remove an evicted object that no batch uses; if its prompt is still to be computed, it is never written."""
        if self._evicted[object_id] and self._computed[object_id] and not self._in_use[object_id]:
            self._mover.submit(Batch(Operation.REMOVE, -1, (object_id,)))

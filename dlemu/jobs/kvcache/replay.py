"""The replay: prompts arrive on the load's own clock, load what is on storage, compute, and write what is new.

Open loop: a prompt arrives when the load says, whether or not those before it are served, and every latency counts from
there. Accelerators are emulated: a copy of the model takes the next prompt in order of arrival, waits until its blocks
are loaded, and computes. Times are nanoseconds of the mover's clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dlemu.jobs.kvcache.mover import Batch, Way
from dlemu.jobs.kvcache.plan import Planned, RankPlan, Tier, cached_tokens

DRAIN_SHARE, DRAIN_NS = 0.5, 10_000_000_000
"""After the last prompt all that is under way may take so much of the load's span, and at least so long."""
_NEVER_NS = 1 << 62


class Moves(Protocol):
    """What moves blocks, and whose clock it is."""

    @property
    def now_ns(self) -> Callable[[], int]: ...

    def submit(self, batch: Batch) -> None: ...

    def is_written(self, number: int) -> bool: ...

    def wait(self, until_ns: int) -> Batch | None: ...


@dataclass(eq=False)
class Served:
    """How one prompt fared; times are 0 until they come."""

    planned: Planned
    arrived_ns: int
    """When it was to arrive."""
    late_ns: int = 0
    """How much later the emulator noticed."""
    gpu_blocks: int = 0
    dram_blocks: int = 0
    pending_blocks: int = 0
    """On their way to storage: the memory that they are written from has them."""
    reads: tuple[int, ...] = ()
    """Objects that are read."""
    writes: tuple[int, ...] = ()
    cached_tokens: int = 0
    compute_ns: int = 0
    without_ns: int = 0
    """What it would compute without storage."""
    start_ns: int = 0
    """A copy of the model took it."""
    loaded_ns: int = 0
    computed_ns: int = 0
    """It has its first token."""
    written_ns: int = 0
    read_call_ns: int = 0
    longest_read_ns: int = 0
    write_call_ns: int = 0

    def columns(self, block_bytes: int) -> dict[str, int]:
        """Return its row."""
        return {
            "prompt": self.planned.number,
            "arrived_ns": self.arrived_ns,
            "late_ns": self.late_ns,
            "input_tokens": self.planned.prompt.input_tokens,
            "output_tokens": self.planned.prompt.output_tokens,
            "cached_tokens": self.cached_tokens,
            "gpu_blocks": self.gpu_blocks,
            "dram_blocks": self.dram_blocks,
            "pending_blocks": self.pending_blocks,
            "storage_blocks": len(self.reads),
            "read_bytes": len(self.reads) * block_bytes,
            "written_blocks": len(self.writes),
            "written_bytes": len(self.writes) * block_bytes,
            "start_ns": self.start_ns,
            "loaded_ns": self.loaded_ns,
            "compute_ns": self.compute_ns,
            "without_ns": self.without_ns,
            "computed_ns": self.computed_ns,
            "written_ns": self.written_ns,
            "read_call_ns": self.read_call_ns,
            "longest_read_ns": self.longest_read_ns,
            "write_call_ns": self.write_call_ns,
        }

    @property
    def is_done(self) -> bool:
        """Whether all that it requested has come to pass."""
        return bool(self.computed_ns) and (not self.writes or bool(self.written_ns))


class Replay:
    """One rank's prompts."""

    def __init__(self, plan: RankPlan, moves: Moves, *, on_served: Callable[[Served], object]) -> None:
        """`on_served` is called with each prompt that is done, in the order in which they are."""
        self._plan, self._moves, self._on_served = plan, moves, on_served
        self._settings = plan.model.settings
        self._computed = np.zeros(plan.objects, np.bool_)
        self._readers = np.zeros(plan.objects, np.int32)
        """Batches under way, of each object."""
        self._doomed = np.zeros(plan.objects, np.bool_)
        self._submitted = np.zeros(plan.objects, np.bool_)
        """Its write was requested."""
        self._served: dict[int, Served] = {}
        """Under way, by place in the plan."""
        self._queue: deque[int] = deque()
        """Arrived, and no copy of the model has taken them."""
        self._ends: list[tuple[int, int]] = []
        """(end of computing, place)."""
        self._idle: list[int] = []
        """Since when copies of the model have been idle."""
        self.removed = self.dropped = 0
        """Objects that were evicted, and those of them that had not been written yet."""

    @property
    def unfinished(self) -> list[Served]:
        """What is still under way."""
        return list(self._served.values())

    def run(self, begin_ns: int, on_progress: Callable[[int], object] = lambda arrived: None) -> None:
        """Serve all prompts; what takes too long after the last has arrived stays `unfinished`."""
        prompts = self._plan.prompts
        copies = max(1, self._plan.accelerators // self._settings.tp)
        self._idle = [begin_ns] * copies
        span_ns = prompts[-1].prompt.at_ns if prompts else 0
        give_up_ns = begin_ns + span_ns + max(DRAIN_NS, round(DRAIN_SHARE * span_ns))
        place = 0
        while place < len(prompts) or self._served:
            next_ns = begin_ns + prompts[place].prompt.at_ns if place < len(prompts) else _NEVER_NS
            due_ns = min(next_ns, self._ends[0][0] if self._ends else _NEVER_NS, give_up_ns)
            batch = self._moves.wait(due_ns)
            if batch is not None:
                self._moved(batch)
            now_ns = self._moves.now_ns()
            while self._ends and self._ends[0][0] <= min(now_ns, next_ns):
                self._end(*heapq.heappop(self._ends))
            if now_ns >= give_up_ns:
                return
            if place < len(prompts) and now_ns >= next_ns:
                self._arrive(place, next_ns, now_ns)
                place += 1
                on_progress(place)

    def _arrive(self, place: int, at_ns: int, now_ns: int) -> None:
        planned = self._plan.prompts[place]
        one = Served(planned, at_ns, late_ns=now_ns - at_ns)
        self._served[place] = one
        reads, before_storage, blocks = [], None, 0
        for tier, number in planned.found:
            if not self._computed[number]:
                break  # the prompt that makes it still computes: nobody has it
            if tier is Tier.STORAGE:
                before_storage = blocks if before_storage is None else before_storage
                if self._moves.is_written(number):
                    reads.append(number)
                else:
                    one.pending_blocks += 1
            elif tier is Tier.GPU:
                one.gpu_blocks += 1
            else:
                one.dram_blocks += 1
            blocks += 1
        one.reads = tuple(reads)
        self._set_work(one, blocks, blocks if before_storage is None else before_storage)
        for number in reads:
            self._readers[number] += 1
        for number in planned.evicts:
            self._doom(number)
        if reads:
            self._moves.submit(Batch(Way.READ, place, one.reads))
        else:
            one.loaded_ns = at_ns
        self._queue.append(place)
        self._assign()

    def _set_work(self, one: Served, blocks: int, before_storage: int) -> None:
        model, prompt = self._plan.model, one.planned.prompt
        cached = cached_tokens(self._settings, prompt, blocks)
        kept = cached_tokens(self._settings, prompt, before_storage)
        one.cached_tokens = cached
        one.compute_ns = round(1e9 * model.prefill_seconds(cached, prompt.input_tokens - cached))
        one.without_ns = round(1e9 * model.prefill_seconds(kept, prompt.input_tokens - kept))

    def _assign(self) -> None:
        while self._queue and self._idle:
            one, place = self._served[self._queue[0]], self._queue.popleft()
            one.start_ns = max(heapq.heappop(self._idle), one.arrived_ns)
            if one.loaded_ns:
                self._begin(place, one)

    def _begin(self, place: int, one: Served) -> None:
        heapq.heappush(self._ends, (max(one.start_ns, one.loaded_ns) + one.compute_ns, place))

    def _end(self, at_ns: int, place: int) -> None:
        one = self._served[place]
        one.computed_ns = at_ns
        self._computed[one.planned.writes] = True
        one.writes = tuple(number for number in one.planned.writes if not self._doomed[number])
        self.dropped += len(one.planned.writes) - len(one.writes)
        if one.writes:
            self._submitted[list(one.writes)] = True
            self._readers[list(one.writes)] += 1
            self._moves.submit(Batch(Way.WRITE, place, one.writes))
        heapq.heappush(self._idle, at_ns)
        self._assign()
        self._finish(place, one)

    def _moved(self, batch: Batch) -> None:
        one = self._served[batch.place]
        if batch.way is Way.READ:
            one.loaded_ns, one.read_call_ns, one.longest_read_ns = batch.ended_ns, batch.call_ns, batch.longest_ns
            if one.start_ns:
                self._begin(batch.place, one)
        else:
            one.written_ns, one.write_call_ns = batch.ended_ns, batch.call_ns
        for number in batch.objects:
            self._readers[number] -= 1
            self._remove_if_free(number)
        self._finish(batch.place, one)

    def _finish(self, place: int, one: Served) -> None:
        if one.is_done:
            del self._served[place]
            self._on_served(one)

    def _doom(self, number: int) -> None:
        self.removed += 1
        self._doomed[number] = True
        self._remove_if_free(number)

    def _remove_if_free(self, number: int) -> None:
        if self._doomed[number] and self._submitted[number] and not self._readers[number]:
            self._moves.submit(Batch(Way.REMOVE, -1, (number,)))

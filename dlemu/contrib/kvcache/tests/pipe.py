"""A storage in a clock that jumps: it moves batches one after another, and refuses what no storage can do."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from dlemu.contrib.kvcache.mover import Batch, Operation

SECOND_NS = 10**9
BEGIN_NS = 1000 * SECOND_NS


class Pipe:
    """Takes `ns_of` an operation and an object for each; reads go first, or all as they come."""

    def __init__(self, ns_of: Callable[[Operation, int], float], *, reads_first: bool = True) -> None:
        self.ns_of, self.reads_first = ns_of, reads_first
        self.time_ns = BEGIN_NS
        self.now_ns = lambda: self.time_ns
        self.waiting: list[tuple[int, int, Batch]] = []
        self.moving: tuple[int, Batch] | None = None
        self.written, self.removed, self.done = set[int](), list[int](), list[Batch]()
        self.most_writes = 0
        self.asked = itertools.count()

    @property
    def under_way(self) -> list[Batch]:
        return [batch for _, _, batch in self.waiting] + ([self.moving[1]] if self.moving else [])

    def is_written(self, number: int) -> bool:
        return number in self.written

    def submit(self, batch: Batch) -> None:
        numbers, there = set(batch.blocks), self.written - set(self.removed)
        is_used = any(numbers & set(other.blocks) for other in self.under_way)
        assert not is_used or (self.reads_first and batch.operation is Operation.READ), "one moves it at a time"
        assert (numbers <= there) is (batch.operation is not Operation.WRITE), "not written yet, or gone, or there"
        if batch.operation is Operation.REMOVE:
            self.removed += batch.blocks
            return
        heapq.heappush(self.waiting, (batch.operation * self.reads_first, next(self.asked), batch))
        self._start()
        writes = [one for one in self.under_way if one.operation is Operation.WRITE]
        self.most_writes = max(self.most_writes, len(writes))

    def _start(self) -> None:
        if self.moving is None and self.waiting:
            *_, batch = heapq.heappop(self.waiting)
            took_ns = sum(self.ns_of(batch.operation, number) for number in batch.blocks)
            self.moving = self.time_ns + round(took_ns), batch

    def wait(self, until_ns: int) -> Batch | None:
        if self.moving is None or self.moving[0] > until_ns:
            self.time_ns = max(self.time_ns, until_ns)
            return None
        (self.time_ns, batch), self.moving = self.moving, None
        batch.ended_ns = self.time_ns
        if batch.operation is Operation.WRITE:
            self.written |= set(batch.blocks)
        self.done.append(batch)
        self._start()
        return batch

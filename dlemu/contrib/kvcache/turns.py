"""The official load as its tool serves it: a priority queue, a worker per user, and a clock that stops early.

A request is one turn of a conversation. Requests arrive whether earlier ones are served or not; a worker takes one,
does its reads and its write one after another, and takes the next. After `kv.seconds` no worker takes another. The tool
then joins the workers one by one, with a timeout of 2 seconds each, while they finish their requests: bytes moved by
then count, the time does not. Workers are states here, not threads, and the host's memory is emulated, not allocated.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator

from dlemu.contrib.kvcache.mover import Batch, Mover, Operation
from dlemu.contrib.kvcache.official import GIB, MAX_CONVERSATIONS, RankTurns
from dlemu.contrib.kvcache.rows import Row

JOIN_NS = 2_000_000_000
"""How long the tool waits for each worker at the end (benchmark.py, `thread.join(timeout=2.0)`)."""
_FULL_MEMORY, _LARGE_ENTRY, _FEW_ENTRIES, _HALF_FULL, _EMPTY = 0.8, 0.95, 0.2, 0.5, 0.05
"""Shares of the emulated memory (cache.py): how full it may get; the largest entry that it takes; and below which
total of entries, for which new entry, and below which use it evicts nothing (`_make_room`)."""
_ACQUIRE_WRITE_PERMIT = None
"""The step that waits while `Option.allocations` turns are being written."""

Step = tuple[Operation, int] | None
"""An operation on the file of a turn (its number), or _ACQUIRE_WRITE_PERMIT."""


class TurnsReplay:
    """Serves one rank's turns."""

    def __init__(
        self, plan: RankTurns, mover: Mover, *, on_served: Callable[[Row], object], capacity_bytes: float
    ) -> None:
        """`on_served` is called with each request that is done; `capacity_bytes`: limit of the bytes on storage."""
        self._plan, self._mover, self._on_served = plan, mover, on_served
        self._seconds = plan.model.settings.seconds
        self._workers = plan.model.settings.threads
        self._idle = list(range(self._workers))
        self._in_service: dict[int, tuple[Row, Iterator[Step]]] = {}
        """Worker -> its request, and the request's remaining steps."""
        self._queue: list[tuple[int, int, Row]] = []
        """Heap of (-priority, number, request): the most urgent class first, each class in order of arrival."""
        self._conversations: OrderedDict[int, list[int]] = OrderedDict()
        self._locks: dict[int, deque[tuple[int, Operation]]] = {}
        """Files being read or written -> the workers waiting for them: a file is used by one worker at a time."""
        self._write_permits_used, self._waiting_for_permit = 0, deque[int]()
        self._ready = deque[int]()  # workers whose next step can start
        self._memory, self._memory_used = OrderedDict[int, None](), 0
        self._storage, self._storage_used, self._capacity = OrderedDict[int, None](), 0, capacity_bytes
        self.evicted = 0

    @property
    def unfinished(self) -> list[Row]:
        return [*(request for request, _ in self._in_service.values()), *(request for _, _, request in self._queue)]

    def run(self, begin_ns: int, on_progress: Callable[[int], object] = lambda arrived: None) -> None:
        turns, end_ns, index = self._plan.turns, begin_ns + round(self._seconds * 1e9), 0
        while (now_ns := self._mover.now_ns()) < end_ns:
            while index < len(turns) and begin_ns + turns[index].at_ns <= now_ns:
                self._arrive(index, begin_ns + turns[index].at_ns, now_ns)
                index += 1
                on_progress(index)
            self._assign(now_ns)
            next_ns = begin_ns + turns[index].at_ns if index < len(turns) else end_ns
            self._wait(min(next_ns, end_ns))
        for worker in range(self._workers):  # as the tool joins its threads: in the order of their creation
            until_ns = self._mover.now_ns() + JOIN_NS
            while worker in self._in_service and self._mover.now_ns() < until_ns:
                self._wait(until_ns)

    def _arrive(self, number: int, at_ns: int, now_ns: int) -> None:
        turn = self._plan.turns[number]
        if turn.conversation not in self._conversations and len(self._conversations) >= MAX_CONVERSATIONS:
            self._conversations.popitem(last=False)
        self._conversations.setdefault(turn.conversation, []).append(number)
        self._conversations.move_to_end(turn.conversation)
        request = Row(
            prompt=number,
            arrived_ns=at_ns,
            late_ns=now_ns - at_ns,
            input_tokens=turn.context_tokens,
            output_tokens=turn.output_tokens,
            priority=turn.priority,
        )
        heapq.heappush(self._queue, (-turn.priority, number, request))

    def _assign(self, now_ns: int) -> None:
        while self._queue and self._idle:
            worker, (*_, request) = self._idle.pop(), heapq.heappop(self._queue)
            request.start_ns = max(now_ns, request.arrived_ns)
            self._in_service[worker] = request, self._steps(request)
            self._ready.append(worker)
            self._advance_ready()  # a request that needs no storage frees its worker at once

    def _wait(self, until_ns: int) -> None:
        batch = self._mover.wait(until_ns)
        if batch is not None:
            self._moved(batch)
            self._advance_ready()

    # the steps of a request

    def _steps(self, request: Row) -> Iterator[Step]:
        """Yield the request's reads and writes; each is requested once the previous one is done."""
        turn = self._plan.turns[request.prompt]
        for other in tuple(self._conversations.get(turn.conversation, ())):
            if other != request.prompt:  # includes later turns, if another worker has already stored them
                yield from self._read(request, other)
        yield _ACQUIRE_WRITE_PERMIT
        yield from self._store(request)
        self._write_permits_used -= 1
        if self._waiting_for_permit:
            self._ready.append(self._waiting_for_permit.popleft())
        for _ in range(turn.reads):
            yield from self._read(request, request.prompt)

    def _read(self, request: Row, number: int) -> Iterator[Step]:
        if number in self._memory:
            self._memory.move_to_end(number)
            request.dram_blocks += 1
            request.dram_bytes += self._plan.sizes[number]
        elif number in self._storage:
            self._storage.move_to_end(number)
            yield Operation.READ, number

    def _store(self, request: Row) -> Iterator[Step]:
        size = self._plan.sizes[request.prompt]
        fits = yield from self._make_room(size)
        if fits:
            self._memory[request.prompt] = None
            self._memory_used += size
        else:
            yield from self._write(request.prompt)

    def _write(self, number: int) -> Iterator[Step]:
        size = self._plan.sizes[number]
        self._storage_used += size
        while self._storage_used > self._capacity:
            old = next((old for old in self._storage if old not in self._locks), None)
            if old is None:
                break  # every file is in use: let the file system decide whether the new one fits
            del self._storage[old]
            self._storage_used -= self._plan.sizes[old]
            self.evicted += 1
            self._mover.submit(Batch(Operation.REMOVE, -1, (old,)))
        yield Operation.WRITE, number
        self._storage[number] = None

    def _make_room(self, size: int) -> Generator[Step, None, bool]:
        """Move the least recently used entries from memory to storage; return whether `size` fits then (cache.py)."""
        most = self._plan.option.memory_gib * GIB // self._plan.model.settings.shrink  # as the files are divided
        if not most or size > _LARGE_ENTRY * most:
            return False
        while self._memory_used + size > _FULL_MEMORY * most and self._memory_used >= _EMPTY * most:
            kept = sum(self._plan.sizes[number] for number in self._memory)
            if not self._memory or (kept < _FEW_ENTRIES * most and size > _HALF_FULL * _FULL_MEMORY * most):
                return False
            old, _ = self._memory.popitem(last=False)
            yield from self._write(old)
            self._memory_used -= self._plan.sizes[old]
        return True

    # the workers

    def _advance_ready(self) -> None:
        while self._ready:
            self._advance(self._ready.popleft())

    def _advance(self, worker: int) -> None:
        request, steps = self._in_service[worker]
        for step in steps:
            if step is _ACQUIRE_WRITE_PERMIT:
                if self._write_permits_used >= self._plan.option.allocations:
                    self._waiting_for_permit.append(worker)
                    self._write_permits_used += 1  # counted already: the next worker to finish passes its permit on
                    return
                self._write_permits_used += 1
                continue
            operation, number = step
            if number in self._locks:
                self._locks[number].append((worker, operation))
            else:
                self._locks[number] = deque()
                self._submit(worker, operation, number)
            return
        del self._in_service[worker]
        request.computed_ns = max(self._mover.now_ns(), request.start_ns)
        self._idle.append(worker)
        self._on_served(request)

    def _submit(self, worker: int, operation: Operation, number: int) -> None:
        if operation is Operation.READ:
            self._in_service[worker][0].begun_bytes = self._plan.sizes[number]
        self._mover.submit(Batch(operation, worker, (number,)))

    def _moved(self, batch: Batch) -> None:
        (number,), worker = batch.objects, batch.owner
        request, size = self._in_service[worker][0], self._plan.sizes[batch.objects[0]]
        if batch.operation is Operation.READ:
            request.storage_blocks += 1
            request.read_bytes += size
            request.begun_bytes = 0
            request.read_call_ns += batch.call_ns
            request.loaded_ns = batch.ended_ns
        else:
            request.written_blocks += 1
            request.written_bytes += size
            request.write_call_ns += batch.call_ns
            request.written_ns = batch.ended_ns
        waiting = self._locks[number]
        if waiting:
            self._submit(*waiting.popleft(), number)
        else:
            del self._locks[number]
        self._ready.append(worker)

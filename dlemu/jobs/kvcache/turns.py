"""The official load as its tool serves it: a queue by priority, a worker for each user, and a clock that stops early.

Requests come whether those before them are served or not; a worker takes one, does its reads and its write one after
the other, and takes the next. After `kv.seconds` no worker takes another one. The tool waits for each of them for 2
seconds at most, one by one, while they finish what they are at: what has moved by then counts, the time does not.
Workers are states here, not threads, and the host's memory is counted, not filled.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from dlemu.jobs.kvcache.mover import Batch, Way
from dlemu.jobs.kvcache.official import MOST_CONVERSATIONS, RankTurns, Turn
from dlemu.jobs.kvcache.replay import Moves

JOIN_NS = 2_000_000_000
"""How long the tool waits for a worker at its end (benchmark.py, `thread.join(timeout=2.0)`)."""
_FULL_MEMORY, _LARGE_ENTRY, _LITTLE_KEPT, _HALF, _EMPTY = 0.8, 0.95, 0.2, 0.5, 0.05
"""Of the memory's bytes: how full it gets, what is too large for it, and when nothing is moved out (cache.py)."""
_ALLOCATE = None
"""In place of a step: wait until fewer turns are written than may be."""

Step = tuple[Way, int] | None


@dataclass(eq=False)
class TurnRequest:
    """How one request fared; times are 0 until they come."""

    number: int
    turn: Turn
    arrived_ns: int
    late_ns: int = 0
    start_ns: int = 0
    """A worker took it."""
    reads: int = 0
    read_bytes: int = 0
    again_bytes: int = 0
    """Of them those of its own file."""
    memory_reads: int = 0
    memory_bytes: int = 0
    begun_bytes: int = 0
    """Of the read that is under way: the tool counts it when it begins."""
    writes: int = 0
    written_bytes: int = 0
    read_call_ns: int = 0
    longest_read_ns: int = 0
    write_call_ns: int = 0
    loaded_ns: int = 0
    """Its last read that is done."""
    written_ns: int = 0
    done_ns: int = 0

    def columns(self, block_bytes: int) -> dict[str, int]:
        """Return its row."""
        return {
            "prompt": self.number,
            "arrived_ns": self.arrived_ns,
            "late_ns": self.late_ns,
            "input_tokens": self.turn.context_tokens,
            "output_tokens": self.turn.output_tokens,
            "priority": self.turn.priority,
            "dram_blocks": self.memory_reads,
            "dram_bytes": self.memory_bytes,
            "storage_blocks": self.reads,
            "read_bytes": self.read_bytes,
            "again_bytes": self.again_bytes,
            "begun_bytes": self.begun_bytes,
            "written_blocks": self.writes,
            "written_bytes": self.written_bytes,
            "start_ns": self.start_ns,
            "loaded_ns": self.loaded_ns,
            "computed_ns": self.done_ns,
            "written_ns": self.written_ns,
            "read_call_ns": self.read_call_ns,
            "longest_read_ns": self.longest_read_ns,
            "write_call_ns": self.write_call_ns,
        }


class TurnsReplay:
    """One rank's turns."""

    def __init__(
        self, plan: RankTurns, moves: Moves, *, on_served: Callable[[TurnRequest], object], capacity_bytes: float
    ) -> None:
        """`on_served` is called with each request that is done; `capacity_bytes`: what may be on the storage."""
        self._plan, self._moves, self._on_served = plan, moves, on_served
        self._seconds = plan.model.settings.seconds
        self._workers = plan.model.settings.threads
        self._idle = list(range(self._workers))
        self._work: dict[int, tuple[TurnRequest, Iterator[Step]]] = {}
        """What each worker is at."""
        self._queue: list[tuple[int, int, TurnRequest]] = []
        """(minus its priority, number, request): the most urgent class first, in order of arrival."""
        self._conversations: OrderedDict[int, list[int]] = OrderedDict()
        self._locks: dict[int, deque[tuple[int, Way]]] = {}
        """Files that are being moved, and who waits for each: one moves a file at a time."""
        self._allocating, self._to_allocate = 0, deque[int]()
        self._ready = deque[int]()
        """Workers that go on."""
        self._memory, self._memory_used = OrderedDict[int, None](), 0
        self._storage, self._storage_used, self._capacity = OrderedDict[int, None](), 0, capacity_bytes
        self.removed = self.dropped = 0

    @property
    def unfinished(self) -> list[TurnRequest]:
        """What was put on the queue and is not done."""
        return [*(one for one, _ in self._work.values()), *(one for _, _, one in self._queue)]

    def run(self, begin_ns: int, on_progress: Callable[[int], object] = lambda arrived: None) -> None:
        """Serve until the clock ends, and as long after it as the tool waits."""
        turns, end_ns, place = self._plan.turns, begin_ns + round(self._seconds * 1e9), 0
        while (now_ns := self._moves.now_ns()) < end_ns:
            while place < len(turns) and begin_ns + turns[place].at_ns <= now_ns:
                self._arrive(place, begin_ns + turns[place].at_ns, now_ns)
                place += 1
                on_progress(place)
            self._take(now_ns)
            next_ns = begin_ns + turns[place].at_ns if place < len(turns) else end_ns
            self._wait(min(next_ns, end_ns))
        for worker in range(self._workers):  # as the tool joins its threads, in the order in which it made them
            until_ns = self._moves.now_ns() + JOIN_NS
            while worker in self._work and self._moves.now_ns() < until_ns:
                self._wait(until_ns)

    def _arrive(self, number: int, at_ns: int, now_ns: int) -> None:
        turn = self._plan.turns[number]
        if turn.conversation not in self._conversations and len(self._conversations) >= MOST_CONVERSATIONS:
            self._conversations.popitem(last=False)
        self._conversations.setdefault(turn.conversation, []).append(number)
        self._conversations.move_to_end(turn.conversation)
        heapq.heappush(self._queue, (-turn.priority, number, TurnRequest(number, turn, at_ns, now_ns - at_ns)))

    def _take(self, now_ns: int) -> None:
        while self._queue and self._idle:
            worker, (*_, one) = self._idle.pop(), heapq.heappop(self._queue)
            one.start_ns = max(now_ns, one.arrived_ns)
            self._work[worker] = one, self._steps(one)
            self._ready.append(worker)
            self._go_on()  # one that needs no storage frees its worker at once

    def _wait(self, until_ns: int) -> None:
        batch = self._moves.wait(until_ns)
        if batch is not None:
            self._moved(batch)
            self._go_on()

    # what a request does

    def _steps(self, one: TurnRequest) -> Iterator[Step]:
        """Yield its reads and writes, each once the one before is done."""
        for other in tuple(self._conversations.get(one.turn.conversation, ())):
            if other != one.number:  # later turns too, where a worker had them first
                yield from self._read(one, other)
        yield _ALLOCATE
        yield from self._store(one)
        self._allocating -= 1
        if self._to_allocate:
            self._ready.append(self._to_allocate.popleft())
        for _ in range(one.turn.reads):
            yield from self._read(one, one.number)

    def _read(self, one: TurnRequest, number: int) -> Iterator[Step]:
        if number in self._memory:
            self._memory.move_to_end(number)
            one.memory_reads += 1
            one.memory_bytes += self._plan.sizes[number]
        elif number in self._storage:
            self._storage.move_to_end(number)
            yield Way.READ, number

    def _store(self, one: TurnRequest) -> Iterator[Step]:
        size = self._plan.sizes[one.number]
        fits = yield from self._make_room(size)
        if fits:
            self._memory[one.number] = None
            self._memory_used += size
        else:
            yield from self._write(one.number)

    def _write(self, number: int) -> Iterator[Step]:
        size = self._plan.sizes[number]
        self._storage_used += size
        while self._storage_used > self._capacity:
            old = next((old for old in self._storage if old not in self._locks), None)
            if old is None:
                break  # all of it is being moved: the file system says whether it fits
            del self._storage[old]
            self._storage_used -= self._plan.sizes[old]
            self.removed += 1
            self._moves.submit(Batch(Way.REMOVE, -1, (old,)))
        yield Way.WRITE, number
        self._storage[number] = None

    def _make_room(self, size: int) -> Generator[Step, None, bool]:
        """Move out of memory what was used least recently; return whether `size` fits then (cache.py)."""
        most = self._plan.memory_bytes
        if not most or size > _LARGE_ENTRY * most:
            return False
        while self._memory_used + size > _FULL_MEMORY * most and self._memory_used >= _EMPTY * most:
            kept = sum(self._plan.sizes[number] for number in self._memory)
            if not self._memory or (kept < _LITTLE_KEPT * most and size > _HALF * _FULL_MEMORY * most):
                return False
            old, _ = self._memory.popitem(last=False)
            yield from self._write(old)
            self._memory_used -= self._plan.sizes[old]
        return True

    # what workers wait for

    def _go_on(self) -> None:
        while self._ready:
            self._advance(self._ready.popleft())

    def _advance(self, worker: int) -> None:
        one, steps = self._work[worker]
        for step in steps:
            if step is _ALLOCATE:
                if self._allocating >= self._plan.option.allocations:
                    self._to_allocate.append(worker)
                    self._allocating += 1  # its place is that of the one that makes room
                    return
                self._allocating += 1
                continue
            way, number = step
            if number in self._locks:
                self._locks[number].append((worker, way))
            else:
                self._locks[number] = deque()
                self._submit(worker, way, number)
            return
        del self._work[worker]
        one.done_ns = max(self._moves.now_ns(), one.start_ns)
        self._idle.append(worker)
        self._on_served(one)

    def _submit(self, worker: int, way: Way, number: int) -> None:
        if way is Way.READ:
            self._work[worker][0].begun_bytes = self._plan.sizes[number]
        self._moves.submit(Batch(way, worker, (number,)))

    def _moved(self, batch: Batch) -> None:
        (number,), worker = batch.objects, batch.place
        one, size = self._work[worker][0], self._plan.sizes[batch.objects[0]]
        if batch.way is Way.READ:
            one.reads, one.read_bytes, one.begun_bytes = one.reads + 1, one.read_bytes + size, 0
            one.again_bytes += size * (number == one.number)
            one.read_call_ns += batch.call_ns
            one.longest_read_ns = max(one.longest_read_ns, batch.longest_ns)
            one.loaded_ns = batch.ended_ns
        else:
            one.writes, one.written_bytes = one.writes + 1, one.written_bytes + size
            one.write_call_ns += batch.call_ns
            one.written_ns = batch.ended_ns
        waiting = self._locks[number]
        if waiting:
            self._submit(*waiting.popleft(), number)
        else:
            del self._locks[number]
        self._ready.append(worker)

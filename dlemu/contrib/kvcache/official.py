"""MLPerf Storage v3.0's kv_cache benchmark, "the official load": its requests, its server, and its published rates.

Formulas and constants are from kv_cache_benchmark (benchmark.py, workload.py, conversation.py, cache.py, config.yaml)
in https://github.com/mlcommons/storage, Apache-2.0, and from the rules of aggregation over ranks (Rules.md, 6.3.4).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dlemu.contrib.kvcache.mover import Batch, Mover, Operation
from dlemu.contrib.kvcache.settings import KvSettings, aligned
from dlemu.contrib.kvcache.summary import Official, Row
from dlemu.extend import UserError, rows_job

MAX_WORKERS = 500  # maximum number of serving threads; with fewer users, there is one per user
MAX_CONVERSATIONS = 1000  # number of conversations that the tool remembers
MAX_TURNS = 50  # maximum number of turns in a conversation
END_PROBABILITY = 0.2  # that a turn ends its conversation
DECODE_BATCH_TOKENS = 32  # Decoding reads the file once for each batch of so many tokens of the answer.
PREFILL_ONLY_TOKENS = 10_000  # Files of prompts of at least this length are never read back.
GIB = 2**30
_CLASS_PROBABILITIES = (0.15, 0.35, 0.5)  # config.yaml, qos_distribution: priority 3 interactive, 2 responsive, 1 batch
_PREFIX_PROBABILITY = 0.2  # that a prompt begins with one of three fixed sentences
_PREFIX_TOKENS = (5, 9, 6)  # words of each fixed sentence, which the tool subtracts from the prompt's tokens
_THINK_TIME_JITTER = (0.8, 1.2)  # range of a factor of each think time in benchmark.py, which keeps users out of step
TEMPLATES = (  # ranges from which a user's values are drawn: tokens of a prompt and of an answer, seconds of thinking
    ((512, 4096), (50, 200), (0.1, 0.5)),  # chatbot
    ((4096, 25_000), (100, 500), (0.2, 1.0)),  # coding
    ((4096, 16_384), (200, 800), (0.3, 1.5)),  # document
)
JOIN_NS = 2_000_000_000  # how long the tool waits for each worker at the end (benchmark.py, `join(timeout=2.0)`)
# Shares of the emulated memory (cache.py).
_MAX_FILL = 0.8  # up to which it is filled
_MIN_FILL = 0.05  # below which nothing is evicted
_MAX_ENTRY = 0.95  # above which an entry is not stored in it
_LARGE_ENTRY = 0.5 * _MAX_FILL  # above which an entry is large
_MIN_FILL_FOR_LARGE = 0.2  # below which a large new entry evicts nothing

Step = tuple[Operation, int] | Literal["wait"]  # on the file of a turn, by its number; or wait for permission to write


@dataclass(frozen=True, kw_only=True)
class Option:
    """A row of Table KVCache-1 (Rules.md of v3.0, 6.3.1.1)."""

    users: int
    memory_gib: int
    allocations: int  # maximum number of turns that are written at a time
    shape: Mapping[str, Any]  # settings of the model


_8B = {"layers": 32, "kv_heads": 8, "head_dim": 128, "attention_dim": 4096, "parameters_billion": 8.03}
_70B = {"layers": 80, "kv_heads": 8, "head_dim": 128, "attention_dim": 8192, "parameters_billion": 70.6}
OPTIONS = {
    1: Option(users=200, memory_gib=0, allocations=16, shape=_8B),
    2: Option(users=100, memory_gib=4, allocations=16, shape=_8B),
    3: Option(users=70, memory_gib=0, allocations=4, shape=_70B),
}
_NOT_APPLICABLE = (  # settings of dlemu's own load, refused with an option, which replaces them
    *("trace", "loop", "speed", "ttft", "load", "tp", "memory_gb", "block_tokens", "trace_block_tokens"),
    *("think_seconds", "turns", "prompt_tokens", "turn_tokens", "output_tokens", "system_prompts", "system_tokens"),
)


def with_option_defaults(settings: KvSettings) -> KvSettings:
    """Return the settings, completed by the option's model and users; raises UserError for impossible settings."""
    option, defaults = OPTIONS[settings.option], KvSettings()
    users = settings.users or option.users
    threads = min(users, MAX_WORKERS)
    refused = [name for name in _NOT_APPLICABLE if getattr(settings, name) != getattr(defaults, name)]
    if settings.threads not in (defaults.threads, threads):
        refused.append("threads")
    if refused:
        raise UserError(
            f"kv.option={settings.option} has its own load and memory, one file per turn, a thread for each user and "
            f"no limits: leave out {', '.join(f'kv.{name}' for name in refused)} (workload=mlperf_kv sets none of them)"
        )
    shape = {name: value for name, value in option.shape.items() if not getattr(settings, name)}
    if settings.latent_dim:  # Latent attention has no key-value heads.
        shape.pop("kv_heads", None)
    return replace(settings, **shape, users=users, threads=threads)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: a prompt in a conversation, and its answer."""

    at_ns: int
    priority: int
    conversation: int
    context_tokens: int
    stored_tokens: int  # tokens in its file: `context_tokens` except those of a fixed sentence
    output_tokens: int

    @property
    def reads(self) -> int:
        """How many times its file is read back after it has been written."""
        if self.context_tokens >= PREFILL_ONLY_TOKENS:
            return 0
        return 1 + max(1, -(-self.output_tokens // DECODE_BATCH_TOKENS))


@dataclass(frozen=True, eq=False)
class RankTurns:
    """The turns that one rank serves; block n is the file of turn n."""

    settings: KvSettings
    turns: Sequence[Turn]
    sizes: Sequence[int]  # bytes of each file
    accelerators: int = 0

    def __len__(self) -> int:
        return len(self.turns)

    def batches(self) -> Iterator[tuple[Batch, ...]]:
        """Yield the write and the reads of each turn's own file."""
        for number, turn in enumerate(self.turns):
            yield Batch(Operation.WRITE, 0, (number,)), Batch(Operation.READ, 0, (number,) * turn.reads)

    @property
    def peak_bytes(self) -> int:
        """Free space that is needed: for the files that are written at a time, as older files can be evicted."""
        concurrent_writes = min(OPTIONS[self.settings.option].allocations, self.settings.threads)
        return concurrent_writes * sum(self.sizes) // max(1, len(self.sizes))


def draw_turns(settings: KvSettings, rank: int) -> RankTurns:
    """Return the requests of a rank's users within `kv.seconds`; users don't wait for answers."""
    turns: list[Turn] = []
    # The tool's threads share one generator, so its requests vary. With one for each user, a seed determines the load.
    for user in range(settings.users):
        turns += _draw_user(settings, np.random.default_rng([settings.seed + rank, user]), user)
    turns.sort(key=lambda turn: turn.at_ns)
    sizes = [aligned(turn.stored_tokens * settings.token_bytes / settings.shrink) for turn in turns]
    return RankTurns(settings, turns, sizes)


def _draw_user(settings: KvSettings, random: np.random.Generator, user: int) -> Iterator[Turn]:
    context_range, output_range, think_range = TEMPLATES[int(random.integers(len(TEMPLATES)))]
    priority = 3 - int(random.choice(len(_CLASS_PROBABILITIES), p=_CLASS_PROBABILITIES))
    max_context = int(random.integers(context_range[0], context_range[1] + 1))
    max_output = int(random.integers(output_range[0], output_range[1] + 1))
    think_seconds = float(random.uniform(*think_range))
    max_turns = int(settings.seconds / (_THINK_TIME_JITTER[0] * think_seconds)) + 1
    at_seconds = np.cumsum(think_seconds * random.uniform(*_THINK_TIME_JITTER, max_turns))
    at_seconds = at_seconds[at_seconds < settings.seconds]
    count = len(at_seconds)
    contexts = random.integers(max(1, max_context // 4), max_context + 1, count)
    outputs = random.integers(max(1, max_output // 4), max_output + 1, count)
    ends = random.random(count) < END_PROBABILITY
    prefixes = np.where(random.random(count) < _PREFIX_PROBABILITY, random.choice(_PREFIX_TOKENS, count), 0)
    conversation = user << 32  # a number that no other user's conversation has
    conversation_turns = 0  # so far
    columns = (column.tolist() for column in (at_seconds, contexts, outputs, ends, prefixes))
    for seconds, tokens, output, ends_conversation, prefix in zip(*columns, strict=True):
        if conversation_turns and (ends_conversation or conversation_turns >= MAX_TURNS):
            conversation += 1
            conversation_turns = 0
        conversation_turns += 1
        yield Turn(round(seconds * 1e9), priority, conversation, tokens, max(1, tokens - prefix), output)


class TurnsReplay:
    """Serves one rank's turns as the tool does: a priority queue, a worker per user, and a clock that stops early.

    Here a worker is not a thread: it takes the next step of its request (`_steps`) when the last one is done. It waits
    in line for a file that another worker uses, and to write while the option's maximum of requests is writing. After
    `kv.seconds`, no worker takes a request. The tool then joins the workers one by one, with a timeout of 2 seconds
    each: the bytes that they move by then count, the time does not.
    """

    def __init__(
        self, plan: RankTurns, mover: Mover, *, on_served: Callable[[Row], object], capacity_bytes: float
    ) -> None:
        """`on_served` is called with each finished request; `capacity_bytes` limits the bytes on storage."""
        self._plan, self._mover, self._on_served = plan, mover, on_served
        self._settings, self._option = plan.settings, OPTIONS[plan.settings.option]
        self._idle = list(range(self._settings.threads))  # workers
        self._in_service: dict[int, tuple[Row, Iterator[Step]]] = {}  # worker -> its request, and the remaining steps
        self._queue: list[tuple[int, int, Row]] = []  # heap of (-priority, number, request): urgent classes first
        self._conversations: OrderedDict[int, list[int]] = OrderedDict()  # conversation -> numbers of its turns
        self._waiters_by_busy_file = dict[int, deque[tuple[int, Operation]]]()  # file -> (worker, operation) in line
        self._writing = 0  # number of requests with permission to write, at most `option.allocations`
        self._waiters_to_write = deque[int]()  # workers in line for that permission
        self._ready = deque[int]()  # workers whose next step can start
        self._memory = OrderedDict[int, None]()  # files in the emulated memory, least recently used first
        self._memory_bytes = 0
        self._storage = OrderedDict[int, None]()  # files on storage, least recently used first
        self._storage_bytes, self._capacity_bytes = 0, capacity_bytes
        self.evicted = 0  # number of files removed from storage to make room

    @property
    def unfinished(self) -> list[Row]:
        return [*(request for request, _ in self._in_service.values()), *(request for _, _, request in self._queue)]

    def run(self, begin_ns: int, on_progress: Callable[[int], object] = lambda arrived: None) -> None:
        """Serve turns until the clock stops, then join the workers; `on_progress` gets the number of arrived turns."""
        turns, end_ns, index = self._plan.turns, begin_ns + round(self._settings.seconds * 1e9), 0
        while (now_ns := self._mover.now_ns()) < end_ns:
            while index < len(turns) and begin_ns + turns[index].at_ns <= now_ns:
                self._arrive(index, begin_ns + turns[index].at_ns, now_ns)
                index += 1
                on_progress(index)
            self._assign(now_ns)
            next_ns = begin_ns + turns[index].at_ns if index < len(turns) else end_ns
            self._wait(min(next_ns, end_ns))
        for worker in range(self._settings.threads):  # The tool joins its threads in the order of their creation.
            until_ns = self._mover.now_ns() + JOIN_NS
            while worker in self._in_service and self._mover.now_ns() < until_ns:
                self._wait(until_ns)

    def _arrive(self, number: int, at_ns: int, now_ns: int) -> None:
        turn = self._plan.turns[number]
        self._conversations.setdefault(turn.conversation, []).append(number)
        self._conversations.move_to_end(turn.conversation)
        if len(self._conversations) > MAX_CONVERSATIONS:
            self._conversations.popitem(last=False)
        request = Row(
            prompt=number,
            arrived_ns=at_ns,
            late_ns=now_ns - at_ns,
            input_tokens=turn.context_tokens,
            output_tokens=turn.output_tokens,
        )
        heapq.heappush(self._queue, (-turn.priority, number, request))

    def _assign(self, now_ns: int) -> None:
        while self._queue and self._idle:
            worker = self._idle.pop()
            _, _, request = heapq.heappop(self._queue)
            request.start_ns = max(now_ns, request.arrived_ns)
            self._in_service[worker] = request, self._steps(worker, request)
            self._ready.append(worker)
            self._advance_ready()  # A request without storage operations frees its worker at once.

    def _wait(self, until_ns: int) -> None:
        batch = self._mover.wait(until_ns)
        if batch is not None:
            self._on_done(batch)
            self._advance_ready()

    def _advance_ready(self) -> None:
        while self._ready:
            worker = self._ready.popleft()
            request, steps = self._in_service[worker]
            step = next(steps, None)
            if step is None:  # The request is done.
                del self._in_service[worker]
                request.computed_ns = max(self._mover.now_ns(), request.start_ns)
                self._idle.append(worker)
                self._on_served(request)
            elif step != "wait":
                operation, number = step
                if number in self._waiters_by_busy_file:
                    self._waiters_by_busy_file[number].append((worker, operation))
                else:
                    self._waiters_by_busy_file[number] = deque()
                    self._submit(worker, operation, number)

    def _steps(self, worker: int, request: Row) -> Iterator[Step]:
        """Yield a request's steps: read the other files of its conversation, write its own, and read that back."""
        turn = self._plan.turns[request.prompt]
        for number in tuple(self._conversations.get(turn.conversation, ())):
            if number != request.prompt:  # This includes later turns that another worker has already stored.
                yield from self._read(request, number)
        if self._writing >= self._option.allocations:
            self._waiters_to_write.append(worker)
            yield "wait"
        else:
            self._writing += 1
        size = self._plan.sizes[request.prompt]
        if (yield from self._make_room(size)):
            self._memory[request.prompt] = None
            self._memory_bytes += size
        else:
            yield from self._write(request.prompt)
        if self._waiters_to_write:  # Pass the permission to write on to a waiting worker.
            self._ready.append(self._waiters_to_write.popleft())
        else:
            self._writing -= 1
        for _ in range(turn.reads):
            yield from self._read(request, request.prompt)

    def _read(self, request: Row, number: int) -> Iterator[Step]:
        if number in self._memory:
            self._memory.move_to_end(number)
            request.memory_blocks += 1
            request.memory_bytes += self._plan.sizes[number]
        elif number in self._storage:
            self._storage.move_to_end(number)
            yield Operation.READ, number

    def _write(self, number: int) -> Iterator[Step]:
        self._storage_bytes += self._plan.sizes[number]
        while self._storage_bytes > self._capacity_bytes:
            oldest = next((file for file in self._storage if file not in self._waiters_by_busy_file), None)
            if oldest is None:  # Every file is in use: let the file system decide whether the new file fits.
                break
            del self._storage[oldest]
            self._storage_bytes -= self._plan.sizes[oldest]
            self.evicted += 1
            self._mover.submit(Batch(Operation.REMOVE, -1, (oldest,)))
        yield Operation.WRITE, number
        self._storage[number] = None

    def _make_room(self, size: int) -> Generator[Step, None, bool]:
        """Move least recently used entries from memory to storage, as in cache.py; return whether `size` then fits."""
        memory = self._option.memory_gib * GIB // self._settings.shrink  # shrunk like the files
        if not memory or size > _MAX_ENTRY * memory:
            return False
        is_large = size > _LARGE_ENTRY * memory
        while self._memory_bytes + size > _MAX_FILL * memory and self._memory_bytes >= _MIN_FILL * memory:
            entries_bytes = sum(self._plan.sizes[number] for number in self._memory)  # except entries being moved
            if not self._memory or (is_large and entries_bytes < _MIN_FILL_FOR_LARGE * memory):
                return False
            oldest, _ = self._memory.popitem(last=False)
            yield from self._write(oldest)
            self._memory_bytes -= self._plan.sizes[oldest]
        return True

    def _submit(self, worker: int, operation: Operation, number: int) -> None:
        if operation is Operation.READ:
            self._in_service[worker][0].begun_bytes = self._plan.sizes[number]
        self._mover.submit(Batch(operation, worker, (number,)))

    def _on_done(self, batch: Batch) -> None:
        (number,) = batch.blocks
        request, size = self._in_service[batch.owner][0], self._plan.sizes[number]
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
        if self._waiters_by_busy_file[number]:
            self._submit(*self._waiters_by_busy_file[number].popleft(), number)  # for the next worker in line
        else:
            del self._waiters_by_busy_file[number]
        self._ready.append(batch.owner)


def official_result(rows: rows_job.Rows, begins: Mapping[int, int], settings: KvSettings) -> Official:
    """Return what the tool would publish of these requests; `begins` has the start of each rank's load, ns."""
    clock = settings.seconds  # The tool divides by it, however long the run took.
    done = rows[rows["computed_ns"] > 0]
    stops_ns = np.array([begins[rank] + clock * 1e9 for rank in done["rank"].tolist()])
    storage_seconds = (done["read_call_ns"] + done["write_call_ns"]) / 1e9
    by_rank = [done["rank"] == rank for rank in np.unique(done["rank"])]
    return Official(
        read_gib_per_second=int(rows["read_bytes"].sum() + rows["begun_bytes"].sum()) / GIB / clock,
        write_gib_per_second=int(rows["written_bytes"].sum()) / GIB / clock,
        served=len(done),
        late=int((done["computed_ns"] > stops_ns).sum()),
        storage_p95_seconds=max((float(np.percentile(storage_seconds[own], 95)) for own in by_rank), default=None),
        tokens_per_second=int(done["output_tokens"].sum()) / clock,
    )

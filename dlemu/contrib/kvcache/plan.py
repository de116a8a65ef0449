"""What a rank reads, writes and evicts for each prompt: its cache of blocks, and the size of its load.

The functions are pure: what depends on time, such as whether a block is still being written, is decided in `replay`.
Example: prompts of blocks [1, 2, 3] and then [1, 2, 4] -> the first writes 3 blocks, the second reads 2 and writes 1.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dlemu.contrib.kvcache.load import Prompt
from dlemu.contrib.kvcache.mover import Batch, Operation
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.extend import UserError

BUSY_SHARE = 0.5  # `kv.accelerators=0` chooses the number of accelerators so that they compute half of the time.
AFFINITY = 0.5  # A prompt goes to the rank with this share of its blocks, as in SGLang's router (cache_threshold).


class Lru(OrderedDict[int, int]):
    """Cache of blocks, each with a value, that evicts the least recently used block; `put` uses a block, `get` not."""

    def __init__(self, blocks: int | None) -> None:
        super().__init__()
        self._capacity = blocks

    def put(self, block: int, value: int) -> list[int]:
        """Add a block, or use it; return the values of the blocks evicted for it: its own if the capacity is 0."""
        self[block] = value
        self.move_to_end(block)
        evicted = []
        while self._capacity is not None and len(self) > self._capacity:
            evicted.append(self.popitem(last=False)[1])
        return evicted


class BlockCache:
    """Blocks that a rank has in memory and on storage (objects, numbered as they are written); evicts by LRU."""

    def __init__(self, settings: KvSettings) -> None:
        # Memory is scaled by kv.shrink, so that it holds as many tokens as with the full-size model.
        memory_bytes = int(settings.memory_gb * 1e9 / settings.shrink)
        stored = int(settings.capacity_gb * 1e9) // settings.block_bytes if settings.capacity_gb else None
        self._memory, self._storage = Lru(memory_bytes // settings.block_bytes), Lru(stored)
        self.objects = 0  # number of objects written so far

    def use(self, prompt: Prompt) -> tuple[list[tuple[int, bool]], list[int], list[int]]:
        """Store a prompt's blocks; return its cached prefix (object, whether in memory), objects to write, evicted."""
        blocks = prompt.blocks.tolist()
        prefix, writes, evicts = list[tuple[int, bool]](), list[int](), list[int]()
        for block in blocks:
            in_memory = block in self._memory
            cached = self._memory.get(block) if in_memory else self._storage.get(block)
            if cached is None:
                break
            prefix.append((cached, in_memory))
        for block in blocks:
            stored = self._storage.get(block)
            if stored is None:
                stored = self.objects
                writes.append(stored)
                self.objects += 1
            evicts += self._storage.put(block, stored)
            self._memory.put(block, stored)
        return prefix, writes, evicts


@dataclass(frozen=True, eq=False)
class RankPlan:
    """The prompts of one rank, and what they need."""

    settings: KvSettings
    prompts: Sequence[Prompt]
    accelerators: int
    sizes: Sequence[int]  # bytes of a shard of each object that is written; in a closed loop, at most so many are
    peak_bytes: int  # maximum bytes on storage, not counting the shards that the threads are writing

    def __len__(self) -> int:
        return len(self.prompts)

    def batches(self) -> Iterator[tuple[Batch, ...]]:
        """Yield the reads and the writes of each prompt, in order."""
        cache = BlockCache(self.settings)
        for prompt in self.prompts:
            prefix, writes, _ = cache.use(prompt)
            reads = [stored for stored, in_memory in prefix if not in_memory]
            yield Batch(Operation.READ, 0, reads), Batch(Operation.WRITE, 0, writes)


def assign_prompts(settings: KvSettings, load: Sequence[Prompt], ranks: int) -> list[list[Prompt]]:
    """Return the prompts of each rank, with their numbers and users.

    A prompt goes to the rank that has most of its blocks, if these are half of them or more; else to the rank with the
    fewest tokens so far. In a random closed loop, the prompts of a user go to one rank; in a closed loop of a trace, a
    rank's prompts are dealt out to its users in turn.
    """
    is_closed = settings.loop == "closed"
    owner: dict[int, int] = {}
    shares: list[list[Prompt]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for number, prompt in enumerate(load):
        if is_closed and not settings.trace:
            shares[prompt.user % ranks].append(replace(prompt, number=number))
            continue
        blocks = prompt.blocks.tolist()
        owned_blocks = Counter(owner[block] for block in blocks if block in owner)
        rank = max(range(ranks), key=owned_blocks.__getitem__)
        if not blocks or owned_blocks[rank] < AFFINITY * len(blocks):
            rank = min(range(ranks), key=tokens.__getitem__)
        for block in blocks:
            owner.setdefault(block, rank)
        tokens[rank] += prompt.input_tokens
        user = len(shares[rank])  # In an open loop, each prompt is of a user of its own.
        if is_closed:
            user %= settings.users_at_once
        shares[rank].append(replace(prompt, number=number, user=user))
    return shares


def plan_rank(settings: KvSettings, prompts: Sequence[Prompt]) -> RankPlan:
    """Return the plan of a rank for its prompts; raises UserError if `kv.capacity_gb` can't hold the longest."""
    capacity_bytes = settings.capacity_gb * 1e9 or math.inf
    longest_bytes = max((len(prompt.blocks) for prompt in prompts), default=0) * settings.block_bytes
    if capacity_bytes < longest_bytes:
        raise UserError(
            f"kv.capacity_gb is {settings.capacity_gb:g}, and the longest prompt alone has {longest_bytes / 1e9:.3g} "
            "GB: wanted more, or 0 for no limit"
        )
    cache, busy_seconds, users = BlockCache(settings), 0.0, len({prompt.user for prompt in prompts})
    for prompt in prompts:
        cached = cached_tokens(settings, prompt, len(cache.use(prompt)[0]))
        busy_seconds += settings.prefill_seconds(prompt.input_tokens, cached)
    span_seconds = prompts[-1].after_ns / 1e9 if prompts else 0.0
    if settings.loop == "closed":  # the time that it takes if prompts wait for nothing
        span_seconds = (busy_seconds + sum(prompt.after_ns for prompt in prompts) / 1e9) / max(1, users)
    copies = max(1, min(users, math.ceil(busy_seconds / (BUSY_SHARE * max(1.0, span_seconds)))))
    peak_bytes = int(min(cache.objects * settings.block_bytes, capacity_bytes))
    accelerators = settings.accelerators or settings.tp * copies
    return RankPlan(settings, prompts, accelerators, [settings.shard_bytes] * cache.objects, peak_bytes)


def cached_tokens(settings: KvSettings, prompt: Prompt, blocks: int) -> int:
    """Return how many tokens of a prompt its first `blocks` blocks hold, without the last, which is always computed."""
    return min(blocks * settings.block_tokens, prompt.input_tokens - 1)

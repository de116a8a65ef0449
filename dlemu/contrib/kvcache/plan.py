"""What a rank reads, writes and evicts for each prompt: its cache of blocks, and the size of its load.

Pure. What depends on time (a block that is still being written) is decided by `replay`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dlemu.contrib.kvcache.load import Load, Prompt
from dlemu.contrib.kvcache.model import Model
from dlemu.contrib.kvcache.mover import Batch, Operation
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.extend import UserError

BUSY_SHARE = 0.5
"""Utilisation (computing time) for which `kv.accelerators=0` chooses the number of accelerators."""
AFFINITY = 0.5
"""A prompt goes to the rank that has seen this share of its blocks, as in SGLang's router (cache_threshold)."""


class Lru(OrderedDict[int, int]):
    """Cache of blocks, each with a value, that evicts the least recently used one; looking one up is no use of it."""

    def __init__(self, blocks: int | None) -> None:
        super().__init__()
        self._capacity = blocks

    def put(self, block: int, value: int) -> list[int]:
        """Add a block, or use it; return the values of the blocks evicted for it, its own if the capacity is 0."""
        self[block] = value
        self.move_to_end(block)
        evicted = []
        while self._capacity is not None and len(self) > self._capacity:
            evicted.append(self.popitem(last=False)[1])
        return evicted


@dataclass(frozen=True, eq=False)
class CacheUse:
    """What a prompt does to the cache. Objects are blocks on storage, numbered in the order of writing."""

    found: Sequence[tuple[int, bool]]
    """The cached prefix: the object of each block, and whether it is found in memory."""
    writes: Sequence[int]
    evicts: Sequence[int]


class BlockCache:
    """Blocks that a rank has in memory and on storage, each with least-recently-used eviction."""

    def __init__(self, model: Model) -> None:
        settings = model.settings
        # Memory is scaled by kv.shrink, so that it holds as many tokens as with the full-size model.
        memory_bytes = int(settings.memory_gb * 1e9 / settings.shrink)
        stored = int(settings.capacity_gb * 1e9) // model.block_bytes if settings.capacity_gb else None
        self._memory, self._storage = Lru(memory_bytes // model.block_bytes), Lru(stored)
        self.objects = 0
        """How many have been written."""

    def use(self, prompt: Prompt) -> CacheUse:
        """Find a prompt's longest cached prefix, and store all its blocks."""
        blocks = prompt.blocks.tolist()
        found, writes, evicts = list[tuple[int, bool]](), list[int](), list[int]()
        for block in blocks:
            kept = self._memory.get(block)
            number = self._storage.get(block) if kept is None else kept
            if number is None:
                break
            found.append((number, kept is not None))
        for block in blocks:
            number = self._storage.get(block)
            if number is None:
                number = self.objects
                writes.append(number)
                self.objects += 1
            evicts += self._storage.put(block, number)
            self._memory.put(block, number)
        return CacheUse(found, writes, evicts)


@dataclass(frozen=True, eq=False)
class RankPlan:
    """The prompts of one rank, and what they need."""

    model: Model
    prompts: Sequence[Prompt]
    accelerators: int
    sizes: Sequence[int]
    """Bytes of a shard of each object."""
    peak_bytes: int
    """Maximum bytes on storage, not counting the shards that the threads are writing."""

    def __len__(self) -> int:
        return len(self.prompts)

    def batches(self) -> Iterator[tuple[Batch, ...]]:
        """Yield the reads and the writes of each prompt, in order."""
        cache = BlockCache(self.model)
        for prompt in self.prompts:
            use = cache.use(prompt)
            reads = tuple(number for number, in_memory in use.found if not in_memory)
            yield Batch(Operation.READ, 0, reads), Batch(Operation.WRITE, 0, use.writes)


def assign_prompts(load: Load, ranks: int) -> list[list[Prompt]]:
    """Return the prompts of each rank, numbered.

    A prompt goes to the rank that has seen most of its blocks, if that is half of them or more; else to the rank with
    the fewest tokens so far.
    """
    owner: dict[int, int] = {}
    shares: list[list[Prompt]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for number, prompt in enumerate(load):
        blocks = prompt.blocks.tolist()
        seen = [0] * ranks
        for block in blocks:
            if block in owner:
                seen[owner[block]] += 1
        rank = max(range(ranks), key=lambda one: seen[one])
        if not blocks or seen[rank] < AFFINITY * len(blocks):
            rank = min(range(ranks), key=lambda one: tokens[one])
        for block in blocks:
            owner.setdefault(block, rank)
        tokens[rank] += prompt.input_tokens
        shares[rank].append(replace(prompt, number=number))
    return shares


def plan_rank(settings: KvSettings, prompts: Sequence[Prompt]) -> RankPlan:
    """Return the plan of a rank for its prompts; raises UserError if `kv.capacity_gb` can't hold the longest."""
    model = Model(settings)
    longest_bytes = max((len(prompt.blocks) for prompt in prompts), default=0) * model.block_bytes
    if settings.capacity_gb and settings.capacity_gb * 1e9 < longest_bytes:
        raise UserError(
            f"kv.capacity_gb is {settings.capacity_gb:g}, and the longest prompt alone has {longest_bytes / 1e9:.3g} "
            "GB: wanted more, or 0 for no limit"
        )
    cache, evicted, peak_objects, busy_seconds = BlockCache(model), 0, 0, 0.0
    for prompt in prompts:
        use = cache.use(prompt)
        cached = cached_tokens(settings, prompt, len(use.found))
        busy_seconds += model.prefill_seconds(cached, prompt.input_tokens - cached)
        peak_objects = max(peak_objects, cache.objects - evicted)
        evicted += len(use.evicts)
    span_seconds = max(1.0, prompts[-1].at_ns / 1e9) if prompts else 1.0
    copies = max(1, math.ceil(busy_seconds / (BUSY_SHARE * span_seconds)))
    accelerators = settings.accelerators or settings.tp * copies
    return RankPlan(model, prompts, accelerators, [model.shard_bytes] * cache.objects, peak_objects * model.block_bytes)


def cached_tokens(settings: KvSettings, prompt: Prompt, blocks: int) -> int:
    """Return how many tokens of a prompt its first `blocks` blocks hold, without the last, which is always computed."""
    return min(blocks * settings.block_tokens, prompt.input_tokens - 1)

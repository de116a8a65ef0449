"""The plan of each rank: its prompts, and the blocks that it reads, writes and evicts for each of them.

A plan does not depend on time; `replay` finds out what does, such as whether a block is still being written. Example:
of prompts with the blocks [1, 2, 3] and [1, 2, 4], the first writes 3 blocks, the second reads 2 and writes 1.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dlemu.contrib.kvcache.load import Prompt
from dlemu.contrib.kvcache.mover import Batch, Operation
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.extend import UserError

BUSY_SHARE = 0.5  # With `kv.accelerators=0`, so many accelerators are emulated that they compute half of the time.
AFFINITY = 0.5  # A prompt goes to the rank with this share of its blocks, as in SGLang's router (cache_threshold).


class Lru(OrderedDict[int, int]):
    """Cache: block -> value; evicts the least recently used block. `put` counts as a use, `get` does not."""

    def __init__(self, capacity: int | None) -> None:
        super().__init__()
        self._capacity = capacity  # blocks; None: no limit

    def put(self, block: int, value: int) -> list[int]:
        """Add or use a block; return the values of the blocks evicted for it (its own if the capacity is 0)."""
        self[block] = value
        self.move_to_end(block)
        evicted = []
        while self._capacity is not None and len(self) > self._capacity:
            evicted.append(self.popitem(last=False)[1])
        return evicted


class CachedBlock(NamedTuple):
    object_id: int  # the block's number on storage
    in_memory: bool  # otherwise on storage alone


class BlockCache:
    """A rank's blocks in memory and on storage, where a block is an object, numbered in the order of writing."""

    def __init__(self, settings: KvSettings) -> None:
        # Memory is scaled by kv.shrink, so that it holds as many tokens as with the full-size model.
        memory_bytes = int(settings.memory_gb * 1e9 / settings.shrink)
        storage_blocks = int(settings.capacity_gb * 1e9) // settings.block_bytes if settings.capacity_gb else None
        self._memory = Lru(memory_bytes // settings.block_bytes)
        self._storage = Lru(storage_blocks)
        self.objects = 0  # number of objects written so far

    def use(self, prompt: Prompt) -> tuple[list[CachedBlock], list[int], list[int]]:
        """Store a prompt's blocks; return its cached prefix, and the ids of the objects to write and to evict."""
        blocks = prompt.blocks.tolist()
        prefix, writes, evicts = list[CachedBlock](), list[int](), list[int]()
        for block in blocks:
            in_memory = block in self._memory
            object_id = self._memory.get(block) if in_memory else self._storage.get(block)
            if object_id is None:
                break
            prefix.append(CachedBlock(object_id, in_memory))
        for block in blocks:
            object_id = self._storage.get(block)
            if object_id is None:
                object_id = self.objects
                writes.append(object_id)
                self.objects += 1
            evicts += self._storage.put(block, object_id)
            self._memory.put(block, object_id)
        return prefix, writes, evicts


@dataclass(frozen=True, eq=False)
class RankPlan:
    """The prompts of one rank, in the order of the load, and the accelerators and storage that they need."""

    settings: KvSettings
    prompts: Sequence[Prompt]
    accelerators: int
    sizes: Sequence[int]  # bytes of a shard of each object to write; a closed loop may write fewer objects
    peak_bytes: int  # maximum bytes on storage, except the shards that are being written

    def __len__(self) -> int:
        return len(self.prompts)

    def batches(self) -> Iterator[tuple[Batch, ...]]:
        """Yield (reads, writes) of each prompt, as if all earlier writes were done."""
        cache = BlockCache(self.settings)
        for prompt in self.prompts:
            prefix, writes, _ = cache.use(prompt)
            reads = [block.object_id for block in prefix if not block.in_memory]
            yield Batch(Operation.READ, 0, reads), Batch(Operation.WRITE, 0, writes)


def assign_prompts(settings: KvSettings, load: Sequence[Prompt], ranks: int) -> list[list[Prompt]]:
    """Return the prompts of each rank, with their numbers and users.

    A prompt goes to the rank that has most of its blocks, if it has AFFINITY of them; else to the rank with the fewest
    tokens so far. In a random closed loop, all prompts of a user go to one rank. In a closed loop of a trace, a rank's
    prompts are assigned to its users in turn.
    """
    is_closed = settings.loop == "closed"
    owner: dict[int, int] = {}  # block -> rank
    by_rank: list[list[Prompt]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks  # assigned so far
    for number, prompt in enumerate(load):
        if is_closed and not settings.trace:
            by_rank[prompt.user % ranks].append(replace(prompt, number=number))
            continue
        blocks = prompt.blocks.tolist()
        owned_blocks = Counter(owner[block] for block in blocks if block in owner)
        rank = max(range(ranks), key=owned_blocks.__getitem__)
        if not blocks or owned_blocks[rank] < AFFINITY * len(blocks):
            rank = min(range(ranks), key=tokens.__getitem__)
        for block in blocks:
            owner.setdefault(block, rank)
        tokens[rank] += prompt.input_tokens
        user = len(by_rank[rank])  # In an open loop, each prompt is of a user of its own.
        if is_closed:
            user %= settings.users_at_once
        by_rank[rank].append(replace(prompt, number=number, user=user))
    return by_rank


def plan_rank(settings: KvSettings, prompts: Sequence[Prompt]) -> RankPlan:
    """Return the plan of a rank for its prompts; raises UserError if `kv.capacity_gb` can't hold the longest."""
    capacity_bytes = settings.capacity_gb * 1e9 or math.inf
    longest_bytes = max((len(prompt.blocks) for prompt in prompts), default=0) * settings.block_bytes
    if capacity_bytes < longest_bytes:
        raise UserError(
            f"kv.capacity_gb is {settings.capacity_gb:g}, and the longest prompt alone has {longest_bytes / 1e9:.3g} "
            "GB: wanted more, or 0 for no limit"
        )
    users = len({prompt.user for prompt in prompts})
    cache = BlockCache(settings)
    busy_seconds = 0.0
    for prompt in prompts:
        prefix, _, _ = cache.use(prompt)
        busy_seconds += settings.prefill_seconds(prompt.input_tokens, cached_tokens(settings, prompt, len(prefix)))
    span_seconds = prompts[-1].after_ns / 1e9 if prompts else 0.0
    if settings.loop == "closed":  # the duration if no prompt has to wait
        span_seconds = (busy_seconds + sum(prompt.after_ns for prompt in prompts) / 1e9) / max(1, users)
    copies = max(1, min(users, math.ceil(busy_seconds / (BUSY_SHARE * max(1.0, span_seconds)))))
    peak_bytes = int(min(cache.objects * settings.block_bytes, capacity_bytes))
    accelerators = settings.accelerators or settings.tp * copies
    return RankPlan(settings, prompts, accelerators, [settings.shard_bytes] * cache.objects, peak_bytes)


def cached_tokens(settings: KvSettings, prompt: Prompt, blocks: int) -> int:
    """Return the tokens in a prompt's first `blocks` blocks, except its last token, which is always computed."""
    return min(blocks * settings.block_tokens, prompt.input_tokens - 1)

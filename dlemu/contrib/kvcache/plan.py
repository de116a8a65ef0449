"""What a rank does for each prompt, planned before the run: where each block is found, which are written and evicted.

Pure. The plan depends on the order of prompts and not on times, so that every storage gets the same requests. What does
depend on time (a block that is still being written) is decided during the run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from dlemu.contrib.kvcache.load import Load, Prompt
from dlemu.contrib.kvcache.model import Model
from dlemu.contrib.kvcache.mover import Batch, Operation
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.extend import UserError

BUSY_SHARE = 0.5
"""Utilisation (computing time) for which `kv.accelerators=0` chooses the number of accelerators."""
AFFINITY = 0.5
"""A prompt goes to the rank that has seen this share of its blocks, as in SGLang's router (cache_threshold)."""


class Tier(IntEnum):
    """Where a block is found, the fastest first."""

    GPU, DRAM, STORAGE = range(3)


class Lru:
    """Cache of blocks, each with a value, that evicts the least recently used one."""

    def __init__(self, blocks: int | None) -> None:
        self._capacity, self._values = blocks, OrderedDict[int, int]()

    def get(self, block: int) -> int | None:
        """Return the value of a block, None if it is not cached; does not count as use."""
        return self._values.get(block)

    def put(self, block: int, value: int) -> list[int]:
        """Add a block, or use it; return the values of the blocks evicted for it, its own if the capacity is 0."""
        self._values[block] = value
        self._values.move_to_end(block)
        evicted = []
        while self._capacity is not None and len(self._values) > self._capacity:
            evicted.append(self._values.popitem(last=False)[1])
        return evicted


@dataclass(frozen=True, eq=False)
class PlannedPrompt:
    """One prompt of a rank. Objects are blocks on storage, numbered in the order of writing."""

    number: int
    prompt: Prompt
    found: Sequence[tuple[Tier, int]]
    """The cached prefix: for each block, the tier where it is found and its object number (also if found in memory)."""
    writes: Sequence[int]
    evicts: Sequence[int]


@dataclass(frozen=True, eq=False)
class RankPlan:
    """The prompts of one rank, with what it reads and writes for each."""

    model: Model
    prompts: Sequence[PlannedPrompt]
    accelerators: int
    sizes: Sequence[int]
    """Bytes of a shard of each object."""
    peak_bytes: int
    """Maximum bytes on storage, not counting the shards that the threads are writing."""

    def __len__(self) -> int:
        return len(self.prompts)

    def batches(self, number: int) -> Iterator[Batch]:
        """Yield the reads and writes of a prompt."""
        prompt = self.prompts[number]
        yield Batch(Operation.READ, 0, tuple(found for tier, found in prompt.found if tier is Tier.STORAGE))
        yield Batch(Operation.WRITE, 0, tuple(prompt.writes))


def assign_prompts(load: Load, ranks: int) -> list[list[int]]:
    """Assign prompts to ranks; return the indices of each rank's prompts.

    A prompt goes to the rank that has seen most of its blocks, if that is half of them or more; else to the rank with
    the fewest tokens so far.
    """
    owner: dict[int, int] = {}
    shares: list[list[int]] = [[] for _ in range(ranks)]
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
        shares[rank].append(number)
    return shares


def plan_rank(settings: KvSettings, load: Load, numbers: Sequence[int]) -> RankPlan:
    """Return the plan of a rank for its prompts; raises UserError if `kv.capacity_gb` can't hold the longest."""
    model = Model(settings)
    capacity = int(settings.capacity_gb * 1e9) // model.block_bytes if settings.capacity_gb else None
    longest = max((len(load[number].blocks) for number in numbers), default=0)
    if capacity is not None and capacity < longest:
        raise UserError(
            f"kv.capacity_gb is {settings.capacity_gb:g}, and the longest prompt alone has "
            f"{longest * model.block_bytes / 1e9:.3g} GB: wanted more, or 0 for no limit"
        )
    storage = Lru(capacity)
    # Scaled by kv.shrink, so that the tiers hold as many tokens as with the full-size model.
    kept_bytes = [int(size * 1e9 / settings.shrink) for size in (settings.gpu_gb, settings.dram_gb)]
    gpu, dram = (Lru(size // model.block_bytes) for size in kept_bytes)
    planned, objects, evicted, peak_objects, busy_seconds = [], 0, 0, 0, 0.0
    for number in numbers:
        prompt = load[number]
        blocks = prompt.blocks.tolist()
        found = _cached_prefix(blocks, gpu, dram, storage)
        cached = cached_tokens(settings, prompt, len(found))
        busy_seconds += model.prefill_seconds(cached, prompt.input_tokens - cached)
        writes, evicts = list[int](), list[int]()
        for block in blocks:
            object_number = storage.get(block)
            if object_number is None:
                object_number = objects
                writes.append(object_number)
                objects += 1
            evicts += storage.put(block, object_number)
            for memory in (gpu, dram):  # their value is the object of the copy on storage
                memory.put(block, object_number)
        evicted += len(evicts)
        peak_objects = max(peak_objects, objects - evicted + len(evicts))
        planned.append(PlannedPrompt(number, prompt, found, writes, evicts))
    sizes = [model.shard_bytes] * objects
    span_seconds = max(1.0, load[numbers[-1]].at_ns / 1e9) if numbers else 1.0
    copies = max(1, int(np.ceil(busy_seconds / (BUSY_SHARE * span_seconds))))
    accelerators = settings.accelerators or settings.tp * copies
    return RankPlan(model, planned, accelerators, sizes, peak_objects * model.block_bytes)


def _cached_prefix(blocks: Sequence[int], gpu: Lru, dram: Lru, storage: Lru) -> list[tuple[Tier, int]]:
    """Return tier and object of each cached block, up to the first block that is in no tier."""
    found = []
    for block in blocks:
        known = ((tier, memory.get(block)) for tier, memory in zip(Tier, (gpu, dram, storage), strict=True))
        place = next(((tier, number) for tier, number in known if number is not None), None)
        if place is None:
            break
        found.append(place)
    return found


def cached_tokens(settings: KvSettings, prompt: Prompt, blocks: int) -> int:
    """Return how many tokens of a prompt its first `blocks` blocks hold, without the last, which is always computed."""
    return min(blocks * settings.block_tokens, prompt.input_tokens - 1)

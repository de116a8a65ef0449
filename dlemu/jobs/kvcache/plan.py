"""What a rank does for each prompt, decided before it begins: which blocks are found where, written, and let go.

Pure: times play no part but for the order of prompts, so that every storage is asked for the same. What depends on time
(a block that is still being written) is seen in the run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from datagen.errors import UserError
from dlemu.jobs.kvcache.load import Load, Prompt
from dlemu.jobs.kvcache.model import Model
from dlemu.jobs.kvcache.settings import KvSettings

BUSY_SHARE = 0.5
"""Of the accelerators' time that computing takes where their number is chosen here."""
AFFINITY = 0.5
"""Share of a prompt's blocks that a rank must have seen to get it, as SGLang's router has it (cache_threshold)."""


class Tier(IntEnum):
    """Where a block is found."""

    GPU, DRAM, STORAGE = range(3)


class Lru:
    """Blocks in a memory of some size; the one used least recently goes first."""

    def __init__(self, blocks: int | None) -> None:
        """`blocks`: how many fit; None for no limit."""
        self._most, self._kept = blocks, OrderedDict[int, int]()

    def get(self, block: int) -> int | None:
        """Return what is kept for a block, None where it is not there; it is used by nobody thereby."""
        return self._kept.get(block)

    def use(self, block: int) -> None:
        """Note that a block was used now."""
        if block in self._kept:
            self._kept.move_to_end(block)

    def put(self, block: int, value: int = 0) -> Iterable[int]:
        """Keep a block; return what was kept for those that went for it, itself where nothing fits."""
        self._kept[block] = value
        self._kept.move_to_end(block)
        gone = []
        while self._most is not None and len(self._kept) > self._most:
            gone.append(self._kept.popitem(last=False)[1])
        return gone


@dataclass(frozen=True, eq=False)
class Planned:
    """One prompt of a rank. Objects are blocks as they lie on the storage, numbered as they are written."""

    number: int
    """In the whole load, from 0."""
    prompt: Prompt
    found: Sequence[tuple[Tier, int]]
    """Of its first blocks: where each is, and its object (of those in memory too)."""
    writes: Sequence[int]
    """Objects that are written once it is computed."""
    evicts: Sequence[int]
    """Objects that go for them."""


@dataclass(frozen=True, eq=False)
class RankPlan:
    """What one rank does."""

    model: Model
    prompts: Sequence[Planned]
    accelerators: int
    objects: int
    """Written in all."""
    most_objects: int
    """Kept at a time."""

    @property
    def peak_bytes(self) -> int:
        """What it takes on the storage at most, one block and shard that is being written for each thread aside."""
        return self.most_objects * self.model.block_bytes


def deal(load: Load, ranks: int) -> list[list[int]]:
    """Return the prompts' numbers for each rank.

    To the rank that has seen most of a prompt's blocks, if those are half of them; else to the one with the fewest
    tokens so far.
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
    """Return the plan of a rank that has these prompts; raises UserError where the storage's share can't hold one."""
    model = Model(settings)
    capacity = int(settings.capacity_gb * 1e9) // model.block_bytes if settings.capacity_gb else None
    longest = max((len(load[number].blocks) for number in numbers), default=0)
    if capacity is not None and capacity < longest:
        raise UserError(
            f"kv.capacity_gb is {settings.capacity_gb:g}, and the longest prompt alone has "
            f"{longest * model.block_bytes / 1e9:.3g} GB: wanted more, or 0 for no limit"
        )
    storage = Lru(capacity)
    # As many tokens as of the model at full size: shrunken blocks are found where its own would be.
    kept_bytes = (int(size * 1e9 / settings.shrink) for size in (settings.gpu_gb, settings.dram_gb))
    gpu, dram = (Lru(size // model.block_bytes) for size in kept_bytes)
    planned, objects, evicted, most = [], 0, 0, 0
    for number in numbers:
        prompt = load[number]
        blocks = prompt.blocks.tolist()
        found = _found(blocks, gpu, dram, storage)
        writes: list[int] = []
        evicts: list[int] = []
        for block in blocks:
            if storage.get(block) is None:
                writes.append(objects)
                evicts += storage.put(block, objects)
                objects += 1
            storage.use(block)
            kept = storage.get(block)
            assert kept is not None  # the longest prompt fits
            for memory in (gpu, dram):  # which know it by the object that it is a copy of
                memory.put(block, kept)
        evicted += len(evicts)
        most = max(most, objects - evicted + len(evicts))
        planned.append(Planned(number, prompt, found, writes, evicts))
    return RankPlan(model, planned, _accelerators(settings, model, planned), objects, most)


def _found(blocks: Sequence[int], gpu: Lru, dram: Lru, storage: Lru) -> list[tuple[Tier, int]]:
    """Return where the prefix that is there lies, block by block; it ends at the first that is nowhere."""
    found = []
    for block in blocks:
        for tier, memory in ((Tier.GPU, gpu), (Tier.DRAM, dram), (Tier.STORAGE, storage)):
            kept = memory.get(block)
            if kept is not None:
                found.append((tier, kept))
                break
        else:
            break
    return found


def cached_tokens(settings: KvSettings, prompt: Prompt, blocks: int) -> int:
    """Return how many tokens of a prompt so many blocks hold; one at least is computed, for the answer begins there."""
    return min(blocks * settings.block_tokens, prompt.input_tokens - 1)


def _accelerators(settings: KvSettings, model: Model, planned: Sequence[Planned]) -> int:
    if settings.accelerators or not planned:
        return settings.accelerators or settings.tp
    seconds = 0.0
    for one in planned:
        cached = cached_tokens(settings, one.prompt, len(one.found))
        seconds += model.prefill_seconds(cached, one.prompt.input_tokens - cached)
    span = max(1.0, planned[-1].prompt.at_ns / 1e9)
    return settings.tp * max(1, int(np.ceil(seconds / (BUSY_SHARE * span))))

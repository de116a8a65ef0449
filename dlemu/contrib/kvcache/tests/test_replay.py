"""Plan and replay: bytes and time of a model, blocks found by a slow model of LRU, loads by one of a pipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.errors import UserError
from dlemu.config import load
from dlemu.contrib.kvcache.load import Prompt
from dlemu.contrib.kvcache.mover import Operation
from dlemu.contrib.kvcache.plan import BlockCache, RankPlan, plan_rank
from dlemu.contrib.kvcache.replay import Replay
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.contrib.kvcache.summary import Row
from dlemu.contrib.kvcache.tests.pipe import BEGIN_NS, SECOND_NS, Pipe

SMALL = KvSettings(layers=1, kv_heads=1, head_dim=1024, element_bytes=1, block_tokens=2, prefill_tokens_per_second=1e6)
BLOCK_GB = 4096 / 1e9  # a block of it


@pytest.mark.parametrize(
    ("name", "words", "token_bytes", "shard_bytes"),
    [
        ("llama3_1_8b", [], 131_072, 32 << 20),
        ("llama3_1_70b", [], 327_680, 20 << 20),
        ("llama3_1_70b", ["kv.tp=16", "kv.accelerators=16"], 2 * 327_680, 10 << 20),  # heads are there twice
        ("deepseek_v3", [], 70_272, 17_989_632),
    ],
)
def test_the_bytes_of_a_token_are_the_published_ones(
    name: str, words: list[str], token_bytes: int, shard_bytes: int
) -> None:
    kv = load([f"workload={name}", *words]).section(KvSettings)
    assert (kv.token_bytes, kv.shard_bytes) == (token_bytes, shard_bytes)
    assert kv.block_bytes == shard_bytes * kv.tp


def test_a_prefill_takes_about_as_long_as_published() -> None:
    """Llama 3 70B, 128 k tokens on 4 H100: about 20 s (IBM, 2025). Half of the tokens cached save less than half."""
    kv = load(["workload=llama3_1_70b", "kv.accelerator=h100"]).section(KvSettings)
    whole = kv.prefill_seconds(131_072, 0)
    assert whole == pytest.approx(20, rel=0.15)
    assert kv.prefill_seconds(65_536, 0) + kv.prefill_seconds(131_072, 65_536) == pytest.approx(whole)
    assert kv.prefill_seconds(131_072, 65_536) > 0.5 * whole
    given_rate = replace(kv, prefill_tokens_per_second=1600.0)
    assert given_rate.prefill_seconds(10**6, 10**6 - 131_072) == pytest.approx(131_072 / 6400)


def plan(kv: KvSettings, *prompts: tuple[float, list[int]], tail: int = 1) -> RankPlan:
    load = [Prompt(round(at * SECOND_NS), 2 * len(c) + tail, 1, np.array(c, np.int64)) for at, c in prompts]
    return plan_rank(kv, [replace(prompt, number=number, user=number) for number, prompt in enumerate(load)])


def test_what_a_prompt_can_never_fit_into_is_refused() -> None:
    with pytest.raises(UserError, match=r"kv.capacity_gb is .* and the longest prompt alone has 1.23e-05 GB"):
        plan(replace(SMALL, capacity_gb=2.5 * BLOCK_GB), (0, [1, 2, 3]))


@given(
    chains=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=30),
    capacity=st.integers(6, 12),
    memory=st.integers(0, 6),
)
def test_storage_and_memory_keep_what_was_used_last(chains: list[list[int]], capacity: int, memory: int) -> None:
    """Against a list by last use: chains of numbers are prefixes, so trees."""
    trees = [[hash(tuple(chain[: end + 1])) for end in range(len(chain))] for chain in chains]
    kv = replace(SMALL, capacity_gb=(capacity + 0.5) * BLOCK_GB, memory_gb=(memory + 0.5) * BLOCK_GB)
    planned = plan(kv, *enumerate(trees))
    uses = list(map(BlockCache(planned.settings).use, planned.prompts))
    used: list[int] = []
    objects: dict[int, int] = {}  # block -> the last object that it was written as
    written = 0
    for (found, _, _), chain in zip(uses, trees, strict=True):
        there = next((place for place, block in enumerate(chain) if block not in used), len(chain))
        recent = used[max(0, len(used) - memory) :]
        assert found == [(objects[block], block in recent) for block in chain[:there]]
        for block in chain:
            if block in used:
                used.remove(block)
            else:
                objects[block], written = written, written + 1
            used = [*used, block][-capacity:]
    gone = [number for _, _, evicts in uses for number in evicts]
    assert (
        [number for _, writes, _ in uses for number in writes]
        == list(range(len(planned.sizes)))
        == list(range(written))
    )
    assert set(range(written)) - set(gone) == {objects[block] for block in used}
    assert len(set(gone)) == len(gone), "nothing goes twice"


def pipe_of(block_ns: int, writes_ns: int | None = None) -> Pipe:
    return Pipe(lambda way, _: block_ns if way is Operation.READ or writes_ns is None else writes_ns)


def replayed(plan: RankPlan, pipe: Pipe) -> tuple[list[Row], Replay]:
    served: list[Row] = []
    replay = Replay(plan, cast(Any, pipe), on_served=served.append)
    replay.run(BEGIN_NS)
    return sorted(served, key=lambda one: one.prompt), replay


@settings(deadline=None)
@given(
    gaps=st.lists(st.integers(0, 3000), min_size=2, max_size=40),
    sizes=st.lists(st.integers(1, 40), min_size=40, max_size=40),
    block_ms=st.integers(1, 100),
)
def test_loads_take_as_long_as_by_a_model_of_one_pipe(gaps: list[int], sizes: list[int], block_ms: int) -> None:
    """Reads of blocks that a first prompt wrote, computing and further writing at no cost: nothing but the queue."""
    whole = list(range(100))
    at_ms = (10_000 + np.cumsum(gaps)).tolist()
    sizes = sizes[: len(at_ms)]
    asked = [(0.0, whole), *((at / 1e3, whole[:size]) for at, size in zip(at_ms, sizes, strict=True)), (10_000.0, [0])]
    served, _ = replayed(plan(replace(SMALL, accelerators=1000), *asked), pipe_of(block_ms * 10**6, writes_ns=1))
    free_ms, wanted = 0, []
    for at, size in zip(at_ms, sizes, strict=True):  # the model: a clerk who serves one after the other
        free_ms = max(free_ms, at) + size * block_ms
        wanted.append((free_ms - at) / 1e3)
    got = [(one.loaded_ns - one.arrived_ns) / 1e9 for one in served[1:-1]]
    assert got == pytest.approx(wanted)


def test_an_accelerator_waits_for_blocks_computes_and_takes_the_next_in_order() -> None:
    kv = replace(SMALL, prefill_tokens_per_second=1.0, accelerators=1)
    asked = plan(kv, (0.0, [1, 2]), (100.0, [1, 2]), (100.5, [8]), tail=2)
    first, second, third = replayed(asked, pipe_of(SECOND_NS))[0]
    assert first.computed_ns - BEGIN_NS == 6 * SECOND_NS, "6 tokens at one a second, nothing to load"
    assert first.written_ns - BEGIN_NS == 8 * SECOND_NS, "two blocks, once they are computed"
    assert second.loaded_ns - BEGIN_NS == 102 * SECOND_NS
    assert second.computed_ns - BEGIN_NS == 104 * SECOND_NS, "waited 2 s, computed the 2 tokens that no block has"
    assert second.without_ns - second.compute_ns == 4 * SECOND_NS
    assert third.start_ns - BEGIN_NS == 104 * SECOND_NS, "nothing to load, but the accelerator was held"
    assert third.computed_ns - BEGIN_NS == 108 * SECOND_NS


def test_reads_go_before_writes_and_what_is_being_written_is_read_from_memory() -> None:
    pipe = pipe_of(SECOND_NS)
    asked = plan(
        replace(SMALL, accelerators=4), (0.0, [1]), (10.0, [5, 6, 7]), (10.1, [8]), (10.2, [1]), (10.3, [5, 6, 7])
    )
    served, _ = replayed(asked, pipe)
    assert served[1].written_ns - BEGIN_NS == pytest.approx(13e9, rel=1e-5), "the first write is under way and ends"
    assert served[3].loaded_ns - BEGIN_NS == pytest.approx(14e9, rel=1e-5), "then the read, asked for last"
    assert served[2].written_ns - BEGIN_NS == pytest.approx(15e9, rel=1e-5)
    assert (served[4].pending_blocks, served[4].storage_blocks) == (3, 0)
    assert served[4].loaded_ns == served[4].arrived_ns


def test_what_nobody_has_computed_yet_is_computed_again() -> None:
    kv = replace(SMALL, prefill_tokens_per_second=1.0, accelerators=2)
    first, second = replayed(plan(kv, (0.0, [1, 2]), (1.0, [1, 2])), pipe_of(1))[0]
    assert (second.cached_tokens, second.compute_ns) == (0, 5 * SECOND_NS)
    assert (first.written_blocks, second.written_blocks) == (2, 0)


@settings(deadline=None)
@given(
    chains=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=25),
    gap_ms=st.integers(1, 3000),
    rate=st.sampled_from([0.5, 1000.0]),
)
def test_blocks_go_once_each_and_never_while_they_are_needed(chains: list[list[int]], gap_ms: int, rate: float) -> None:
    """The pipe refuses to remove what is not written or still read, and to read what is gone."""
    trees = [[hash(tuple(chain[: end + 1])) for end in range(len(chain))] for chain in chains]
    kv = replace(SMALL, capacity_gb=4.5 * BLOCK_GB, prefill_tokens_per_second=rate, accelerators=3)
    pipe = pipe_of(SECOND_NS // 2)
    planned = plan(kv, *((place * gap_ms / 1e3, chain) for place, chain in enumerate(trees)))
    served, replay = replayed(planned, pipe)
    if not replay.unfinished:
        objects = len(planned.sizes)
        dropped = objects - sum(one.written_blocks for one in served)
        assert len(pipe.written) == objects - dropped
        assert len(set(pipe.removed)) == len(pipe.removed) == replay.evicted - dropped
        assert len(pipe.written) - len(pipe.removed) <= 4


def test_a_load_that_never_ends_is_given_up() -> None:
    asked = [(0.0, list(range(50))), *((10.0 + place, list(range(50))) for place in range(20))]
    served, replay = replayed(plan(replace(SMALL, accelerators=1000), *asked), pipe_of(SECOND_NS, writes_ns=1))
    assert len(replay.unfinished) > 10
    assert len(served) + len(replay.unfinished) == 21

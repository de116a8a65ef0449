"""The plan: bytes of the model, time of a prefill, and which blocks are found where, against a slow model of LRU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datagen.errors import UserError
from dlemu.config import load
from dlemu.contrib.kvcache.load import Load, Prompt
from dlemu.contrib.kvcache.model import Model
from dlemu.contrib.kvcache.plan import RankPlan, Tier, plan_rank
from dlemu.contrib.kvcache.settings import KvSettings

SMALL = KvSettings(layers=1, kv_heads=1, head_dim=1024, element_bytes=1, block_tokens=2, prefill_tokens_per_second=10)
"""A block has 4096 bytes."""
BLOCK_GB = 4096 / 1e9


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
    model = Model(load([f"workload={name}", *words]).section(KvSettings))
    assert model.token_bytes == token_bytes
    assert model.shard_bytes == shard_bytes
    assert model.block_bytes == shard_bytes * model.settings.tp


def test_a_prefill_takes_about_as_long_as_published() -> None:
    """Llama 3 70B, 128 k tokens on 4 H100: about 20 s (IBM, 2025). Half of the tokens cached save less than half."""
    model = Model(load(["workload=llama3_1_70b", "kv.accelerator=h100"]).section(KvSettings))
    whole = model.prefill_seconds(0, 131_072)
    assert whole == pytest.approx(20, rel=0.15)
    assert model.prefill_seconds(0, 65_536) + model.prefill_seconds(65_536, 65_536) == pytest.approx(whole)
    assert model.prefill_seconds(65_536, 65_536) > 0.5 * whole
    given_rate = Model(replace(model.settings, prefill_tokens_per_second=1600.0))
    assert given_rate.prefill_seconds(10**6, 131_072) == pytest.approx(131_072 / 6400)


def prompts(*chains: list[int], tail: int = 1) -> Load:
    return [
        Prompt(place * 10**9, 2 * len(chain) + tail, 1, np.array(chain, np.int64)) for place, chain in enumerate(chains)
    ]


def plan(settings: KvSettings, load: Load) -> RankPlan:
    return plan_rank(settings, load, range(len(load)))


def test_a_prefix_is_found_up_to_the_first_block_that_is_nowhere() -> None:
    first, second, third = plan(SMALL, prompts([1, 2, 3], [1, 2, 4, 5], [9, 2])).prompts
    assert (list(first.found), list(first.writes)) == ([], [0, 1, 2])
    assert list(second.found) == [(Tier.STORAGE, 0), (Tier.STORAGE, 1)]
    assert list(second.writes) == [3, 4]
    assert list(third.found) == [], "a block's number means its whole prefix"
    assert list(third.writes) == [5], "block 2 is there, though nothing leads to it"


def test_what_a_prompt_can_never_fit_into_is_refused() -> None:
    with pytest.raises(UserError, match=r"kv.capacity_gb is .* and the longest prompt alone has 1.23e-05 GB"):
        plan(replace(SMALL, capacity_gb=2.5 * BLOCK_GB), prompts([1, 2, 3]))


@given(
    chains=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=30),
    capacity=st.integers(6, 12),
)
def test_storage_keeps_what_was_used_last(chains: list[list[int]], capacity: int) -> None:
    """Against a list by last use: chains of numbers are prefixes, so trees."""
    trees = [[hash(tuple(chain[: end + 1])) for end in range(len(chain))] for chain in chains]
    planned = plan(replace(SMALL, capacity_gb=(capacity + 0.5) * BLOCK_GB), prompts(*trees)).prompts
    used: list[int] = []
    objects: dict[int, int] = {}  # block -> the last object that it was written as
    written = 0
    for one, chain in zip(planned, trees, strict=True):
        there = next((place for place, block in enumerate(chain) if block not in used), len(chain))
        assert [number for _, number in one.found] == [objects[block] for block in chain[:there]]
        for block in chain:
            if block in used:
                used.remove(block)
            else:
                objects[block], written = written, written + 1
            used = [*used, block][-capacity:]
    gone = [number for one in planned for number in one.evicts]
    assert [number for one in planned for number in one.writes] == list(range(written))
    assert set(range(written)) - set(gone) == {objects[block] for block in used}
    assert len(set(gone)) == len(gone), "nothing goes twice"

"""Prompts: a trace is read as it is meant and refused where it is not one; drawn ones share prefixes as users do."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from datagen.errors import UserError
from dlemu.config import load
from dlemu.contrib.kvcache import load as loads
from dlemu.contrib.kvcache.job import JOB
from dlemu.contrib.kvcache.load import draw, make_load, read_trace
from dlemu.contrib.kvcache.settings import KvSettings

LINE = {"timestamp": 27000, "input_length": 1100, "output_length": 50, "hash_ids": [7, 9, 2**70]}


def trace(folder: Path, *lines: object) -> KvSettings:
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return KvSettings(trace=str(path), seconds=0)


def test_a_trace_is_read_in_blocks_of_the_engine(tmp_path: Path) -> None:
    settings = trace(tmp_path, LINE, "", LINE | {"timestamp": 26000, "input_length": 900, "hash_ids": [7, 8]})
    first, second = read_trace(settings)
    assert (first.after_ns, second.after_ns) == (0, 1_000_000_000), "by time, from the first on"
    assert (second.input_tokens, second.output_tokens) == (1100, 50)
    assert len(first.blocks) == 900 // 256, "whole blocks alone"
    assert len(second.blocks) == 1100 // 256
    assert np.array_equal(first.blocks[:2], second.blocks[:2]), "one id is two blocks of 256"
    assert not set(first.blocks[2:].tolist()) & set(second.blocks[2:].tolist())


def test_a_load_runs_faster_and_is_cut(tmp_path: Path) -> None:
    lines = [LINE | {"timestamp": 1000 * second} for second in range(10)]
    settings = replace(trace(tmp_path, *lines), speed=2.0, seconds=3.0)
    assert [prompt.after_ns for prompt in make_load(settings, 1)] == [500_000_000 * place for place in range(6)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "truncated"),
        ("[" * 100_000, "wanted an object with timestamp"),
        ({"timestamp": 1}, "missing required field `input_length`"),
        *((LINE | {"timestamp": seconds}, "timestamp in whole ms") for seconds in (0.013, 1.5, 1.7e9 + 0.25)),
        (LINE | {"input_length": 10**12}, "Expected `int` <= 100000000"),
        (LINE | {"hash_ids": [1, 2]}, "hash_ids has 2 values: wanted 3"),
        ("x" * (loads.MAX_LINE_BYTES + 1), "more than 1,048,576 bytes"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: object, said: str) -> None:
    settings = trace(tmp_path, LINE, line)
    with pytest.raises(UserError) as caught:
        read_trace(settings)
    assert said in str(caught.value)
    assert "line 2" in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("place", ["kv.folder=s3://bucket/kv", "kv.folder=file:/kv"])
def test_a_url_is_no_place(place: str) -> None:
    with pytest.raises(UserError, match=rf"{place.partition('=')[0]} is .*, a URL: wanted"):
        JOB.complete(load(["workload=llama3_1_8b", place]))
    store = ["storage.storage_type=fsspec", "storage.storage_root=memory://b", "kv.folder=memory://b/kv"]
    JOB.complete(load(["workload=llama3_1_8b", *store]))


def test_what_is_no_trace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="is empty: wanted a line"):
        read_trace(trace(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    for path, why in (("pipe", "it is a pipe"), ("missing", "No such file"), (".", "it is a folder")):
        with pytest.raises(UserError, match=f"can't be read: {why}"):
            read_trace(KvSettings(trace=str(tmp_path / path)))
    monkeypatch.setattr(loads, "MAX_REQUESTS", 3)
    with pytest.raises(UserError, match="more than 3 prompts"):
        read_trace(trace(tmp_path, *[LINE] * 4))
    with pytest.raises(UserError, match=r"no prompt within kv.seconds"):
        make_load(KvSettings(seconds=1e-9), 1)


SETTINGS = KvSettings(users=20, seconds=200.0, think_seconds=5.0, system_prompts=3, system_tokens=1000)


def test_a_drawn_load_is_that_of_its_seed_and_prompts_come_as_often_as_users_think() -> None:
    one, same, other = (
        [(prompt.after_ns, *prompt.blocks.tolist()) for prompt in draw(replace(SETTINGS, seed=seed), 1)]
        for seed in (1, 1, 2)
    )
    assert one == same == sorted(one, key=lambda prompt: prompt[0])
    assert one != other
    wanted = SETTINGS.users * SETTINGS.seconds / SETTINGS.think_seconds
    assert [len(one), len(draw(SETTINGS, 2))] == pytest.approx([wanted, 2 * wanted], rel=0.15)
    assert len(make_load(replace(SETTINGS, speed=3.0), 1)) == pytest.approx(3 * wanted, rel=0.15), "in as much time"


def test_a_conversation_grows_and_conversations_share_their_system_prompt_alone() -> None:
    conversations: dict[int, list[list[int]]] = {}
    shared = SETTINGS.system_tokens // SETTINGS.block_tokens
    for prompt in draw(SETTINGS, 1):
        blocks = prompt.blocks.tolist()
        assert len(blocks) == prompt.input_tokens // SETTINGS.block_tokens
        if len(blocks) > shared:
            conversations.setdefault(blocks[shared], []).append(blocks)
    assert sum(len(turns) > 1 for turns in conversations.values()) > 50
    for turns in conversations.values():
        for before, after in pairwise(turns):
            assert after[: len(before)] == before, "all that was said before, and more"
    heads = {tuple(turns[0][:shared]) for turns in conversations.values()}
    assert len(heads) == SETTINGS.system_prompts
    own = [set(turns[-1][shared:]) for turns in conversations.values()]
    assert len(set.union(*own)) == sum(map(len, own)), "no two conversations share more"

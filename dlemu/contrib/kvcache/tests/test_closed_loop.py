"""A closed loop: users who wait for an answer, think, and send the next prompt."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.errors import UserError
from dlemu.config import load
from dlemu.contrib.kvcache.job import JOB, plans_of
from dlemu.contrib.kvcache.load import draw
from dlemu.contrib.kvcache.mover import Operation
from dlemu.contrib.kvcache.plan import RankPlan
from dlemu.contrib.kvcache.replay import Replay
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.contrib.kvcache.summary import Row
from dlemu.contrib.kvcache.tests.pipe import BEGIN_NS, SECOND_NS, Pipe
from dlemu.contrib.kvcache.tests.test_load import LINE, trace
from dlemu.contrib.kvcache.tests.test_result import prompt, result

LLAMA = ["workload=llama3_1_8b", "scale=laptop", "kv.loop=closed", "kv.users=4", "kv.seconds=10", "kv.think_seconds=1"]
CLOSED = load(LLAMA).section(KvSettings)
OVER_NS = BEGIN_NS + 10 * SECOND_NS


def served(plan: RankPlan, read_ms: float = 1.0, write_ms: float = 0.0) -> list[Row]:
    """Serve a plan by a storage that moves one block after another; return the prompts in order of arrival."""
    rows: list[Row] = []
    moved_ns = {Operation.READ: read_ms * 1e6, Operation.WRITE: write_ms * 1e6}
    Replay(plan, cast(Any, Pipe(lambda way, _: moved_ns[way])), on_served=rows.append).run(BEGIN_NS)
    return sorted(rows, key=lambda row: (row.arrived_ns, row.prompt))


@settings(deadline=None, max_examples=40)
@given(
    users=st.integers(1, 5),
    think=st.sampled_from([0.0, 0.3, 4.0]),
    read_ms=st.floats(0.1, 50),
    accelerators=st.integers(0, 3),
    capacity=st.sampled_from([0.0, 0.15, 1.0]),
)
def test_a_user_waits_for_the_answer_and_littles_law_holds(
    users: int, think: float, read_ms: float, accelerators: int, capacity: float
) -> None:
    """N = X (R + Z), Little 1961: users = prompts/s x (seconds to the answer + seconds of thinking)."""
    kv = replace(CLOSED, users=users, think_seconds=think, accelerators=accelerators, capacity_gb=capacity)
    (plan,) = plans_of(kv, 1)
    assert isinstance(plan, RankPlan)
    rows, user_of = served(plan, read_ms), {one.number: one.user for one in plan.prompts}
    unsent = [deque(one for one in plan.prompts if one.user == user) for user in range(users)]
    ends, cycles_ns = [BEGIN_NS] * users, 0
    for row in rows:
        user = user_of[row.prompt]
        sent = unsent[user].popleft()
        assert row.prompt == sent.number
        assert row.arrived_ns == ends[user] + sent.after_ns, "after the answer, so no more in progress than users"
        ends[user] = row.computed_ns
        cycles_ns += row.computed_ns - row.arrived_ns + sent.after_ns
    assert max(row.arrived_ns for row in rows) <= OVER_NS
    assert all(not rest or end + rest[0].after_ns > OVER_NS for rest, end in zip(unsent, ends, strict=True))
    per_ns = len(rows) / (sum(ends) / users - BEGIN_NS)
    assert per_ns * cycles_ns / len(rows) == pytest.approx(users)


def test_users_send_as_in_an_open_loop_and_are_scaled_by_speed_and_divided_over_ranks() -> None:
    closed, opened = (
        [[one.input_tokens for one in drawn if one.user == user] for user in range(4)]
        for drawn in (draw(CLOSED, 1), draw(replace(CLOSED, loop="open"), 1))
    )
    assert all(len(less) > 0 and less == more[: len(less)] for less, more in zip(closed, opened, strict=True))
    plans = [cast(RankPlan, plan) for plan in plans_of(replace(CLOSED, speed=2.0, think_seconds=0.0), 3)]
    users = [{one.user for one in plan.prompts} for plan in plans]
    assert list(map(len, users)) == [8, 8, 8]
    assert len(set.union(*users)) == 24
    slow, fast = (len(served(plans[0], read_ms)) for read_ms in (40, 1))
    assert slow < fast


def test_a_trace_is_dealt_out_to_the_users_of_a_rank(tmp_path: Path) -> None:
    lines = [LINE | {"hash_ids": [number, -number, 2**40 + number]} for number in range(1, 31)]
    kv = replace(CLOSED, trace=trace(tmp_path, *lines).trace, think_seconds=1.0, seconds=0.0)
    plans = [cast(RankPlan, plan) for plan in plans_of(kv, 2)]
    assert [len(plan) for plan in plans] == [15, 15]
    for plan in plans:
        assert [one.user for one in plan.prompts] == [number % 4 for number in range(15)]
        assert len(served(plan, 1)) == 15, "the whole trace"
        assert plan.accelerators <= 4, "no more than users"


def test_the_rate_of_a_closed_loop_is_measured_and_only_writes_fall_behind() -> None:
    rows = [prompt(at, load=0.01 * at, start=0.5 * at, compute=0.5) for at in range(1, 100)]
    words = ("kv.loop=closed", "kv.users=50", "kv.ttft=1000")
    found = result(*rows, words=words)
    assert (found.sustained, found.backlog_seconds, found.outcome) == (True, 0, "pass")
    assert found.arrivals == "random, 50 users in a closed loop"
    answered = sum(row["computed_ns"] <= 100 for row in rows)
    assert (found.prompts_per_second, found.tokens_per_second) == (answered / 100, 2000 * answered / 100)
    writes = [row | {"written_blocks": 4, "written_bytes": 4e6, "written_ns": 2 * row["computed_ns"]} for row in rows]
    behind = result(*writes, words=words)
    assert (behind.sustained, behind.outcome, behind.ttft_seconds) == (False, "fail", None)
    assert "50 users in a closed loop: 0.66 prompts/s are NOT SUSTAINED: the storage fell behind" in behind.verdict


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["workload=mlperf_kv", "kv.loop=closed"], "leave out kv.loop"),
        (["workload=llama3_1_8b", "kv.think_seconds=0"], "kv.think_seconds is 0: wanted more, or kv.loop=closed"),
    ],
)
def test_a_loop_that_there_is_not_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        JOB.complete(load(words))

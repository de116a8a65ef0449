"""The official load: what its users ask, how its tool serves it, and the number that it would publish of that."""

from __future__ import annotations

import heapq
import itertools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from datagen.errors import UserError
from dlemu.config import load
from dlemu.contrib.kvcache.job import JOB
from dlemu.contrib.kvcache.mover import Batch, Operation
from dlemu.contrib.kvcache.official import (
    GIB,
    JOIN_NS,
    OPTIONS,
    RankTurns,
    Turn,
    TurnsReplay,
    draw_turns,
    official_result,
    with_option_defaults,
)
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.contrib.kvcache.summary import Row
from dlemu.contrib.kvcache.tests.test_result import SECOND, result

BEGIN_NS = 1000 * SECOND
RATE = 1e9
_8B = ("kv.layers=32", "kv.kv_heads=8", "kv.seconds=100")


class Drive:
    """Moves each file at RATE, one after the other, in a clock that jumps."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.time_ns, self.free_ns = sizes, BEGIN_NS, BEGIN_NS
        self.under_way: list[tuple[int, int, Batch]] = []
        self.there: set[int] = set()
        self.reads = Counter[int]()
        self.writes = Counter[int]()
        self.most_writes = 0
        self.asked = itertools.count()

    @property
    def now_ns(self) -> Callable[[], int]:
        return lambda: self.time_ns

    def is_written(self, number: int) -> bool:
        return number in self.there

    def submit(self, batch: Batch) -> None:
        (number,) = batch.objects
        assert all(number not in other.objects for *_, other in self.under_way), "one moves a file at a time"
        if batch.operation is Operation.REMOVE:
            self.there.remove(number)
            return
        assert (number in self.there) is (batch.operation is Operation.READ)
        self.free_ns = max(self.free_ns, self.time_ns) + round(self.sizes[number] / RATE * SECOND)
        batch.ended_ns, batch.call_ns = self.free_ns, self.free_ns - self.time_ns
        heapq.heappush(self.under_way, (self.free_ns, next(self.asked), batch))
        self.most_writes = max(self.most_writes, sum(one.operation is Operation.WRITE for *_, one in self.under_way))

    def wait(self, until_ns: int) -> Batch | None:
        if not self.under_way or self.under_way[0][0] > until_ns:
            self.time_ns = max(self.time_ns, until_ns)
            return None
        self.time_ns, _, batch = heapq.heappop(self.under_way)
        (self.reads if batch.operation is Operation.READ else self.writes)[batch.objects[0]] += 1
        if batch.operation is Operation.WRITE:
            self.there.add(batch.objects[0])
        return batch


def settings_of(option: int, *words: str) -> KvSettings:
    return with_option_defaults(load(["workload=mlperf_kv", f"kv.option={option}", *words]).section(KvSettings))


def served(plan: RankTurns, capacity_bytes: float = float("inf")) -> tuple[Drive, TurnsReplay, list[Row]]:
    drive, done = Drive(list(plan.sizes)), list[Row]()
    replay = TurnsReplay(plan, cast(Any, drive), on_served=done.append, capacity_bytes=capacity_bytes)
    replay.run(BEGIN_NS)
    return drive, replay, done


def rows_of(asked: list[Row]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    rows = np.zeros(len(asked), JOB.dtype)
    for row, one in zip(rows, asked, strict=True):
        for name, value in vars(one).items():
            row[name] = value
    return rows


def test_a_load_is_what_the_table_says_and_the_same_for_a_seed() -> None:
    for option, row in OPTIONS.items():
        settings = settings_of(option, "kv.seconds=20")
        plan = draw_turns(settings, 0)
        assert (settings.users, settings.threads, settings.layers) == (row.users, row.users, row.shape["layers"])
        assert plan.turns == draw_turns(settings, 0).turns
        assert plan.turns != draw_turns(settings, 1).turns, "each rank has users of its own"
        assert plan.turns == draw_turns(replace(settings, seed=43), -1).turns, "42 + rank"
        assert sorted(turn.at_ns for turn in plan.turns) == [turn.at_ns for turn in plan.turns]
        assert min(turn.context_tokens for turn in plan.turns) >= 128
        assert max(turn.context_tokens for turn in plan.turns) <= 25_000
    assert draw_turns(settings_of(1), 0).model.token_bytes == 131_072
    assert draw_turns(settings_of(3), 0).model.token_bytes == 327_680


@pytest.mark.parametrize("words", ["kv.trace=x", "kv.seconds=0", "kv.users=2000000"])
def test_what_the_official_load_has_not_is_refused(words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words.partition("=")[0])):
        settings_of(1, words)


@pytest.mark.parametrize("option", [1, 2, 3])
def test_the_published_rate_exceeds_the_drive_and_the_true_one_does_not(option: int) -> None:
    plan = draw_turns(settings_of(option, "kv.seconds=20", "kv.users=24"), 0)
    drive, replay, done = served(plan)
    rows = rows_of([*done, *replay.unfinished])
    assert len(rows) == len([turn for turn in plan.turns if turn.at_ns < 20 * SECOND]), "every request is on record"
    ends = int(max(rows["loaded_ns"].max(), rows["written_ns"].max()))
    window = (ends - int(rows["arrived_ns"].min())) / SECOND
    told = official_result(rows, {0: BEGIN_NS}, plan.model.settings, window)
    moved = sum(drive.sizes[number] * times for number, times in (drive.reads + drive.writes).items())
    assert int(rows["read_bytes"].sum() + rows["written_bytes"].sum()) == moved
    true = (told.true_read_gib_per_second + told.true_write_gib_per_second) * GIB
    assert 0.9 * RATE < true <= RATE
    assert window > 20
    if option != 2:
        assert (told.read_gib_per_second + told.write_gib_per_second) * GIB > 1.05 * RATE
        assert told.overstated_percent is not None
        assert told.overstated_percent > 5
        assert (told.memory_percent, told.late > 0) == (0, True)
    else:
        assert told.memory_percent is not None
        assert told.memory_percent > 20
    assert drive.most_writes <= OPTIONS[option].allocations


def test_a_served_request_reads_its_own_file_as_often_as_the_tool_does() -> None:
    plan = draw_turns(settings_of(1, "kv.seconds=10", "kv.users=5"), 0)
    drive, _, done = served(plan)
    for one in done:
        assert drive.writes[one.prompt] == 1
        assert drive.reads[one.prompt] >= plan.turns[one.prompt].reads
    priorities = [one.priority for one in done]
    assert Counter(priorities)[max(priorities)] >= Counter(priorities)[min(priorities)] / 2


def test_the_tool_waits_two_seconds_for_each_worker_and_counts_what_has_moved_by_then() -> None:
    settings = settings_of(1, "kv.seconds=5", "kv.users=3")
    slow = 3600 * SECOND
    turns = [Turn(SECOND, 1, user << 32, 12_000, 12_000, 100) for user in range(3)]
    plan = RankTurns(draw_turns(settings, 0).model, turns, [round(slow / SECOND * RATE)] * 3)
    drive, replay, done = served(plan)
    assert drive.time_ns == BEGIN_NS + 5 * SECOND + 3 * JOIN_NS
    assert (done, len(replay.unfinished)) == ([], 3)
    assert official_result(rows_of(replay.unfinished), {0: BEGIN_NS}, settings, 0.0).served == 0


def test_a_result_has_both_numbers_and_says_why_they_differ() -> None:
    asked: dict[str, float] = {"priority": 3, "input_tokens": 5000, "output_tokens": 64, "storage_blocks": 3}
    asked |= {"read_bytes": 3 * GIB, "written_bytes": GIB, "written_blocks": 1}
    asked |= {"arrived_ns": 1, "start_ns": 1, "computed_ns": 150, "loaded_ns": 151, "written_ns": 40}
    waits: dict[str, float] = {"prompt": 1, "arrived_ns": 2, "priority": 1}
    summary = result(asked, waits, words=("workload=mlperf_kv", "kv.option=1", "kv.users=2", "kv.tp=1", *_8B))
    told = summary.official
    assert told is not None
    assert (told.read_gib_per_second, told.write_gib_per_second) == (0.03, 0.01)
    assert told.true_read_gib_per_second == pytest.approx(0.02)
    assert told.overstated_percent == pytest.approx(50)
    assert (summary.prompts, told.served, told.late) == (2, 1, 1)
    assert "50 % too high" in summary.verdict
    assert any("1 more request" in issue for issue in summary.issues)
    assert summary.limited_by == "storage"
    assert (summary.sustained, summary.backlog_seconds, summary.ttft_seconds) == (None, None, None)

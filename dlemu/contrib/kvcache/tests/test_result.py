"""From rows to numbers; and the official load, as its tool serves it, with the number that it would publish."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from datagen.errors import UserError
from dlemu.config import load
from dlemu.contrib.kvcache.analyse import analyse
from dlemu.contrib.kvcache.job import JOB
from dlemu.contrib.kvcache.mover import Operation
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
from dlemu.contrib.kvcache.page import conditions
from dlemu.contrib.kvcache.settings import KvSettings
from dlemu.contrib.kvcache.summary import RANK_ROW, KvSummary, Row
from dlemu.contrib.kvcache.tests.pipe import BEGIN_NS, Pipe
from dlemu.machine.environment import StorageFacts
from dlemu.metrics.catalogue import RUN
from dlemu.results.live import RunJournal
from dlemu.results.measured import RunFacts
from dlemu.runner.job_kind import RowsRun

SECOND = 10**9
BEGIN = 500 * SECOND
WORDS = ("workload=llama3_1_8b", "kv.seconds=100", "kv.tp=2", "kv.accelerators=4", "kv.transfer_size=4096")


def lies_on(file_system: str) -> StorageFacts:
    return StorageFacts(folder="/mnt/kv", file_system=file_system, device="")


def result(*rows: dict[str, float], words: tuple[str, ...] = (), **changes: Any) -> KvSummary:
    """Return what is made of rows, times in seconds from the load's beginning."""
    made = np.zeros(len(rows) + 1, JOB.dtype)
    whole = {"prompt": RANK_ROW, "arrived_ns": 0.0, "accelerators": 4, "ceiling_per_hour": 10**9}
    for row, values in zip(made, (whole, *rows), strict=True):
        for name, value in values.items():
            is_moment = name in ("arrived_ns", "start_ns", "loaded_ns", "computed_ns", "written_ns")
            row[name] = BEGIN + round(value * SECOND) if is_moment else value
    storage = changes.pop("storage", lies_on("nfs"))
    journal = RunJournal(wall_clock_offset_ns=0, started_ns=0, hosts=(), rank_nodes=(0,), storage=storage)
    facts = RunFacts(
        kind="kvcache", workload=load([*WORDS, *words]), ranks=1, seed=1, started_at="", journal=journal, **changes
    )
    return analyse(RowsRun("results/x", facts, made, (), JOB))


def prompt(
    at: float, *, load: float = 0.0, start: float = 0.0, compute: float = 1.0, **more: float
) -> dict[str, float]:
    """A prompt that reads 4 blocks of 1 MB in `load` seconds; an accelerator takes it after `start`."""
    made = {"prompt": 0, "input_tokens": 2000, "cached_tokens": 1024, "storage_blocks": 4, "read_bytes": 4e6}
    made |= {"compute_ns": compute * SECOND, "without_ns": (compute + 3) * SECOND}
    made |= {"arrived_ns": at, "start_ns": at + start, "loaded_ns": at + load}
    return made | {"computed_ns": at + max(load, start) + compute} | more


STEADY = [prompt(at, load=0.01 * at, start=0.2) for at in range(1, 100)]


def test_there_are_no_latencies_of_what_was_not_sustained() -> None:
    found = result(*[prompt(at, load=0.5 * at) for at in range(1, 100)], words=("kv.load=1000",))
    assert found.sustained is False
    assert (found.load_times, found.ttft_seconds, found.utilisation_percent) == (None, None, None)
    assert found.outcome == "fail"
    assert "NOT SUSTAINED: the storage fell behind" in found.verdict
    assert found.limited_by == "storage"
    for late_ns in (0, 1e8):  # later than the reads take
        queue = result(*[prompt(at, load=0.01, start=0.5 * at, compute=3, late_ns=late_ns) for at in range(1, 100)])
        assert "the accelerators fell behind" in queue.verdict
        assert queue.limited_by == "accelerators"
    given_up = result(*STEADY, prompt(99) | {"computed_ns": -BEGIN / SECOND})
    assert given_up.sustained is False
    # A burst at the end is no falling behind.
    assert result(*STEADY[:80], *[prompt(99, load=0.9 * n) for n in range(20)]).sustained


@pytest.mark.parametrize(
    ("words", "changes", "outcome"),
    [
        ((), {}, None),
        (("kv.load=0.96",), {}, "pass"),
        (("kv.load=0.9",), {}, "fail"),
        (("kv.load=0.96", "kv.ttft=1.9"), {}, "fail"),
        (("kv.load=0.96", "kv.ttft=2"), {}, "pass"),
        (("kv.load=0.96",), {"failure": "rank 0 was killed"}, "no verdict"),
        (("kv.load=0.96",), {"storage": lies_on("tmpfs")}, "no verdict"),
        (("kv.load=0.96",), {"storage": lies_on("ext4")}, "no verdict"),
    ],
)
def test_the_verdict_is_about_the_storage(words: tuple[str, ...], changes: dict[str, Any], outcome: str | None) -> None:
    """On ext4 the kernel accounts for reads, and here for none: the page cache served."""
    found = result(*STEADY, words=words, **changes)
    assert found.outcome == outcome
    facts: Any = SimpleNamespace(workload=load([*WORDS, *words]))
    assert conditions(found, facts).from_memory == ((RUN,) if "storage" in changes else ())
    assert (found.failure is None) == found.complete == (not found.verdict.startswith("INCOMPLETE"))


def test_too_few_loads_are_no_verdict() -> None:
    few = result(*STEADY[:10], words=("kv.load=5",))
    assert few.outcome == "no verdict"
    assert "; load p95 of 10 prompts 0." in few.verdict
    assert "; load p95 0." in result(*STEADY).verdict


RATE = 1e9


def settings_of(option: int, *words: str) -> KvSettings:
    return with_option_defaults(load(["workload=mlperf_kv", f"kv.option={option}", *words]).section(KvSettings))


def served(plan: RankTurns) -> tuple[Pipe, TurnsReplay, list[Row]]:
    """Serve them by a drive that moves each file at RATE, one after another."""
    drive, done = Pipe(lambda _, number: plan.sizes[number] / RATE * SECOND, reads_first=False), list[Row]()
    replay = TurnsReplay(plan, cast(Any, drive), on_served=done.append, capacity_bytes=float("inf"))
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
        assert {turn.context_tokens for turn in plan.turns} <= set(range(128, 25_001))


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
    told = official_result(rows, {0: BEGIN_NS}, plan.settings)
    moved = sum(plan.sizes[batch.blocks[0]] for batch in drive.done)
    assert int(rows["read_bytes"].sum() + rows["written_bytes"].sum()) == moved
    true = moved / window
    assert 0.9 * RATE < true <= RATE
    assert window > 20
    if option != 2:
        assert (told.read_gib_per_second + told.write_gib_per_second) * GIB > 1.05 * RATE
        assert told.late > 0
        assert not rows["memory_bytes"].any()
        moves = Counter((batch.operation, batch.blocks[0]) for batch in drive.done)
        assert {moves[Operation.WRITE, one.prompt] for one in done} == {1}
        assert all(moves[Operation.READ, one.prompt] >= plan.turns[one.prompt].reads for one in done)
    else:
        assert rows["memory_bytes"].sum() > 0.25 * rows["read_bytes"].sum()
    assert drive.most_writes <= OPTIONS[option].allocations


def test_the_tool_waits_two_seconds_for_each_worker_and_counts_what_has_moved_by_then() -> None:
    settings = settings_of(1, "kv.seconds=5", "kv.users=3")
    slow = 3600 * SECOND
    turns = [Turn(SECOND, 1, user << 32, 12_000, 12_000, 100) for user in range(3)]
    plan = RankTurns(settings, turns, [round(slow / SECOND * RATE)] * 3)
    drive, replay, done = served(plan)
    assert drive.time_ns == BEGIN_NS + 5 * SECOND + 3 * JOIN_NS
    assert (done, len(replay.unfinished)) == ([], 3)
    assert official_result(rows_of(replay.unfinished), {0: BEGIN_NS}, settings).served == 0

"""From rows to numbers: each by its formula, none where a load was not sustained, and no verdict that memory earned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dlemu.config import load
from dlemu.contrib.kvcache.analyse import analyse
from dlemu.contrib.kvcache.job import JOB
from dlemu.contrib.kvcache.page import conditions
from dlemu.contrib.kvcache.summary import RANK_ROW, KvSummary
from dlemu.machine.environment import StorageFacts
from dlemu.metrics.catalogue import RUN
from dlemu.results.live import RunJournal
from dlemu.results.measured import RunFacts
from dlemu.runner.rows_job import RowsRun

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


def test_the_numbers_are_those_of_their_formulas() -> None:
    found = result(prompt(10, load=2), prompt(50, load=0.5, start=4), prompt(60, load=3, start=1))
    assert found.load_times is not None
    assert found.ttft_seconds is not None
    assert (found.load_times.p50, found.load_times.max) == (2, 3)
    assert (found.ttft_seconds.p50, found.ttft_seconds.max) == (4, 5)
    assert found.utilisation_percent == pytest.approx(100 * 3 / (3 + 2 + 0 + 2))
    assert found.gpu_seconds_won == 2 * (9 - 4), "of two accelerators each"
    assert found.break_even_gb_per_second == pytest.approx(12 * 256 * 131_072 / 1e9 / (9 * 2))
    assert found.read_gb_per_second == pytest.approx(12e6 / 1e9 / 90), "the first prompt arrived after 10 s"
    assert found.tokens_from_storage_percent == pytest.approx(51.2)
    assert found.prompts_per_second == 0.03
    assert found.ceiling_times == pytest.approx(10**9 / 3600 / 0.03)
    assert found.limited_by == "storage", "4 s of waiting, 3 s of computing"
    assert found.sustained


@pytest.mark.parametrize(
    ("file_system", "percent", "phases"),
    [("ext4", 3.0, (RUN,)), ("ext4", 97.0, ()), ("tmpfs", 0.0, (RUN,)), ("nfs", None, ())],
)
def test_a_run_that_memory_served_says_so(file_system: str, percent: float | None, phases: tuple[str, ...]) -> None:
    found = replace(result(prompt(10), storage=lies_on(file_system)), from_storage_percent=percent)
    assert conditions(found).from_memory == phases


def test_the_window_goes_from_the_first_prompt_to_the_last_byte() -> None:
    found = result(*STEADY, prompt(99, load=1, written_blocks=1, written_bytes=5e6, written_ns=150))
    assert found.read_gb_per_second == pytest.approx(100 * 4e6 / 1e9 / 149), "the load began a second before"
    assert found.write_gb_per_second == pytest.approx(5e6 / 1e9 / 149)


def falling_behind(**more: float) -> list[dict[str, float]]:
    return [prompt(at, load=0.5 * at, **more) for at in range(1, 100)]


def test_there_are_no_latencies_of_what_was_not_sustained() -> None:
    found = result(*falling_behind(), words=("kv.load=1000",))
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


def test_a_burst_at_the_end_is_no_falling_behind() -> None:
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
    assert (found.failure is None) == found.complete == (not found.verdict.startswith("INCOMPLETE"))


def test_too_few_loads_are_no_verdict() -> None:
    few = result(*STEADY[:10], words=("kv.load=5",))
    assert few.outcome == "no verdict"
    assert "; load p95 of 10 prompts 0." in few.verdict
    assert "; load p95 0." in result(*STEADY).verdict

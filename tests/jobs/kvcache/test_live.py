"""A run of KV-cache offload that goes on, followed from outside by the rows of its ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlemu.config import load
from dlemu.jobs.kvcache.job import KVCACHE
from dlemu.jobs.kvcache.live import LiveKvCache
from dlemu.results.file_names import FACTS, LIVE
from dlemu.results.live import write_live_facts
from dlemu.results.progress import RECENT_SECONDS
from dlemu.runner.job import Job
from dlemu.runner.row_log import RowLog

S = 10**9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two ranks and a minute, before its first prompt."""
    workload = load(["workload=llama3_1_8b", "scale=laptop", "ranks=2", "kv.seconds=60"])
    job = Job(workload=workload, ranks=2, seed=1, folder=str(tmp_path), started_at="2026-01-02T03:04:05+00:00")
    (tmp_path / LIVE).mkdir()
    write_live_facts(str(tmp_path), KVCACHE.facts_ahead(job), advice="")
    return tmp_path / LIVE


def serve(log: RowLog, number: int, at: float, *, first_token: float = 0.5) -> None:
    """A prompt a second: 10 MB read, 2 MB written."""
    at_ns = round(at * S)
    log.add(
        rank=0, prompt=number, arrived_ns=at_ns, start_ns=at_ns, loaded_ns=at_ns + S // 4, read_bytes=10_000_000,
        computed_ns=at_ns + round(first_token * S), written_bytes=2_000_000,
    )  # fmt: skip


def test_the_figures_are_those_of_the_last_seconds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("dlemu.jobs.kvcache.live.time.monotonic", lambda: now)
    follower = LiveKvCache(str(folder / FACTS), str(folder))
    assert follower.look() is None, "no prompt yet"
    logs = [RowLog(KVCACHE.dtype, rank, str(folder)) for rank in range(2)]
    assert follower.look() is None
    for number in range(31):
        for rank, log in enumerate(logs):
            serve(log, number, 1000 * rank + number, first_token=0.5 + rank)  # hosts have clocks of their own
    seen = follower.look()
    assert seen is not None
    assert (seen.at, seen.done_ratio, seen.seconds_left) == ("62 prompts served", 0.5, 30.0)
    together = {figure.name: figure.value for figure in seen.figures}
    assert together == {
        "prompts_per_second": pytest.approx(2.0),
        "read_bytes_per_second": pytest.approx(20e6),
        "write_bytes_per_second": pytest.approx(4e6),
        "first_token_seconds": pytest.approx(1.0),
    }
    one = {figure.name: figure.value for figure in seen.ranks[1]}
    assert one["read_bytes_per_second"] == pytest.approx(10e6)
    assert one["first_token_seconds"] == pytest.approx(1.5)
    now += 2 * RECENT_SECONDS
    still = follower.look()
    assert still is not None
    assert {figure.value for figure in still.figures} == {0.0}, "a storage that stands still is seen"

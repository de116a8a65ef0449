"""What a summary says of runs made by hand: moments, shares, and the sentences that a reader must or need not see."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest

from dlemu.checkpoints.io_rows import SavedCheckpoint
from dlemu.config.schema import Metric
from dlemu.jobs.training import analyse as analyse_module
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.result import RunLog, make_run
from dlemu.jobs.training.summary import AsynchronousCheckpoints, Summary
from dlemu.metrics.changes import not_steady
from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.limit import Limit
from dlemu.metrics.verdict import VerdictCode
from tests.runs import MS, make_job, make_log, whole_run, with_blocks
from tests.shown import details

S = 1_000_000_000
AU = make_job().workload.metric.au


def summary_of(job: TrainingJob, log: RunLog) -> Summary:
    return make_run(job, log).summary


def test_the_end_is_a_moment_with_its_zone_to_the_millisecond() -> None:
    log = make_log(make_job())
    assert log.journal.ended_ns is not None
    ended_at = log.journal.ended_at
    assert ended_at is not None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", ended_at)
    seconds = (log.journal.ended_ns + log.journal.wall_clock_offset_ns) / 1e9
    assert datetime.fromisoformat(ended_at).timestamp() == pytest.approx(seconds, abs=0.0011)
    assert log.journal.noting(ended_ns=None).ended_at is None


def asynchronous(saved: tuple[SavedCheckpoint, ...]) -> AsynchronousCheckpoints:
    """Of a run of 12 steps in two blocks, one a second from the tenth on; the first of each block waits long."""
    job = make_job(ranks=1, epochs=1, steps=12, **with_blocks(6))
    log = make_log(job)
    rows = log.rows
    rows["free_ns"] = (10 + np.arange(12)) * S
    rows["wait_ns"] = np.array([9, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0]) * S
    rows["compute_ns"] = np.array([1, 1, 1, 2, 3, 1, 1, 1, 1, 1, 1, 1]) * S
    rows["sync_ns"] = 0
    found = summary_of(job, replace(log, journal=log.journal.noting(checkpoints=saved))).asynchronous_checkpoints
    assert found is not None
    return found


def part(started_ns: int, released_ns: int | None, ended_ns: int) -> SavedCheckpoint:
    return SavedCheckpoint(
        epoch=1, block=1, bytes=1000, started_ns=started_ns, ended_ns=ended_ns, released_ns=released_ns
    )


def test_steps_beside_a_checkpoint_are_those_that_began_while_it_was_written() -> None:
    found = asynchronous((part(12 * S + S // 2, 13 * S, 15 * S),))
    assert found.step_seconds_during == pytest.approx(2.5), "of the one that was free when it began, not at its end"
    assert found.step_seconds_otherwise == pytest.approx(1), "without the first step of a block"


def test_a_checkpoint_beside_which_no_step_was_taken_slowed_none_down() -> None:
    found = asynchronous((part(30 * S, 31 * S, 32 * S),))
    assert found.step_seconds_during is None
    assert found.step_seconds_otherwise == pytest.approx((8 * 1 + 2 + 3) / 10)
    first = asynchronous((part(9 * S, 10 * S, 11 * S),))
    assert first.step_seconds_during is None, "a first step tells nothing"


def test_checkpoints_that_training_waited_for_are_not_asynchronous() -> None:
    job = make_job(ranks=1, epochs=1, steps=12, **with_blocks(6))
    assert summary_of(job, make_log(job)).asynchronous_checkpoints is None


@pytest.mark.parametrize(("limits", "is_cpu"), [((0.2, 0.2), True), ((0.4, None), False), ((0.4, 0.2), False)])
def test_without_telemetry_the_limits_of_all_hosts_together_count(
    limits: tuple[float, float | None], is_cpu: bool
) -> None:
    """The run used 0.395 cores; what a host without a limit may use is not known."""
    job = make_job()
    log = make_log(job, rank_nodes=(0, 1))
    assert log.journal.ended_ns is not None
    seconds = (log.journal.ended_ns - log.journal.started_ns) / 1e9
    log.rows["started_ns"], log.rows["finished_ns"] = log.rows["ready_ns"] - 40 * MS, log.rows["ready_ns"]
    log.rows["read_ns"], log.rows["cpu_ns"] = 40 * MS, 1
    hosts = tuple(replace(host, cpu_limit=limit) for host, limit in zip(log.journal.hosts, limits, strict=True))
    journal = log.journal.noting(hosts=hosts, cpu_seconds=(0.2 * seconds, 0.195 * seconds))
    limit = summary_of(job, replace(log, journal=journal)).limited_by
    assert limit is not None
    assert (limit.what == "host CPU") == is_cpu
    if is_cpu:
        (used,) = limit.findings
        assert (used.code, used.numbers["used_percent"]) == (Code.CPU_QUOTA, near(100 * 0.395 / 0.4))


@pytest.mark.parametrize("what", ["host CPU", "emulator", "storage"])
def test_while_the_host_is_the_limit_no_claim_is_made_about_the_storage(
    what: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the verdict, and not by when it became slower, stood still or ran out: the host did that."""
    limit = Limit(what=what, confidence="low", numbers={"lost_percent": 50.0})
    monkeypatch.setattr(analyse_module, "_limit", lambda *_, **__: limit)
    stalled = not_steady("stalled", at_seconds=1.0, seconds=2.0)
    slow = Finding.of(Code.SLOW_DRIVE, folder="b", ms_per_sample=9.0, others_ms_per_sample=3.0)
    monkeypatch.setattr(analyse_module, "find_unsteadiness", lambda *_, **__: (stalled,))
    monkeypatch.setattr(analyse_module, "find_slow_folders", lambda *_, **__: (slow,))
    job = make_job(metric=Metric(au=0.98))
    summary = summary_of(job, make_log(job))
    printed = details("training", summary)
    if what == "storage":
        assert summary.passed is False
        assert {stalled.code, slow.code} <= {found.code for found in summary.findings}
        assert "FAIL" in printed
        assert "stalled for 2.0 s" in printed
    else:
        assert summary.passed is None
        assert not summary.found(Code.STORAGE_NOT_STEADY) + summary.found(Code.SLOW_DRIVE)
        assert (summary.verdict_code, summary.outcome) == (VerdictCode.HOST_LIMITED, "no verdict")
        assert not re.search("FAIL|stalled for|is slow", printed)


def near(value: float, apart: float | None = None) -> Any:
    """What is to be a number, up to rounding."""
    return pytest.approx(value, abs=apart)


def test_the_cpu_time_is_that_of_all_ranks_per_byte_read() -> None:
    metrics = whole_run(ranks=2).summary.metrics
    assert metrics.app_bytes is not None
    assert metrics.cpu_seconds_per_gb == pytest.approx(3.0 / (metrics.app_bytes / 1e9))

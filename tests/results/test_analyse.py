"""What a summary says of runs made by hand: moments, shares, and the sentences that a reader must or need not see."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest

from datagen.storage._request_counts import COUNTERS, RequestCounts
from dlemu.checkpoints.io_rows import READ, WHOLE, WRITE, SavedCheckpoint
from dlemu.config import check_runnable
from dlemu.config.schema import Metric
from dlemu.jobs.checkpoint.analyse import CheckpointRun, _from_storage_percent
from dlemu.jobs.checkpoint.measured import UnderWay
from dlemu.jobs.checkpoint.summary import CheckpointSummary
from dlemu.jobs.training import analyse as analyse_module
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.result import RunLog
from dlemu.jobs.training.summary import AsynchronousCheckpoints, Summary
from dlemu.metrics.changes import not_steady
from dlemu.metrics.findings import Code, Finding, Number
from dlemu.metrics.limit import Limit
from dlemu.metrics.verdict import VerdictCode
from dlemu.results import KILLED
from tests.results.handmade import checkpoint_run
from tests.runs import MS, cut, make_job, make_log, make_run, present, with_blocks
from tests.shown import details

S = 1_000_000_000
AU = make_job().workload.metric.au


def summary_of(job: TrainingJob, log: RunLog) -> Summary:
    return make_run(job, log).summary


def test_the_end_is_a_moment_with_its_zone_to_the_millisecond() -> None:
    log = make_log(make_job())
    assert log.journal.ended_ns is not None
    ended_at = present(log.journal.ended_at)
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
    log = replace(log, journal=log.journal.noting(checkpoints=saved))
    return present(summary_of(job, log).asynchronous_checkpoints)


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
    job = make_job(ranks=1, epochs=1, steps=12, **with_blocks(6))
    assert summary_of(job, make_log(job)).asynchronous_checkpoints is None, "training waited for its checkpoints"


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
    limit = present(summary_of(job, replace(log, journal=journal)).limited_by)
    assert (limit.what == "host CPU") == is_cpu
    if is_cpu:
        (used,) = limit.findings
        assert used.code == Code.CPU_QUOTA
        assert float(used.numbers["used_percent"] or 0) == pytest.approx(100 * 0.395 / 0.4)


@pytest.mark.parametrize("what", ["host CPU", "emulator", "storage"])
def test_while_the_host_is_the_limit_no_claim_is_made_about_the_storage(
    what: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the verdict, and not by when it became slower, stood still or ran out: the host did that."""
    limit = Limit(what=what, confidence="low", numbers={"lost_percent": 50.0, "cores_busy_percent": 97.0})
    monkeypatch.setattr(analyse_module, "_limit", lambda *_, **__: limit)
    stalled = not_steady("stalled", at_seconds=1.0, seconds=2.0)
    slow = Finding.of(Code.SLOW_DRIVE, folder="b", ms_per_sample=9.0, others_ms_per_sample=3.0)
    monkeypatch.setattr(analyse_module, "find_unsteadiness", lambda *_, **__: (stalled,))
    monkeypatch.setattr(analyse_module, "find_slow_folders", lambda *_, **__: (slow,))
    job = make_job(metric=Metric(au=0.98))
    summary = summary_of(job, make_log(job))
    said = "the accelerators waited for data 50.0 % of the time", "the cores were 97 % busy"
    assert present(summary.limited_by).evidence == said
    printed = details("training", summary)
    if what == "storage":
        assert summary.passed is False
        assert {stalled.code, slow.code} <= {found.code for found in summary.findings}
        assert "FAIL" in printed
        assert "stalled for 2.0 s" in printed
    else:
        assert not summary.found(Code.STORAGE_NOT_STEADY) + summary.found(Code.SLOW_DRIVE)
        assert (summary.passed, summary.verdict_code) == (None, VerdictCode.HOST_LIMITED)
        assert summary.outcome == "no verdict"
        assert not re.search("FAIL|stalled for|is slow", printed)


TENSORFLOW = {"data_loader": "tensorflow", "sample_shuffle": "seed"}


def read_as(dataset_format: str, **reader: Any) -> TrainingJob:
    workload = make_job().workload
    data = replace(workload.dataset, format=dataset_format)
    return make_job(dataset=data, reader=replace(workload.reader, **reader))


@pytest.mark.parametrize(
    ("dataset_format", "reader", "would_help"),
    [
        ("npz", {}, {"odirect": True, "evict_page_cache": "epochs"}),
        ("npz", {"evict_page_cache": "epochs"}, {"odirect": True}),
        ("npz", {"odirect": True}, {}),
        ("npz", {"engine": "library"}, {"evict_page_cache": "epochs"}),
        ("npz", {"evict_page_cache": "epochs", "page_cache_percent": 40.0}, {"page_cache_percent": 0}),
        ("tfrecord", TENSORFLOW, {"evict_page_cache": "epochs"}),
        ("tfrecord", TENSORFLOW | {"evict_page_cache": "epochs"}, {}),
        ("mmap_indexed_binary", {}, {"odirect": True, "evict_page_cache": "start"}),
        ("mmap_indexed_binary", {"evict_page_cache": "start"}, {"odirect": True}),
    ],
)
def test_against_the_page_cache_only_what_the_run_takes_and_had_not_is_advised(
    dataset_format: str, reader: dict[str, Any], would_help: dict[str, Any]
) -> None:
    job = read_as(dataset_format, **reader)
    settings = [f"reader.{key}={str(value).lower()}" for key, value in would_help.items()]
    assert present(summary_of(job, make_log(job)).memory).numbers.get("would_help", "") == " or ".join(settings)
    for key, value in would_help.items():
        check_runnable(read_as(dataset_format, **reader | {key: value}).workload)


def test_of_a_shuffled_stream_that_was_stopped_it_is_unknown_what_was_read_once() -> None:
    job = read_as("tfrecord", **TENSORFLOW)
    log = make_log(job)
    stopped = replace(log, rows=log.rows[:10], journal=log.journal.noting(stopped_after_steps=5))
    found = [summary_of(job, one).each_sample_once for one in (log, stopped)]
    assert found == [(True, True), (None,)]


def test_a_run_that_its_number_of_steps_ended_is_advised_to_take_more_steps() -> None:
    job = cut(make_job(steps=40), 60)
    log = make_log(job)
    au = present(summary_of(job, log).metrics.sustained_percent)
    close = replace(job, workload=replace(job.workload, metric=Metric(au=(au - 0.001) / 100, cached=True)))
    assert re.search(
        r"UNDECIDED.*run longer: train\.epochs=220 train\.total_training_steps=660\d$", summary_of(close, log).verdict
    )


def test_a_short_last_block_makes_no_run_too_short() -> None:
    job = make_job(ranks=1, epochs=1, steps=41, metric=Metric(au=0.8, verdict="au", cached=True), **with_blocks(40))
    assert summary_of(job, make_log(job)).verdict_code == VerdictCode.UNDECIDED, "39 steps count, and 3 are read ahead"


# runs of checkpoints


def numbers_of(summary: CheckpointSummary, code: str) -> dict[str, Number] | None:
    """The numbers of the one finding with this code, None without."""
    found = [finding.numbers for finding in summary.findings if finding.code == code]
    assert len(found) < 2
    return found[0] if found else None


def noted(run: CheckpointRun, **changes: Any) -> CheckpointRun:
    facts = replace(run.facts, journal=run.facts.journal.noting(**changes))
    return CheckpointRun(run.folder, facts, run.rows, run.telemetry)


def served(run: CheckpointRun, share: float) -> CheckpointRun:
    """The run with such a share of what was read from the storage."""
    rows = run.rows.copy()
    rows["storage_bytes"] = np.where(rows["phase"] == READ, share * rows["bytes"], 0)
    return CheckpointRun(run.folder, run.facts, rows, run.telemetry)


def test_the_verdict_says_what_was_done_by_its_name() -> None:
    both = checkpoint_run().summary
    assert both.verdict.startswith("WRITE: ")
    assert f"{present(both.write).slowest_seconds:.2f} s per checkpoint, limited by: " in both.verdict
    assert both.verdict.count("; READ: ") == 1
    only_read = checkpoint_run(order=[(READ, 3), (READ, 2)]).summary
    assert (only_read.write, only_read.verdict.partition(":")[0]) == (None, "READ")
    assert "READ" not in checkpoint_run(order=[(WRITE, 1)]).summary.verdict
    assert checkpoint_run(order=[]).summary.verdict.startswith("NOTHING")


@pytest.mark.parametrize(("phase", "files"), [("write", "was being written: 0 of"), ("read", "was being read: 4 of")])
def test_what_was_under_way_is_told_with_what_is_left(phase: Any, files: str) -> None:
    under_way = UnderWay(phase=phase, checkpoint=2 if phase == "read" else 4)
    summary = noted(checkpoint_run(failure="no space"), under_way=under_way, removed=(1, 3)).summary
    assert not summary.complete
    assert "; complete and kept: checkpoint 2; " in summary.verdict
    assert f"checkpoint {under_way.checkpoint} {files}" in summary.verdict
    assert summary.kept == (2,)
    nothing = checkpoint_run(order=[], failure="no space").summary
    assert nothing.verdict == "INCOMPLETE: no space; no checkpoint is complete"
    only_read = checkpoint_run(order=[], failure="it is truncated", num_checkpoints_write="0").summary
    assert only_read.verdict == "INCOMPLETE: it is truncated"
    assert "was being" not in noted(checkpoint_run(), under_way=under_way).summary.verdict, "this run is complete"


@pytest.mark.parametrize(
    ("failure", "phase", "told"), [(KILLED, "write", True), (KILLED, "read", False), ("no space", "write", False)]
)
def test_what_a_killed_run_left_half_written_is_named(failure: str, phase: Any, told: bool) -> None:
    run = noted(checkpoint_run(failure=failure), under_way=UnderWay(phase=phase, checkpoint=4))
    assert ("/mnt/drive/saved/global_epoch1_step4 holds it: delete it" in run.summary.verdict) == told
    assert "holds it" not in checkpoint_run(failure=KILLED).summary.verdict, "nothing was under way"


@pytest.mark.parametrize(("share", "told"), [(0.49, 51.0), (0.51, None), (0.0, 100.0)])
def test_that_memory_served_more_than_half_is_said_loudly(share: float, told: float | None) -> None:
    summary = served(checkpoint_run(), share).summary
    assert present(summary.read).from_storage_percent == pytest.approx(100 * share, abs=0.01)
    numbers = numbers_of(summary, Code.PAGE_CACHE)
    assert (numbers["from_storage_percent"] if numbers else None) == (told and pytest.approx(100 - told, abs=0.01))
    assert summary.issues[0].startswith("MEASURED MEMORY") == (told is not None)
    assert [finding.severity == "loud" for finding in summary.findings if finding.code == Code.PAGE_CACHE] == [True] * (
        told is not None
    )


def test_what_is_not_accounted_for_is_not_known_and_an_object_store_serves_all() -> None:
    run = served(checkpoint_run(), 0.0)
    storage = present(run.facts.journal.storage)
    unknown = noted(run, storage=replace(storage, file_system="fuse")).summary
    assert present(unknown.read).from_storage_percent is None
    assert numbers_of(unknown, Code.PAGE_CACHE) is None
    counts = RequestCounts()
    counts.values[: len(COUNTERS)] = 3
    objects = noted(run, requests=tuple(counts.values.tolist())).summary
    assert present(objects.read).from_storage_percent == 100
    assert present(objects.write).from_storage_percent is None
    assert objects.requests is not None
    more = served(checkpoint_run(), 1.7).summary
    assert present(more.read).from_storage_percent == 100, "what was read ahead is no more than all"


@pytest.mark.parametrize(("by_kernel", "device_mb", "percent"), [(0.9, 0.0, 90), (0.0, 0.0, 0), (0.9, 1e-9, 0)])
def test_a_device_that_counts_nothing_does_not_contradict_the_kernel(
    by_kernel: float, device_mb: float, percent: float
) -> None:
    run = served(checkpoint_run(), by_kernel)
    rows = run.rows[run.rows["phase"] == READ]
    assert _from_storage_percent(run.facts, rows, device_mb) == pytest.approx(percent, abs=0.01)


def test_a_checkpoint_that_not_all_ranks_wrote_does_not_count() -> None:
    run = checkpoint_run(ranks=4, order=[(WRITE, 1), (WRITE, 2)])
    cut = run.rows[~((run.rows["rank"] == 3) & (run.rows["checkpoint"] == 2) & (run.rows["file"] == WHOLE))]
    summary = CheckpointRun(run.folder, run.facts, cut).summary
    assert [part.checkpoint for part in present(summary.write).checkpoints] == [1]


def test_hosts_clocks_are_brought_to_the_first_ones() -> None:
    run = checkpoint_run()
    ahead = noted(run, clock_offsets_ns=(0, -5_000_000_000))
    second = run.whole["rank"] == 1
    assert (ahead.whole["began_ns"][second] - run.whole["began_ns"][second]).tolist() == [-5_002_000_000] * 5
    assert np.array_equal(ahead.whole[~second], run.whole[~second])
    assert [ahead.offset_ns(node) for node in (0, 1, 2)] == [0, -5_000_000_000, 0]
    one_clock = noted(run, clock_offsets_ns=())
    assert np.array_equal(one_clock.whole, run.rows[run.rows["file"] == WHOLE])


def test_asynchronous_checkpoints_cost_training_the_time_until_it_goes_on() -> None:
    run = checkpoint_run(
        asynchronous="true", time_between_checkpoints="2", snapshot_gb_per_second="0.001", interval_seconds="60"
    )
    summary = run.summary
    bytes_of_rank = max(sum(file.size_bytes for file in run.facts.plan.files(rank)) for rank in run.facts.plan.ranks)
    snapshot = bytes_of_rank / 1e9 / 0.001
    assert present(summary.asynchronous).snapshot_seconds == pytest.approx(snapshot)
    assert present(summary.training).percent == pytest.approx(100 * snapshot / (60 + snapshot))
    assert checkpoint_run().summary.asynchronous is None


def test_asynchronous_checkpoints_are_not_advised_more_often_than_they_drain() -> None:
    summary = checkpoint_run(
        asynchronous="true", snapshot_gb_per_second="1000", gpu_mtbf_hours="0.002", interval_seconds="0.001"
    ).summary
    drains = [part.drain_seconds for part in present(summary.write).checkpoints]
    assert present(summary.training).best_interval_seconds == pytest.approx(sum(drains) / len(drains))
    assert present(summary.training).percent > 90, "most of the time training waits for the checkpoint before"


def test_writing_that_slows_down_is_not_steady() -> None:
    run = checkpoint_run(order=[(WRITE, number) for number in range(1, 8)])

    def as_if(*seconds: float) -> tuple[bool | None, dict[str, Number] | None]:
        rows = run.rows.copy()
        for number, took in enumerate(seconds, 1):
            part = rows["checkpoint"] == number
            rows["ended_ns"][part] = rows["began_ns"][part] + round(took * 1e9)
        summary = replace(run, rows=rows).summary
        return present(summary.write).steady, numbers_of(summary, Code.STORAGE_NOT_STEADY)

    assert as_if(1, 1, 2, 2, 2, 2, 2) == (True, None)
    steady, numbers = as_if(1, 1, 1, 1, 1.2, 1.5, 1.9)
    first, last = (float(present(numbers)[f"{which}_gib_per_second"] or 0) for which in ("first", "last"))
    assert steady is False
    assert first == pytest.approx(1.9 * last, rel=0.01)
    few = checkpoint_run().summary
    assert (present(few.write).steady, present(few.read).steady) == (None, None)

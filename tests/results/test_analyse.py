"""What a summary says of runs made by hand: moments, shares, and the sentences that a reader must or need not see."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from datagen.storage._request_counts import INDEX, TLS_CPU_US, RequestCounts
from dlemu.checkpoints.saved import SavedCheckpoint
from dlemu.config.duration import Duration
from dlemu.config.schema import Metric
from dlemu.jobs.training import analyse as analyse_module
from dlemu.jobs.training.activity import activity_during
from dlemu.jobs.training.issues import Issue
from dlemu.jobs.training.journal import CpuApart
from dlemu.jobs.training.page import print_result
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.result import Run, make_run
from dlemu.jobs.training.summary import AsynchronousCheckpoints, Summary
from dlemu.jobs.training.trainer import RunLog
from dlemu.metrics.au import au_percent, kept_rows
from dlemu.metrics.causes import Causes, Work, find_causes, work_of
from dlemu.metrics.changes import SpeedChange, Stall
from dlemu.metrics.checkpoint_rates import shortest_interval_seconds
from dlemu.metrics.findings import Finding, Number
from dlemu.metrics.limit import Context, Limit, ObjectRequests, OtherReaders, Scaling, Seen
from dlemu.metrics.ran_out import FirstTouch, RanOut
from dlemu.metrics.slow_folders import SlowFolder
from dlemu.metrics.stragglers import Straggler
from dlemu.metrics.verdict import VerdictCode
from tests.results.handmade import CHECKPOINT_RUNS, changed, seen, worked
from tests.runs import HOST, MS, make_job, make_log, with_blocks

S = 1_000_000_000
AU = make_job().workload.metric.au


def summary_of(job: TrainingJob, log: RunLog) -> Summary:
    return make_run(job, log).summary


def numbers_of(summary: Summary, code: Issue) -> dict[str, Number] | None:
    """The numbers of the one issue with this code, None without."""
    found = [finding.numbers for finding in summary.findings if finding.code == code]
    assert len(found) < 2
    return found[0] if found else None


def test_the_end_is_a_moment_with_its_zone_to_the_millisecond() -> None:
    job = make_job()
    log = make_log(job)
    assert log.journal.ended_ns is not None
    ended_at = summary_of(job, log).ended_at
    assert ended_at is not None
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", ended_at)
    seconds = (log.journal.ended_ns + log.journal.wall_clock_offset_ns) / 1e9
    assert datetime.fromisoformat(ended_at).timestamp() == pytest.approx(seconds, abs=0.0011)
    assert summary_of(job, replace(log, journal=log.journal.noting(ended_ns=None))).ended_at is None
    saved = CHECKPOINT_RUNS["checkpoints"]()
    assert saved.summary.ended_at is not None
    assert saved.facts.journal.ended_ns is not None
    seconds = (saved.facts.journal.ended_ns + saved.facts.journal.wall_clock_offset_ns) / 1e9
    assert re.search(r"\.\d{3}[+-]\d\d:\d\d$", saved.summary.ended_at)
    assert datetime.fromisoformat(saved.summary.ended_at).timestamp() == pytest.approx(seconds, abs=0.0011)


@pytest.mark.parametrize(("ranks", "dropped"), [(1, 1), (2, 2)])
def test_samples_that_fill_no_batch_are_told_with_who_would_have_had_take_them(ranks: int, dropped: int) -> None:
    job = changed(make_job(ranks=ranks, steps=4), reader={"batch_size": 3})
    numbers = {"samples": dropped, "of_samples": 16 * ranks, "batch_size": 3, "ranks": ranks}
    assert numbers_of(summary_of(job, make_log(job)), Issue.SAMPLES_DROPPED) == numbers
    assert numbers_of(summary_of(make_job(), make_log(make_job())), Issue.SAMPLES_DROPPED) is None


def finished(job: TrainingJob, share: float) -> RunLog:
    """A log in which such a share of each wait passed after the batch was finished."""
    log = make_log(job)
    log.rows["ready_ns"] -= log.rows["wait_ns"] % 2
    log.rows["wait_ns"] -= log.rows["wait_ns"] % 2
    log.rows["finished_ns"] = log.rows["ready_ns"] - (share * log.rows["wait_ns"]).astype(np.int64)
    log.rows["started_ns"] = log.rows["finished_ns"] - 9 * MS
    return log


def test_waiting_behind_the_worker_is_told_where_it_is_most_of_it_and_something_was_lost() -> None:
    job = make_job(steps=40)
    late = {"percent": near(75, 0.5), "ranks": job.ranks}
    assert numbers_of(summary_of(job, finished(job, 0.75)), Issue.HOST_LATE) == late
    assert numbers_of(summary_of(job, finished(job, 0.45)), Issue.HOST_LATE) is None
    half = summary_of(job, finished(job, 0.5))
    assert half.metrics.handover_share_of_wait == 0.5
    assert numbers_of(half, Issue.HOST_LATE) is None, "half is not most of it"
    log = finished(job, 0.75)
    log.rows["wait_ns"], log.rows["sync_ns"] = log.rows["wait_ns"] // 1000, 0
    log.rows["ready_ns"] = log.rows["free_ns"] + log.rows["wait_ns"]
    log.rows["finished_ns"] = log.rows["free_ns"]
    summary = summary_of(job, log)
    assert summary.metrics.handover_share_of_wait == 1
    assert numbers_of(summary, Issue.HOST_LATE) is None, "nothing to speak of was lost"


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
    assert found.steps_during == 2, "the one that was free when it began, and not the one that was free at its end"
    assert found.step_seconds_during == pytest.approx(2.5)
    assert found.step_seconds_otherwise == pytest.approx(1), "without the first step of a block"
    assert found.slow_down_percent == pytest.approx(150)
    assert (found.stall_seconds, found.safe_seconds) == pytest.approx((0.5, 2.5))
    assert found.shortest_interval_seconds == pytest.approx(shortest_interval_seconds(0.5, 2.0, AU))


def test_a_snapshot_is_no_time_in_which_the_storage_writes() -> None:
    job = make_job(ranks=1)
    log = make_log(job)
    saved = part(12 * S, 13 * S, 15 * S), part(30 * S, None, 34 * S)
    found = summary_of(job, replace(log, journal=log.journal.noting(checkpoints=saved))).checkpoints
    assert [each.mb_per_second for each in found] == pytest.approx([0.001 / 2, 0.001 / 4])
    assert [each.seconds for each in found] == [3, 4]


def test_of_several_checkpoints_the_means_count_and_for_the_snapshot_the_shortest_stall() -> None:
    found = asynchronous((part(12 * S, 13 * S, 15 * S), part(30 * S, 33 * S, 34 * S)))
    assert (found.stall_seconds, found.safe_seconds) == pytest.approx((2, 3.5))
    assert found.shortest_interval_seconds == pytest.approx(shortest_interval_seconds(1.0, 1.5, AU))


def test_a_checkpoint_beside_which_no_step_was_taken_slowed_none_down() -> None:
    found = asynchronous((part(30 * S, 31 * S, 32 * S),))
    assert (found.steps_during, found.step_seconds_during, found.slow_down_percent) == (0, None, None)
    assert found.step_seconds_otherwise == pytest.approx((8 * 1 + 2 + 3) / 10)
    first = asynchronous((part(9 * S, 10 * S, 11 * S),))
    assert (first.steps_during, first.step_seconds_during) == (1, None), "a first step tells nothing"


def test_the_first_step_of_an_epoch_tells_nothing_of_a_checkpoint_either() -> None:
    """It waits for a queue that was empty, though blocks are numbered anew and it is in the first one again."""
    job = make_job(ranks=1, epochs=2, steps=3, **with_blocks(3))
    log = make_log(job)
    rows = log.rows
    assert rows["block"].tolist() == [1] * 6
    rows["free_ns"] = (10 + np.arange(6)) * S
    rows["wait_ns"], rows["compute_ns"], rows["sync_ns"] = np.array([9, 0, 0, 9, 0, 0]) * S, S, 0
    found = summary_of(job, replace(log, journal=log.journal.noting(checkpoints=(part(30 * S, 31 * S, 32 * S),))))
    assert found.asynchronous_checkpoints is not None
    assert found.asynchronous_checkpoints.step_seconds_otherwise == pytest.approx(1)


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
        (used,) = [found.numbers for found in limit.seen if found.code == Seen.CPU_LIMIT]
        assert used == {"used_cores": near(0.395), "limit_cores": near(0.4)}


@pytest.mark.parametrize("what", ["host CPU", "memory", "emulator", "storage", "loader"])
def test_while_the_host_is_the_limit_no_claim_is_made_about_the_storage(
    what: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the verdict, and not by when it became slower, stood still or ran out: the host did that."""
    limit = Limit(what=what, confidence="low")
    monkeypatch.setattr(analyse_module, "_limit", lambda *_, **__: limit)
    slower = SpeedChange(
        at_seconds=1.0, mb_per_second_before=100.0, mb_per_second_after=33.0, percent=33.0, gb_before=0.1
    )
    claims = {
        "find_speed_changes": (slower,),
        "find_stalls": (Stall(at_seconds=1.0, seconds=2.0),),
        "find_ran_out": RanOut(times=2, gb=1.0, mb_per_second_before=100.0, mb_per_second_after=33.0),
        "_slow_folders": (SlowFolder(name="b", ms_per_sample=9.0, others_ms_per_sample=3.0),),
    }
    for name, claim in claims.items():
        monkeypatch.setattr(analyse_module, name, lambda *_, found=claim, **__: found)
    job = make_job(metric=Metric(au=0.98))
    summary = summary_of(job, make_log(job))
    said = (summary.speed_changes, summary.stalls, summary.ran_out, summary.slow_folders)
    printed = io.StringIO()
    print_result(summary, "results/x", Console(width=400, file=printed))
    if what in ("storage", "loader"):
        assert (summary.passed, said) == (
            False,
            tuple(claims[name] for name in ("find_speed_changes", "find_stalls", "find_ran_out", "_slow_folders")),
        )
        assert "FAIL" in printed.getvalue()
    else:
        assert (summary.passed, said) == (None, ((), (), None, ()))
        assert (summary.verdict_code, summary.outcome) == (VerdictCode.HOST_LIMITED, "no verdict")
        assert summary.verdict_numbers["limited_by"] == what
        assert not re.search("FAIL|the storage gave|stood still|is slow", printed.getvalue())


@pytest.mark.parametrize(("tls_share", "told"), [(0.5, 50.0), (3.0, 100.0)])
def test_what_tls_took_of_the_readers_cpu_time_is_told(tls_share: float, told: float) -> None:
    job = make_job(ranks=1)
    log = make_log(job)
    log.rows["cpu_ns"] = 4 * MS
    reader_seconds = 4e-3 * len(log.rows)
    counts = RequestCounts()
    counts.values[: len(INDEX) - 1] = 100
    counts.values[INDEX[TLS_CPU_US]] = round(1e6 * tls_share * reader_seconds)
    counts.first_byte[60], counts.last_byte[80] = 10, 10
    assert log.journal.ended_ns is not None
    seconds = (log.journal.ended_ns - log.journal.started_ns) / 1e9
    hosts = (replace(log.journal.hosts[0], cpu_limit=0.2),)
    journal = log.journal.noting(hosts=hosts, cpu_seconds=(0.2 * seconds,), requests=tuple(counts.values.tolist()))
    summary = summary_of(job, replace(log, journal=journal))
    assert summary.requests is not None
    assert summary.requests.tls_cpu_seconds == pytest.approx(tls_share * reader_seconds)
    assert summary.limited_by is not None
    assert summary.limited_by.what == "host CPU"
    (tls,) = [found for found in summary.limited_by.seen if found.code == Seen.TLS]
    assert tls.numbers == {"percent": near(told)}


@pytest.mark.parametrize(("cpu_ns", "tls_us"), [(4 * MS, 0), (0, 1000)])
def test_without_tls_or_without_the_readers_cpu_time_there_is_no_share_to_tell(
    cpu_ns: int, tls_us: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(ranks=1)
    log = make_log(job)
    log.rows["cpu_ns"] = cpu_ns
    counts = RequestCounts()
    counts.values[INDEX["get"]], counts.values[INDEX[TLS_CPU_US]] = 100, tls_us
    counts.first_byte[60], counts.last_byte[80] = 10, 10
    run = make_run(job, replace(log, journal=log.journal.noting(requests=tuple(counts.values.tolist()))))
    object_requests = judged(run, monkeypatch)[3].object_requests
    assert object_requests is not None
    assert (object_requests.requests, object_requests.tls_cpu_percent) == (100, None)


def read_ahead(**train: Any) -> int | None:
    """How many batches the issue about short epochs names."""
    job = changed(make_job(ranks=2, steps=8), metric={"verdict": "au", "au": 0.8}, reader={"prefetch_size": 2})
    job = changed(job, train=train)
    issue = numbers_of(summary_of(job, make_log(job)), Issue.PREFETCH_BIAS)
    return None if issue is None else int(issue["prefetched_steps"] or 0)


def test_a_loader_that_is_asked_ahead_has_a_batch_more_under_way() -> None:
    ahead = read_ahead()
    assert ahead is not None
    assert read_ahead(synchronous=True) == ahead - 1


@pytest.mark.parametrize(
    ("synchronous", "read_threads", "told"), [(False, 0, True), (False, 1, False), (True, 1, True), (True, 0, True)]
)
def test_a_loader_without_workers_reads_while_the_accelerator_waits(
    synchronous: bool, read_threads: int, told: bool
) -> None:
    job = changed(make_job(), train={"synchronous": synchronous}, reader={"read_threads": read_threads})
    how = summary_of(job, make_log(job)).how
    assert (how.synchronous, how.read_threads) == (told, read_threads)


def test_a_run_is_called_by_its_workload_accelerator_and_scale() -> None:
    job = make_job()
    log = make_log(job)
    named = replace(job, workload=replace(job.workload, accelerator="h100", scale="small"))
    for at, accelerator, scale in ((job, None, None), (named, "h100", "small")):
        summary = summary_of(at, log)
        assert (summary.workload, summary.accelerator, summary.scale) == ("handmade", accelerator, scale)


def test_a_run_of_which_nothing_was_measured_names_its_plan() -> None:
    job = make_job(ranks=2, epochs=3, steps=7)
    log = make_log(job)
    summary = summary_of(job, RunLog(log.rows[:0], log.journal.noting(ended_ns=None, cpu_seconds=())))
    assert (summary.metrics.epochs, summary.metrics.steps_per_epoch) == (3, (7, 7, 7))
    assert (summary.metrics.total_seconds, summary.metrics.cpu_seconds, summary.metrics.app_bytes) == (None, None, None)
    assert (summary.audit, summary.evaluation, summary.limited_by, summary.page_cache) == ((), None, None, None)


@pytest.mark.parametrize(("taken", "once"), [(12, True), (11, None)])
def test_an_epoch_that_was_cut_short_is_audited_as_such(taken: int, once: bool | None) -> None:
    job = make_job(epochs=2)
    log = make_log(job)
    rows = log.rows[(log.rows["epoch"] == 1) | (log.rows["step"] <= taken)]
    audit = summary_of(job, RunLog(rows, log.journal)).audit
    assert [(epoch.epoch, epoch.each_sample_once) for epoch in audit] == [(1, True), (2, once)]
    assert [epoch.samples_read for epoch in audit] == [12 * 4 * 2, taken * 4 * 2]


CHANGES = (
    SpeedChange(at_seconds=2.0, mb_per_second_before=90.0, mb_per_second_after=60.0, percent=66.7, gb_before=0.1),
)
RAN_OUT = RanOut(gb=0.1, times=2, mb_per_second_before=90.0, mb_per_second_after=60.0)
FIRST_TOUCH = FirstTouch(gb=1.0, mb_per_second_first=40.0, mb_per_second_after=120.0)
STALLS = (Stall(at_seconds=1.5, seconds=0.5),)
FOLDERS = (SlowFolder(name="2_of_4", ms_per_sample=9.0, others_ms_per_sample=2.0),)
LATE = Straggler(
    rank=None, host="node1", loss_percent=3.0, steps=4, where="epoch 1: 2-5", mean_delay_ms=7.0, mainly="reading"
)
OTHERS = OtherReaders(mb_per_second=40.0, percent=30.0)
SCALING = Scaling(readers=6, mb_per_second=400.0, more_readers=24, more_mb_per_second=410.0, again_mb_per_second=0.0)


def near(value: float, apart: float | None = None) -> Any:
    """What is to be a number, up to rounding."""
    return pytest.approx(value, abs=apart)


def judged(run: Run, monkeypatch: pytest.MonkeyPatch, late: Straggler = LATE) -> tuple[float, Causes, Work, Context]:
    """What the limit of a run is judged by, of which finders found something everywhere."""
    found: dict[str, Any] = {
        "find_speed_changes": CHANGES,
        "find_ran_out": RAN_OUT,
        "find_first_touch": FIRST_TOUCH,
        "find_stalls": STALLS,
        "find_slow_folders": FOLDERS,
        "find_stragglers": (late,),
        "_other_readers": OTHERS,
    }
    for name, value in found.items():
        monkeypatch.setattr(analyse_module, name, lambda *_, value=value, **__: value)
    given: list[Any] = []

    def judge(*arguments: Any) -> Limit:
        given.extend(arguments)
        return Limit(what="storage", confidence="low", seen=(Finding(Seen.CORES_WERE_FREE),))

    monkeypatch.setattr(analyse_module, "judge_limit", judge)
    assert run.summary.limited_by is not None
    assert run.summary.limited_by.seen[0].code == Seen.CORES_WERE_FREE
    return given[0], given[1], given[2], given[3]


@pytest.mark.parametrize("biased", [False, True])
def test_all_that_is_known_of_a_run_is_weighed(biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    job = changed(make_job(ranks=4, epochs=3, steps=20), reader={"read_threads": 3, "prefetch_size": 2})
    job = changed(job, metric={"au": 0.95 if biased else 0.6})  # whole epochs reach 70 %
    counts = RequestCounts()
    counts.values[:3] = 1000, 200, 30
    counts.values[INDEX["retried"]], counts.values[INDEX["slow_down"]] = 11, 7
    counts.values[INDEX[TLS_CPU_US]] = 120_000
    counts.first_byte[60:70], counts.last_byte[80:95] = 40, 70
    log = make_log(job, rank_nodes=(0, 0, 1, 1))
    hosts = tuple(replace(each, cpu_limit=2.0 + node) for node, each in enumerate(log.journal.hosts))
    journal = log.journal.noting(hosts=hosts, requests=tuple(counts.values.tolist()), scaling=SCALING)
    run = make_run(job, seen(worked(replace(log, journal=journal), served=0.8)))
    au, causes, work, context = judged(run, monkeypatch)
    rows = run.training if biased else kept_rows(run.training, 1, 0)
    summary, activity = run.summary, activity_during(run, rows)
    assert au == au_percent(rows)
    assert causes == find_causes(rows, preprocesses=False, workers=12)
    assert work == work_of(rows, preprocesses=False)
    assert summary.requests is not None
    assert summary.requests.first_byte_ms is not None
    assert summary.requests.last_byte_ms is not None
    assert summary.metrics.au_whole_percent is not None
    assert context == Context(
        ceiling_au=99.5,
        host_busy_percent=activity.busy_percent,
        own_busy_percent=activity.own_percent,
        cpu_limit_cores=activity.cpu_limit_cores,
        cpu_limit_used_percent=activity.cpu_limit_used_percent,
        cpu_throttled_percent=activity.cpu_throttled_percent,
        memory_some_percent=activity.memory_some_percent,
        device=activity.device,
        scaling=SCALING,
        read_threads=3,
        from_storage_percent=near(80, 0.1),
        others=OTHERS,
        speed_changes=CHANGES,
        stalls=STALLS,
        ran_out=RAN_OUT,
        first_touch=FIRST_TOUCH,
        slow_folders=FOLDERS,
        slow_hosts=("node1",),
        hot_drive=activity.hot_drive,
        object_requests=ObjectRequests(
            requests=1200,
            slow_down=7,
            retried=11,
            first_byte_ms=summary.requests.first_byte_ms.p50,
            last_byte_ms=summary.requests.last_byte_ms.p50,
            tls_cpu_percent=near(100 * 0.12 / (run.training["cpu_ns"].sum() / 1e9)),
        ),
        network_percent=activity.network_percent,
        au_whole_percent=summary.metrics.au_whole_percent.mean,
        threshold_percent=95.0 if biased else 60.0,
        causes=context.causes,
        deeper=context.deeper,
    )
    assert None not in vars(context).values()
    assert summary.limited_by is not None
    assert (summary.limited_by.seen[-1].code == Seen.FIRST_STEPS_TOO) == biased


def test_a_wait_that_was_to_be_is_known_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that emulates preprocessing, without telemetry: what it used of the cores of its hosts is its own."""
    job = changed(make_job(ranks=2), reader={"preprocess_time": Duration(mean=0.001), "read_threads": 0})
    log = worked(make_log(job, rank_nodes=(0, 1)))
    assert log.journal.ended_ns is not None
    seconds = (log.journal.ended_ns - log.journal.started_ns) / 1e9
    hosts = tuple(replace(each, cpu_limit=limit) for each, limit in zip(log.journal.hosts, (1.0, 9.0), strict=True))
    run = make_run(
        job, replace(log, journal=log.journal.noting(hosts=hosts, cpu_seconds=(0.5 * seconds, 0.25 * seconds)))
    )
    _, causes, work, context = judged(run, monkeypatch)
    rows = kept_rows(run.training, 1, 0)
    assert causes == find_causes(rows, preprocesses=True, workers=2)
    assert causes != find_causes(rows, preprocesses=False, workers=2)
    assert work == work_of(rows, preprocesses=True)
    assert context.host_busy_percent == pytest.approx(100 * 0.75 / (1 + HOST.cpu_usable))
    assert context.own_busy_percent is None
    assert (context.cpu_limit_cores, context.cpu_limit_used_percent) == pytest.approx((10, 7.5))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, ("node1",)),
        ({"mainly": "computing"}, ()),
        ({"rank": 2}, ("node1",)),
        ({"rank": 2, "mainly": "computing"}, ()),
        ({"rank": 0, "host": "node0"}, ()),
        ({"rank": None, "host": "node0"}, ("node0",)),
    ],
)
def test_a_host_is_slow_as_a_whole_or_by_its_one_rank_and_by_its_reads(
    changes: dict[str, Any], named: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(ranks=3)
    run = make_run(job, make_log(job, rank_nodes=(0, 0, 1)))
    assert judged(run, monkeypatch, replace(LATE, **changes))[3].slow_hosts == named


def test_of_one_host_none_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(make_job(), make_log(make_job()))
    assert judged(run, monkeypatch, replace(LATE, host="node0"))[3].slow_hosts == ()


def test_where_nobody_watched_the_cores_the_runs_own_use_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorder that saw the ranks' processes alone does not make their share one of something."""
    job = make_job()
    log = seen(make_log(job))
    (watching,) = log.telemetry
    others = tuple(one._replace(metric="unknown") if one.probe == "cpu" else one for one in watching.series)
    run = make_run(job, replace(log, telemetry=(replace(watching, series=others),)))
    activity = activity_during(run, run.training)
    assert activity.busy_percent is None
    assert activity.own_percent is not None
    context = judged(run, monkeypatch)[3]
    assert context.own_busy_percent is None
    assert context.host_busy_percent is not None


def test_the_cpu_time_of_checkpoints_start_and_trials_is_none_of_reading() -> None:
    job = make_job(ranks=2)
    log = make_log(job)
    apart = (CpuApart(start=9.0, trials=3.0, checkpoints=1.25), CpuApart(start=8.0, trials=2.0, checkpoints=0.0))
    metrics = make_run(job, replace(log, journal=log.journal.noting(cpu_apart=apart))).summary.metrics
    assert metrics.app_bytes is not None
    assert metrics.cpu_seconds == 3.0
    assert metrics.cpu_seconds_per_gb == pytest.approx(3.0 / (metrics.app_bytes / 1e9)), "what it has always been"
    assert metrics.read_cpu_seconds_per_gb == pytest.approx(1.75 / (metrics.app_bytes / 1e9))
    assert metrics.cpu_apart == CpuApart(start=17.0, trials=5.0, checkpoints=1.25)
    older = make_run(job, log).summary.metrics
    assert (older.read_cpu_seconds_per_gb, older.cpu_apart) == (None, None)

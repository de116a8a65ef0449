"""What the summary of a run of checkpoints says in words, of which ranks, and from which figure on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from datagen.storage._request_counts import BINS, COUNTERS, RequestCounts
from dlemu.checkpoints.io_rows import READ, WHOLE, WRITE
from dlemu.jobs.checkpoint import analyse as analyse_checkpoints_module
from dlemu.jobs.checkpoint.issues import Issue, Outcome
from dlemu.jobs.checkpoint.journal import UnderWay
from dlemu.jobs.checkpoint.limits import CheckpointLimit, PhaseActivity, Seen
from dlemu.jobs.checkpoint.result import CheckpointRun
from dlemu.jobs.checkpoint.summary import CheckpointSummary
from dlemu.metrics.findings import Finding, Number
from dlemu.results.file_names import KILLED
from tests.results.handmade import checkpoint_run


def numbers_of(summary: CheckpointSummary, code: Issue) -> dict[str, Number] | None:
    """The numbers of the one issue with this code, None without."""
    found = [finding.numbers for finding in summary.findings if finding.code == code]
    assert len(found) < 2
    return found[0] if found else None


def noted(run: CheckpointRun, **changes: Any) -> CheckpointRun:
    """The run with something else in its journal."""
    facts = replace(run.facts, journal=run.facts.journal.noting(**changes))
    return CheckpointRun(run.folder, facts, run.rows, run.progress, run.telemetry)


def served(run: CheckpointRun, share: float) -> CheckpointRun:
    """The run with such a share of what was read from the storage."""
    rows = run.rows.copy()
    rows["storage_bytes"] = np.where(rows["phase"] == READ, share * rows["bytes"], 0)
    return CheckpointRun(run.folder, run.facts, rows, run.progress, run.telemetry)


def test_the_verdict_says_what_was_done_by_its_name() -> None:
    both = checkpoint_run().summary
    assert both.write is not None
    assert both.write.slowest_seconds is not None
    assert both.verdict_code == Outcome.WRITTEN_AND_READ
    assert f"{both.write.slowest_seconds.mean:.2f} s per checkpoint, limited by: " in both.verdict
    assert both.verdict.count("; READ: ") == 1
    only_read = checkpoint_run(order=[(READ, 3), (READ, 2)]).summary
    assert (only_read.write, only_read.verdict_code) == (None, Outcome.READ)
    assert checkpoint_run(order=[(WRITE, 1)]).summary.verdict_code == Outcome.WRITTEN
    assert checkpoint_run(order=[]).summary.verdict_code == Outcome.NOTHING


@pytest.mark.parametrize(("phase", "files"), [("write", "was being written: 0 of"), ("read", "was being read: 4 of")])
def test_what_was_under_way_is_told_with_what_is_left(phase: Any, files: str) -> None:
    under_way = UnderWay(phase=phase, checkpoint=2 if phase == "read" else 4)
    summary = noted(checkpoint_run(failure="no space"), under_way=under_way, removed=(1, 3)).summary
    assert summary.verdict_code == Outcome.INCOMPLETE
    assert "; complete and kept: checkpoint 2; " in summary.verdict
    assert f"checkpoint {under_way.checkpoint} {files}" in summary.verdict
    assert summary.partial is not None
    assert (summary.partial.phase, summary.partial.checkpoint) == (phase, under_way.checkpoint)
    assert summary.partial.folder.startswith("/mnt/drive/saved/")
    assert (summary.partial.ranks, summary.partial.files) == ((2, 4) if phase == "read" else (0, 0))
    nothing = checkpoint_run(order=[], failure="no space").summary
    assert nothing.verdict == "INCOMPLETE: no space; no checkpoint is complete"
    only_read = checkpoint_run(order=[], failure="it is truncated", num_checkpoints_write="0").summary
    assert only_read.verdict == "INCOMPLETE: it is truncated"
    assert nothing.partial is None
    assert noted(checkpoint_run(), under_way=under_way).summary.partial is None, "a run that is complete has none"


def test_what_was_written_of_a_checkpoint_is_not_taken_for_read() -> None:
    run = checkpoint_run(order=[(WRITE, 1), (WRITE, 2)], failure="no space")
    partial = noted(run, under_way=UnderWay(phase="read", checkpoint=2)).summary.partial
    assert partial is not None
    assert (partial.ranks, partial.files, partial.bytes) == (0, 0, 0)


def test_nor_is_what_was_read_of_one_taken_for_written() -> None:
    """Of checkpoint 2 one rank had one of its two files left to write."""
    run = checkpoint_run(order=[(WRITE, 1), (WRITE, 2), (READ, 2), (READ, 1)], failure="no space")
    late = (run.rows["phase"] == WRITE) & (run.rows["checkpoint"] == 2) & (run.rows["rank"] == 1)
    cut = run.rows[~(late & (run.rows["file"] != 0))]
    cut = cut[~((cut["phase"] == READ) & (cut["checkpoint"] == 2) & (cut["rank"] == 0))]
    left = CheckpointRun(run.folder, run.facts, cut, run.progress)
    partial = noted(left, under_way=UnderWay(phase="write", checkpoint=2)).summary.partial
    assert partial is not None
    own = cut[(cut["phase"] == WRITE) & (cut["checkpoint"] == 2) & (cut["file"] != WHOLE)]
    assert (partial.ranks, partial.files, partial.bytes) == (1, 3, int(own["bytes"].sum()))


@pytest.mark.parametrize(
    ("failure", "phase", "told"), [(KILLED, "write", True), (KILLED, "read", False), ("no space", "write", False)]
)
def test_what_a_killed_run_left_half_written_is_named(failure: str, phase: Any, told: bool) -> None:
    run = noted(checkpoint_run(failure=failure), under_way=UnderWay(phase=phase, checkpoint=4))
    left = numbers_of(run.summary, Issue.PARTIAL_LEFT)
    assert (left is not None) == told
    assert left is None or str(left["folder"]).startswith("/mnt/drive/saved/")
    assert numbers_of(checkpoint_run(failure=KILLED).summary, Issue.PARTIAL_LEFT) is None, "nothing was under way"


@pytest.mark.parametrize(("share", "told"), [(0.49, 51.0), (0.51, None), (0.0, 100.0)])
def test_that_memory_served_more_than_half_is_said_loudly(share: float, told: float | None) -> None:
    summary = served(checkpoint_run(), share).summary
    assert summary.read is not None
    assert summary.read.from_storage_percent == pytest.approx(100 * share, abs=0.01)
    numbers = numbers_of(summary, Issue.NOT_READ)
    assert (numbers["cache_percent"] if numbers else None) == (told and pytest.approx(told, abs=0.01))
    assert len(summary.loud_issues) == (told is not None)


def test_what_is_not_accounted_for_is_not_known_and_an_object_store_serves_all() -> None:
    run = served(checkpoint_run(), 0.0)
    storage = run.facts.journal.storage
    assert storage is not None
    unknown = noted(run, storage=replace(storage, file_system="fuse")).summary
    assert unknown.read is not None
    assert unknown.read.from_storage_percent is None
    assert numbers_of(unknown, Issue.NOT_READ) is None
    counts = RequestCounts()
    counts.values[: len(COUNTERS)] = 3
    objects = noted(run, requests=tuple(counts.values.tolist())).summary
    assert objects.read is not None
    assert objects.read.from_storage_percent == 100
    assert objects.write is not None
    assert objects.write.from_storage_percent is None
    assert objects.requests is not None
    more = served(checkpoint_run(), 1.7).summary
    assert more.read is not None
    assert more.read.from_storage_percent == 100, "what was read ahead is no more than all"


@pytest.mark.parametrize(("share", "told"), [(0.69, False), (0.71, True)])
def test_writing_nearly_as_fast_as_content_is_made_is_told(share: float, told: bool) -> None:
    run = checkpoint_run()
    assert run.summary.write is not None
    rate = run.summary.write.wall_gb_per_second
    assert rate is not None
    numbers = numbers_of(noted(run, ceiling_gb_per_second=rate / share).summary, Issue.CONTENT_CEILING)
    assert numbers == ({"ceiling_gb_per_second": rate / share, "gb_per_second": rate} if told else None)


def test_of_many_ranks_the_slowest_are_listed() -> None:
    summary = checkpoint_run(ranks=20, order=[(WRITE, 1), (WRITE, 2)]).summary
    assert summary.write is not None
    slowest = summary.write.slowest_ranks
    assert [rank.rank for rank in slowest] == list(range(19, 3, -1))
    assert [rank.slowest_times for rank in slowest] == [2] + [0] * 15
    assert [rank.host for rank in slowest[:2]] == ["node1", "node0"]
    assert (slowest[0].mean_seconds, slowest[0].max_seconds) == pytest.approx((10.75, 11))
    assert slowest[0].bytes == (3 << 30) + 19
    assert slowest[0].max_fsync_seconds == pytest.approx(0.2 * 11)
    assert (summary.hosts, summary.ranks_per_host) == (("node0", "node1"), (10, 10))


def test_a_checkpoint_that_not_all_ranks_wrote_does_not_count() -> None:
    run = checkpoint_run(ranks=4, order=[(WRITE, 1), (WRITE, 2)])
    cut = run.rows[~((run.rows["rank"] == 3) & (run.rows["checkpoint"] == 2) & (run.rows["file"] == WHOLE))]
    summary = CheckpointRun(run.folder, run.facts, cut, run.progress).summary
    assert summary.write is not None
    assert [part.checkpoint for part in summary.write.checkpoints] == [1]
    assert [rank.rank for rank in summary.write.slowest_ranks] == [3, 2, 1, 0]


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
    assert summary.asynchronous is not None
    assert summary.training is not None
    bytes_of_rank = max(sum(file.size_bytes for file in run.facts.plan.files(rank)) for rank in run.facts.plan.ranks)
    snapshot = bytes_of_rank / 1e9 / 0.001
    assert summary.asynchronous.snapshot_seconds == pytest.approx(snapshot)
    assert summary.training.stall_seconds == pytest.approx(snapshot)
    assert summary.training.percent == pytest.approx(100 * snapshot / (60 + snapshot))
    assert summary.asynchronous.compute_seconds == 2
    assert summary.asynchronous.per_hour == pytest.approx(
        3600 / (summary.asynchronous.shortest_interval_seconds / (summary.asynchronous.au_threshold_percent / 100))
    )
    assert checkpoint_run().summary.asynchronous is None


def test_what_making_the_content_took_is_told_of_writing() -> None:
    run = checkpoint_run()
    rows = run.rows.copy()
    rows["content_cpu_ns"] = 7_000_000 * (1 + rows["rank"])
    summary = CheckpointRun(run.folder, run.facts, rows, run.progress).summary
    assert summary.write is not None
    assert summary.read is not None
    written = rows[(rows["phase"] == WRITE) & (rows["file"] == WHOLE)]
    seconds, gb = written["content_cpu_ns"].sum() / 1e9, written["bytes"].sum() / 1e9
    assert summary.write.content_cpu_seconds_per_gb == pytest.approx(seconds / gb)
    assert summary.read.content_cpu_seconds_per_gb is None
    assert summary.write.cpu_seconds_per_gb == pytest.approx(written["cpu_ns"].sum() / 1e9 / gb)


def near(value: float) -> Any:
    """What is to be a number, up to rounding."""
    return pytest.approx(value)


@pytest.mark.parametrize("requests", [(), (3,) * (len(COUNTERS) + 2 * BINS + 1)])
def test_all_that_is_known_of_a_phase_is_weighed(requests: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    run = noted(checkpoint_run(ranks=4, watched=True), requests=requests)
    given: list[PhaseActivity] = []

    def judge(activity: PhaseActivity) -> CheckpointLimit:
        given.append(activity)
        return CheckpointLimit(what="network", confidence="low", seen=(Finding(Seen.LINK, numbers={"percent": 1.0}),))

    monkeypatch.setattr(analyse_checkpoints_module, "judge_checkpoints", judge)
    summary = run.summary
    assert [activity.phase for activity in given] == ["write", "read"]
    for activity, phase, number in ((given[0], summary.write, WRITE), (given[1], summary.read, READ)):
        assert phase is not None
        assert phase.limited_by is not None
        assert [found.code for found in phase.limited_by.seen] == [Seen.LINK]
        rows = run.whole[run.whole["phase"] == number]
        rank_ns = (rows["ended_ns"] - rows["began_ns"]).sum()
        wall_seconds = sum(part.wall_seconds for part in phase.checkpoints)
        assert activity == replace(
            activity,
            gb_per_second=near(rows["bytes"].sum() / 1e9 / wall_seconds),
            call_percent=near(100 * rows["call_ns"].sum() / (2 * rank_ns)),
            fsync_percent=near(100 * rows["fsync_ns"].sum() / rank_ns),
            starved_percent=near(100 * rows["starved_ns"].sum() / (2 * rank_ns)),
            cpu_percent=near(100 * rows["mover_cpu_ns"].sum() / (2 * rank_ns)),
            cpu_wait_percent=near(100 * rows["mover_cpu_wait_ns"].sum() / (2 * rank_ns)),
            ceiling_gb_per_second=8.0,
            from_storage_percent=phase.from_storage_percent,
            device_mb_per_second=phase.device_mb_per_second,
            threads=2,
            past_page_cache=bool(requests),
        )
        assert (activity.from_storage_percent is None) == (number == WRITE)
        seen = (
            activity.host_busy_percent,
            activity.device_mb_per_second,
            activity.device_busy_percent,
            activity.device_depth,
        )
        assert None not in (*seen, activity.link_percent)


@pytest.mark.parametrize("took_ns", [0, 2_000_000_000])
def test_checkpoints_of_no_bytes_have_no_rates_and_nothing_limits_them(took_ns: int) -> None:
    run = checkpoint_run(ranks=1)
    rows = run.rows.copy()
    rows["bytes"], rows["storage_bytes"] = 0, 0
    for name in ("call_ns", "starved_ns", "cpu_ns", "fsync_ns", "mover_cpu_ns", "mover_cpu_wait_ns"):
        rows[name] = 0
    rows["ended_ns"] = rows["began_ns"] + took_ns
    summary = CheckpointRun(run.folder, run.facts, rows, run.progress).summary
    for phase in (summary.write, summary.read):
        assert phase is not None
        assert phase.wall_gb_per_second == (0 if took_ns else None)
        assert (phase.cpu_seconds_per_gb, phase.content_cpu_seconds_per_gb, phase.limited_by) == (None, None, None)
        assert (phase.fsync_percent, phase.from_storage_percent) == (0, None)
    assert summary.verdict.endswith(f", {took_ns / 1e9:.2f} s per checkpoint")
    assert "limited by" not in summary.verdict


def test_a_lost_recorder_is_an_issue() -> None:
    run = checkpoint_run()
    assert numbers_of(run.summary, Issue.TELEMETRY_ENDS_EARLY) is None
    lost = numbers_of(noted(run, lost_recorders=(0,)).summary, Issue.TELEMETRY_ENDS_EARLY)
    assert lost == {"host": run.facts.journal.hosts[0].host}


def test_writing_that_slows_down_is_not_steady() -> None:
    order = [(WRITE, number) for number in range(1, 8)]
    run = checkpoint_run(order=order)

    def as_if(*seconds: float) -> CheckpointSummary:
        rows = run.rows.copy()
        for number, took in enumerate(seconds, 1):
            part = rows["checkpoint"] == number
            rows["ended_ns"][part] = rows["began_ns"][part] + round(took * 1e9)
        return replace(run, rows=rows).summary

    for seconds, steady in (((1, 1, 2, 2, 2, 2, 2), True), ((1, 1, 1, 1, 1.2, 1.5, 1.9), False)):
        summary = as_if(*seconds)
        assert summary.write is not None
        assert summary.write.steady is steady
        numbers = numbers_of(summary, Issue.NOT_STEADY)
        assert (numbers is None) is steady
    assert numbers is not None
    first, last = numbers["first_gib_per_second"], numbers["last_gib_per_second"]
    assert isinstance(first, float)
    assert isinstance(last, float)
    assert first == pytest.approx(1.9 * last, rel=0.01)
    few = checkpoint_run().summary
    assert few.write is not None
    assert few.read is not None
    assert (few.write.steady, few.read.steady) == (None, None)

"""The table and the verdict of a result, as a user reads them."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from dlemu.config.schema import Metric
from dlemu.jobs.training.page import print_result, verdict
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.result import make_run
from dlemu.jobs.training.steplog import STEP_DTYPE
from dlemu.jobs.training.summary import Mean, PageCache, RankSpread, SpeedChange, Stall, Summary
from dlemu.jobs.training.trainer import RunLog
from dlemu.metrics.limit import Limit
from tests.runs import make_job, make_log, with_blocks, with_evaluation


def summary_of(job: TrainingJob, log: RunLog, failure: str | None = None) -> Summary:
    return make_run(job, log, failure).summary


def shown(summary: Summary, *, width: int = 80, terminal: bool = False) -> str:
    out = io.StringIO()
    print_result(summary, "results/unet3d/20260101-000000", Console(file=out, width=width, force_terminal=terminal))
    return out.getvalue()


def row(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(name + " "))


def test_every_definition_of_au_is_labelled_and_has_its_own_value() -> None:
    job = make_job()
    summary = summary_of(job, make_log(job))
    text, metrics = shown(summary), summary.metrics
    for name, figure in (
        ("counted steps", metrics.au_percent),
        ("sustained AU", metrics.au_sustained_percent),
        ("whole epochs", metrics.au_whole_percent),
        ("DLIO 2.x", metrics.au_dlio_percent),
        ("DLIO v1.0", metrics.au_dlio_v1_percent),
    ):
        assert figure is not None
        assert f"{figure.mean:.2f} %" in row(text, name)
    assert "99.50 %" in row(text, "emulator's ceiling")
    assert metrics.au_percent is not None
    assert f"{metrics.au_percent.per_epoch[1]:.1f}" in row(text, "per epoch")


@pytest.mark.parametrize(("name", "head"), [("default", "scans"), ("mine", "mine")])
def test_own_files_without_a_workload_are_headed_by_their_folder(name: str, head: str) -> None:
    job = make_job()
    data = replace(job.workload.dataset, source="folder", data_folder="/data/scans/")
    job = replace(job, workload=replace(job.workload, model=replace(job.workload.model, name=name), dataset=data))
    summary = summary_of(job, make_log(job))
    assert (summary.workload, summary.dataset.is_own) == (name, True)
    assert shown(summary).lstrip().startswith(f"{head}: 2 ranks")
    assert summary.title == f"{head}: 2 ranks"


def test_rates_come_in_mb_and_mib() -> None:
    job = make_job()
    summary = summary_of(job, make_log(job))
    app_mb, app_mib = RankSpread(mean=100.02), RankSpread(mean=95.387)
    metrics = replace(summary.metrics, app_mb_per_second=app_mb, app_mib_per_second=app_mib)
    line = row(shown(replace(summary, metrics=metrics)), "read")
    assert " 100.0 MB/s " in line
    assert " 95.39 MiB/s" in line


@pytest.mark.parametrize(
    ("threshold", "word", "colour"),
    [(0.5, "PASS: sustained AU", "\x1b[1m"), (0.95, "FAIL: sustained AU", "\x1b[1;31m")],
)
def test_the_verdict_is_one_line_in_its_colour(threshold: float, word: str, colour: str) -> None:
    """A pass that the page cache served on purpose has none: it says nothing of the storage."""
    job = make_job(metric=Metric(au=threshold, cached=True))
    summary = summary_of(job, make_log(job))
    lines = shown(summary, terminal=True).splitlines()
    limited = "; limited by: loader" if word.startswith("FAIL") else ""
    assert [line for line in lines if word in line] == [f"{colour}{summary.verdict}{limited}\x1b[0m"]
    assert lines[-1] == "results: results/unet3d/20260101-000000"


def test_a_host_too_slow_for_a_verdict_is_said_in_yellow() -> None:
    job = make_job(metric=Metric(au=0.999))
    summary = summary_of(job, make_log(job))
    assert "\x1b[1;33mNO VERDICT" in shown(summary, terminal=True)


@pytest.mark.parametrize("width", [80, 120])
def test_without_a_terminal_there_is_no_colour_and_no_line_too_long(width: int) -> None:
    job = make_job(ranks=18, epochs=12, **with_blocks(5))
    text = shown(summary_of(job, make_log(job)), width=width)
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    wrapped = [line for line in text.splitlines() if line.startswith(" " * 20) and line.strip()]
    assert not wrapped, "each metric has one line"


def test_checkpoints_evaluation_and_audit_have_their_rows() -> None:
    job = make_job(**with_evaluation(40, make_job().workload.dataset))
    text = shown(summary_of(job, make_log(job)))
    assert "/s" in row(text, "evaluation")
    assert "yes" in row(text, "each sample once")
    job = make_job(epochs=1, **with_blocks(6))
    assert "2 in 0.060 s" in row(shown(summary_of(job, make_log(job))), "checkpoints")


def test_a_sample_read_twice_is_shouted() -> None:
    job = make_job()
    log = make_log(job)
    log.rows["sample_hash"][-1] += 1
    line = row(shown(summary_of(job, log)), "each sample once")
    assert "NO" in line
    assert "epoch 2" in line


def test_issues_are_shown_as_they_are_with_brackets_and_all() -> None:
    job = make_job()
    summary = replace(summary_of(job, make_log(job)), issues=("reader.transfer_size has no effect: [bold]really",))
    assert "- reader.transfer_size has no effect: [bold]really" in shown(summary)


def test_an_incomplete_run_shows_what_was_measured_and_why_it_ended() -> None:
    job = make_job()
    log = make_log(job)
    half = replace(log, rows=log.rows[: len(log.rows) * 3 // 4], journal=log.journal.noting(ended_ns=None))
    text = shown(summary_of(job, half, "rank 1: its worker 0 was killed by SIGKILL"), terminal=True)
    assert "\x1b[1;31mINCOMPLETE: rank 1: its worker 0 was killed by SIGKILL\x1b[0m" in text
    assert "not known" in text
    assert "PASS" not in text
    assert "samples" in text


@pytest.mark.parametrize("rows", [0, 2])
def test_a_run_that_ended_before_any_step_counted_still_has_a_table(rows: int) -> None:
    job = make_job()
    log = make_log(job)
    cut = replace(log, rows=log.rows[:rows] if rows else np.zeros(0, STEP_DTYPE))
    text = shown(summary_of(job, cut, "interrupted by Ctrl-C (SIGINT)"))
    assert "INCOMPLETE: interrupted by Ctrl-C (SIGINT)" in text
    assert "nan" not in text
    assert "None" not in text
    none = replace(make_log(job), rows=make_log(job).rows[:0])
    assert shown(summary_of(job, none, "no rank came up")).count("INCOMPLETE") == 1


def test_nothing_computed_has_no_number_that_looks_like_one() -> None:
    job = make_job()
    log = make_log(job)
    log.rows["compute_ns"] = log.rows["wait_ns"] = log.rows["sync_ns"] = 0
    summary = summary_of(job, log)
    assert summary.metrics.au_percent is not None
    assert summary.metrics.au_percent.mean is None
    assert row(shown(summary), "counted steps").split()[2] == "-"
    assert not math.isnan(summary.metrics.training_seconds or 0)


def test_a_verdict_of_fail_names_what_limited_the_run_in_its_own_line() -> None:
    summary = replace(summary_of(make_job(metric=Metric(au=0.95)), make_log(make_job())), passed=False)
    limit = Limit(what="host CPU", confidence="high", evidence=("no core was free",))
    assert verdict(replace(summary, limited_by=limit)).text == f"{summary.verdict}; limited by: host CPU"
    by_tls = replace(limit, where="TLS")
    assert verdict(replace(summary, limited_by=by_tls)).text == f"{summary.verdict}; limited by: host CPU, TLS"
    assert verdict(replace(summary, limited_by=replace(limit, what="nothing"))).text == summary.verdict
    assert verdict(replace(summary, limited_by=None)).text == summary.verdict
    assert verdict(replace(summary, limited_by=limit, passed=True)).text == summary.verdict


@pytest.mark.parametrize(("odirect", "name"), [(False, "read ahead"), (True, "whole blocks")])
def test_more_from_storage_than_the_loader_took_is_said_apart(odirect: bool, name: str) -> None:
    summary = summary_of(make_job(), make_log(make_job()))
    cache = PageCache(from_storage_percent=Mean(mean=188.0), dataset_to_memory_ratio=6.0)
    text = shown(replace(summary, page_cache=cache, how=replace(summary.how, odirect=odirect)))
    assert "100.0 %" in row(text, "from storage")
    assert "188" not in text
    assert "88.0 %" in row(text, name)
    exact = replace(cache, from_storage_percent=Mean(mean=100.0))
    assert name not in shown(replace(summary, page_cache=exact))


def test_one_rank_is_no_plural() -> None:
    summary = summary_of(make_job(ranks=1), make_log(make_job(ranks=1)))
    assert "handmade: 1 rank on node0" in shown(summary)
    dataset = replace(make_job(ranks=1).workload.dataset, num_files_train=49)
    summary = summary_of(make_job(ranks=1, dataset=dataset), make_log(make_job(ranks=1)))
    assert "1 of 49 samples are dropped per epoch: they do not fill a batch of 4 on the one rank" in summary.issues


def test_a_storage_that_did_not_stay_the_same_is_told_with_the_time() -> None:
    job = make_job()
    summary = replace(
        summary_of(job, make_log(job)),
        speed_changes=(
            SpeedChange(at_seconds=6.4, mb_per_second_before=137, mb_per_second_after=61.6, percent=44.96),
            SpeedChange(at_seconds=66.4, mb_per_second_before=61.6, mb_per_second_after=123.2, percent=200),
        ),
        stalls=(Stall(at_seconds=5, seconds=1.5), Stall(at_seconds=9, seconds=2.5)),
    )
    text = " ".join(shown(summary).split())
    assert "at 00:06 the storage's speed changed to 45 %: from 137.0 to 61.60 MB/s" in text
    assert "at 01:06 the storage's speed changed to 200 %" in text
    assert "stalled 2 times, 4.000 s in total: for 2.500 s at 00:09" in text
    assert "stalled" not in shown(summary_of(job, make_log(job)))


def test_the_size_of_requests_stands_as_asked_and_as_served() -> None:
    job = make_job()
    summary = summary_of(job, make_log(job))
    assert "mean requested" in shown(summary)
    assert "devices saw" not in shown(summary)
    metrics = replace(summary.metrics, asked_request_bytes=Mean(mean=262144), device_request_kib=Mean(mean=127.5))
    text = shown(replace(summary, metrics=metrics))
    assert "256.0 KiB" in text
    assert "devices saw 127.5 KiB" in text
    by_a_library = replace(summary.metrics, asked_request_bytes=Mean(mean=None))
    assert "read requests" not in shown(replace(summary, metrics=by_a_library))

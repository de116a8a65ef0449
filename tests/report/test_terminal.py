"""The table and the verdict of a result, as a user reads them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.result import RunLog, make_run
from dlemu.jobs.training.steplog import STEP_DTYPE
from dlemu.jobs.training.summary import Summary
from dlemu.jobs.training.wording import screen
from tests.runs import make_job, make_log
from tests.shown import details


def summary_of(job: TrainingJob, log: RunLog, failure: str | None = None) -> Summary:
    return make_run(job, log, failure).summary


def shown(summary: Summary, *, width: int = 80, terminal: bool = False) -> str:
    return details("training", summary, width=width, terminal=terminal)


def row(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(name + " "))


def test_every_definition_of_au_is_labelled_and_has_its_own_value() -> None:
    job = make_job()
    summary = summary_of(job, make_log(job))
    text, metrics = shown(summary), summary.metrics
    for name, figure in (
        ("AU, counted steps", metrics.au_percent),
        ("AU", metrics.au_sustained_percent),
        ("AU, whole epochs", metrics.au_whole_percent),
        ("AU, DLIO 2.x", metrics.au_dlio_percent),
        ("AU, DLIO v1.0", metrics.au_dlio_v1_percent),
    ):
        assert figure is not None
        assert f"{figure.mean:.2f} %" in row(text, name)
    assert "99.50 %" in row(text, "emulator's ceiling")
    assert metrics.au_percent is not None
    assert f"{metrics.au_percent.per_epoch[1]:.2f}" in row(text.partition("Each epoch")[2], "2")


def test_a_sample_read_twice_is_shouted_at_first_sight() -> None:
    job = make_job()
    log = make_log(job)
    log.rows["sample_hash"][-1] += 1
    summary = summary_of(job, log)
    proof = next(line for line in screen(summary, "").lines if line.label == "proof")
    assert (proof.value.partition(";")[0], proof.tone) == ("NOT each sample was read once in epoch 2", "bad")


def test_an_incomplete_run_shows_what_was_measured_and_why_it_ended() -> None:
    job = make_job()
    log = make_log(job)
    half = replace(log, rows=log.rows[: len(log.rows) * 3 // 4], journal=log.journal.noting(ended_ns=None))
    text = shown(summary_of(job, half, "rank 1: its worker 0 was killed by SIGKILL"), terminal=True)
    assert re.search("\x1b\\[1;31mINCOMPLETE +rank 1: its worker 0 was killed by SIGKILL\x1b", text)
    assert "not known" in text
    assert "PASS" not in text
    assert "samples" in text


@pytest.mark.parametrize("rows", [0, 2])
def test_a_run_that_ended_before_any_step_counted_still_has_a_table(rows: int) -> None:
    job = make_job()
    log = make_log(job)
    cut = replace(log, rows=log.rows[:rows] if rows else np.zeros(0, STEP_DTYPE))
    text = shown(summary_of(job, cut, "interrupted by Ctrl-C (SIGINT)"))
    assert re.search("INCOMPLETE +interrupted by Ctrl-C", text)
    assert "nan" not in text
    assert "None" not in text
    assert screen(summary_of(job, cut, "no rank came up"), "").lines[0].label == "INCOMPLETE"

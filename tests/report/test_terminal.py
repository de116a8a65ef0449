"""What a terminal shows: the verdict and the table of a result, any table's cells, and progress."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.result import RunLog, make_run
from dlemu.jobs.training.summary import Summary
from dlemu.jobs.training.wording import screen
from dlemu.report.progress import PLAIN_SECONDS, ProgressLine
from dlemu.report.table import Table, columns, html_table, print_table
from dlemu.report.units import with_uncertainty
from tests.runs import make_job, make_log
from tests.shown import details


def summary_of(job: TrainingJob, log: RunLog, failure: str | None = None) -> Summary:
    return make_run(job, log, failure).summary


def shown(summary: Summary, *, width: int = 80, terminal: bool = False) -> str:
    return details("training", summary, width=width, terminal=terminal)


def test_a_sample_read_twice_is_shouted_at_first_sight() -> None:
    job = make_job()
    log = make_log(job)
    log.rows["sample_hash"][-1] += 1
    summary = summary_of(job, log)
    proof = next(line for line in screen(summary, "").lines if line.label == "proof")
    assert (proof.value.partition(";")[0], proof.tone) == ("NOT each sample was read once in epoch 2", "bad")


@pytest.mark.parametrize("rows", [0, 2, 36])
def test_an_incomplete_run_shows_what_was_measured_and_why_it_ended(rows: int) -> None:
    job = make_job()
    log = make_log(job)
    cut = replace(log, rows=log.rows[:rows], journal=log.journal.noting(ended_ns=None))
    summary = summary_of(job, cut, "rank 1: its worker 0 was killed by SIGKILL")
    text = shown(summary, terminal=True)
    assert re.search("\x1b\\[1;31mINCOMPLETE +rank 1: its worker 0 was killed by SIGKILL\x1b", text)
    assert not re.search("nan|None|PASS", text)
    assert ("samples" in text, "not known" in text) == (True, True)
    assert screen(summary, "").lines[0].label == "INCOMPLETE"


NASTY = "[bold]<img src=x onerror=alert(1)>[/nothing]"


def table_text(table: Table) -> str:
    out = io.StringIO()
    print_table(table, Console(file=out, width=200))
    return out.getvalue()


def test_texts_of_others_are_no_markup() -> None:
    table = Table(title=NASTY, columns=columns(NASTY), rows=[(NASTY,)], notes=[NASTY])
    assert table_text(table).count(NASTY) == 4
    page = html_table(table)
    assert "<img" not in page
    assert page.count("&lt;img") == 4


def test_texts_of_others_do_not_control_the_terminal() -> None:
    text = "a\x1b[2J\x1b]0;title\x07\r\x9bb"
    table = Table(title=text, columns=columns(text), rows=[(text,)], notes=[text])
    printed = table_text(table)
    assert printed.count(r"a\x1b[2J\x1b]0;title\x07\x0d\x9bb") == 4
    assert printed.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("percent", "half_width", "text"),
    [
        (97.31, 0.42, "97.3 % ± 0.4"),
        (93.2, 2.1, "93 % ± 2"),
        (99.996, 0.0, "100 %"),
        (100.0, math.inf, "100 %"),
        (89.97, 0.01, "89.97 %"),
        (89.8, 1.2, "89.8 % ± 1.2"),
        (90.0, 0.01, "90 %"),
    ],
)
def test_a_percentage_has_the_digits_of_its_interval_and_never_looks_like_a_threshold_that_it_misses(
    percent: float, half_width: float, text: str
) -> None:
    assert with_uncertainty(percent, half_width, 90.0) == text


class Time:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def progress_text(console: Console) -> str:
    """Show 200 steps of a second, of which one is interrupted by a message; return what was written."""
    clock = Time()
    line = ProgressLine(console, now=clock)
    for step in range(1, 201):
        clock.seconds += 1
        line.show(f"step {step}/200, longer than the terminal: {'x' * 200}", last=step == 200)
        if step == 100:
            line.leave()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_there_is_a_line_now_and_then_and_the_last() -> None:
    lines = progress_text(Console(file=io.StringIO(), width=100)).splitlines()
    assert len(lines) == pytest.approx(200 / PLAIN_SECONDS, abs=2)
    assert lines[-1].startswith("step 200/200")
    assert "\x1b" not in "".join(lines)


def test_on_a_terminal_it_is_redrawn_in_place() -> None:
    drawn = progress_text(Console(file=io.StringIO(), width=100, force_terminal=True))
    assert drawn.count("\x1b[1F\x1b[J") == 200 - 2, "neither at first, nor over a message"
    assert max(len(line) for line in drawn.replace("\x1b[1F\x1b[J", "").splitlines()) < 100, "wrapped ones would stay"

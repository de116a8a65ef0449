"""What a terminal shows: verdict and table of a result, the cells of any table, progress, a sentence for each code."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from string import Formatter
from typing import Any, get_args

import pytest
from rich.console import Console

from dlemu.config.schema import Metric
from dlemu.jobs.checkpoint import summary
from dlemu.jobs.checkpoint import wording as checkpoint_words
from dlemu.jobs.training import wording as words
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.result import RunLog
from dlemu.jobs.training.summary import Summary
from dlemu.jobs.training.wording import screen
from dlemu.metrics.changes import not_steady
from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.verdict import Verdict, VerdictCode
from dlemu.report.progress import PLAIN_SECONDS, ProgressLine
from dlemu.report.table import Table, columns, html_table, print_table
from dlemu.report.units import with_uncertainty
from dlemu.results.wording import sentences
from tests.runs import make_job, make_log, make_run, present
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
    assert (proof.value, proof.tone) == ("NOT each sample was read once in epoch 2", "bad")


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


# any table


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


# progress


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


# a sentence for every code


CHECKPOINT_CODES = [
    *(Code.NO_DATA_FROM_STORAGE, Code.PAGE_CACHE, Code.MEASUREMENT_INCOMPLETE, Code.STORAGE_NOT_STEADY),
    *(Code.EMULATOR_CEILING, Code.CPU_QUOTA, Code.NETWORK_FULL),
]
TABLES: list[tuple[Any, Any]] = [
    (VerdictCode, words._VERDICTS),
    (get_args(summary.Cause), checkpoint_words.RELIEF),
    ([*summary.Caveat, *CHECKPOINT_CODES], checkpoint_words._FINDINGS),
]


def numbers_for(text: str) -> dict[str, Any]:
    return {name: 7 for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize(("codes", "table"), TABLES)
def test_every_code_has_a_sentence_with_its_numbers(codes: Any, table: Any) -> None:
    assert set(table) == set(codes)
    for code, text in table.items():
        numbers = numbers_for(text)
        (said,) = sentences([Finding(code, numbers=numbers)], table)
        assert said or table is checkpoint_words.RELIEF, code
        assert "7" in said or not numbers.keys() - {"ranks"}, said
    assert sentences([Finding("note", numbers={"text": "{as} it was"})], {"note": "{text}"}) == ("{as} it was",)


def test_only_a_pass_or_a_fail_says_so() -> None:
    assert {code for code in VerdictCode if words.verdict_word(code) in ("PASS", "FAIL")} == {"pass", "fail"}
    numbers: dict[str, Any] = {"by": "au", "au_percent": 96.5, "threshold_percent": 90}
    numbers |= {"headline_au_percent": 96.5, "sustained_au_percent": 80.0}
    assert "16.5 points of prefetching" in words.verdict_line(Verdict(VerdictCode.PASS, numbers))


@pytest.mark.parametrize("by", ["sustained", "au", "rules"])
def test_the_au_that_was_judged_is_shown(by: Any) -> None:
    job = make_job(metric=Metric(au=0.5, verdict=by))
    log = make_log(job)
    log.rows["storage_bytes"] = log.rows["app_bytes"]
    summary = summary_of(job, log)
    first, *_ = screen(summary, "").lines
    assert summary.verdict.replace("+-", "±").startswith(f"PASS: {first.value}")


def test_every_finding_of_a_training_has_its_sentences() -> None:
    assert {key.partition(".")[0] for key in words._FINDINGS} == set(Code)
    for key, texts in words._FINDINGS.items():
        code, _, pattern = key.partition(".")
        numbers: dict[str, Any] = {"pattern": pattern} if pattern else {}
        for text in texts:
            numbers |= numbers_for(text)
        found, _ = words.sentence_and_advice(Finding(code, numbers=numbers))
        assert found
        assert "7" in found or not numbers_for(texts[0]), found


@pytest.mark.parametrize(
    ("code", "numbers"),
    [
        (Code.PAGE_CACHE, {"would_help": "", "from_storage_percent": 25, "least_percent": 1, "most_percent": 50}),
        (Code.PAGE_CACHE, {"pattern": "not_known", "would_help": "", "wanted_ratio": 5.0}),
        (Code.NO_DATA_FROM_STORAGE, {"pattern": "in_memory", "file_system": "tmpfs"}),
        (Code.NO_DATA_FROM_STORAGE, {}),
    ],
)
def test_who_served_the_bytes_is_told_loudly_where_it_was_memory(code: Code, numbers: dict[str, Any]) -> None:
    said = [words.memory_warning(Finding(code, how, numbers)) or "" for how in ("loud", "caution")]
    assert said[0].startswith("MEASURED ")
    assert code == Code.NO_DATA_FROM_STORAGE or not said[1].startswith("MEASURED ")


def test_each_finding_is_a_sentence_but_those_that_are_said_elsewhere() -> None:
    stalls = [not_steady("stalled", at_seconds=at, seconds=2) for at in range(9)]
    first, *others = words.issue_lines([*stalls, Finding(Code.PAGE_CACHE)])
    assert (first, len(others)) == ("the storage stalled for 2.0 s at 00:00", 8)


def test_every_definition_of_au_has_its_own_label_and_value() -> None:
    summary = summary_of(make_job(), make_log(make_job()))
    text, metrics = shown(summary), summary.metrics
    labels = {
        "AU, counted steps": metrics.au_percent,
        "AU": metrics.au_sustained_percent,
        "AU, whole epochs": metrics.au_whole_percent,
        "AU, DLIO 2.x": metrics.au_dlio_percent,
        "AU, DLIO v1.0": metrics.au_dlio_v1_percent,
    }
    for label, figure in labels.items():
        assert re.search(rf"^ *{label}  +{present(figure).mean:.2f} %", text, re.M), label
    assert re.search(r"emulator's ceiling  +99\.50 %", text)

"""Every code of a kind of job has its sentence, which takes the code's numbers and names them."""

from __future__ import annotations

from string import Formatter
from typing import Any, get_args

import pytest

from dlemu.jobs.checkpoint import summary
from dlemu.jobs.checkpoint import wording as checkpoint_words
from dlemu.jobs.training import wording as words
from dlemu.metrics.changes import not_steady
from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.verdict import Verdict, VerdictCode
from dlemu.results.wording import sentences

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
    """A 7 for every number that the sentence takes."""
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


def test_every_finding_of_a_training_has_its_sentences() -> None:
    assert {key.partition(".")[0] for key in words._FINDINGS} == set(Code)
    for key, texts in words._FINDINGS.items():
        code, _, pattern = key.partition(".")
        numbers: dict[str, Any] = {"pattern": pattern} if pattern else {}
        for text in texts:
            numbers |= numbers_for(text)
        found, _ = words.said(Finding(code, numbers=numbers))
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

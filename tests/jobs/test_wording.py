"""Every code of a kind of job has its sentence, which takes the code's numbers and names them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from string import Formatter
from typing import Any

import pytest

from dlemu.jobs.checkpoint import limits, summary
from dlemu.jobs.checkpoint import wording as checkpoint_words
from dlemu.jobs.training import wording as words
from dlemu.jobs.training.prediction import prediction
from dlemu.metrics.cache import CacheProof
from dlemu.metrics.findings import Code, Finding
from dlemu.metrics.limit import Advice, Seen
from dlemu.metrics.spread import Mean
from dlemu.metrics.verdict import Verdict, VerdictCode
from dlemu.results.wording import sentence

TABLES: list[tuple[Any, Any]] = [
    (VerdictCode, words._VERDICTS),
    (Seen, words._SEEN),
    (Advice, words._ADVICE),
    (limits.Seen, checkpoint_words._SEEN),
    (limits.Advice, checkpoint_words._ADVICE),
    (summary.Issue, checkpoint_words._ISSUES),
    (prediction.PredictedVerdict, prediction._VERDICTS),
    (prediction.Seen, prediction._SEEN),
    (prediction.Issue, prediction._ISSUES),
]


def numbers_for(text: str | Callable[..., str]) -> dict[str, Any]:
    """A 7 for every number that the sentence takes."""
    if not callable(text):
        return {name: 7 for _, name, _, _ in Formatter().parse(text) if name}
    taken = inspect.signature(text).parameters.values()
    return {
        one.name: "write" if one.annotation == "str" else 7
        for one in taken
        if one.annotation != "str" or one.default is one.empty
    }


@pytest.mark.parametrize(("codes", "table"), TABLES)
def test_every_code_has_a_sentence_with_its_numbers(codes: Any, table: Any) -> None:
    assert set(table) == set(codes)
    for code, text in table.items():
        numbers = numbers_for(text)
        said = sentence(Finding(code, numbers=numbers), table)
        assert said, code
        assert "7" in said or not numbers.keys() - {"ranks"}, said
    assert sentence(Finding("note", numbers={"text": "{as} it was"}), {"note": "{text}"}) == "{as} it was"


def test_only_a_pass_or_a_fail_says_so() -> None:
    assert {code for code in VerdictCode if words.verdict_word(code) in ("PASS", "FAIL")} == {"pass", "fail"}
    numbers: dict[str, Any] = {"by": "au", "au_percent": 96.5, "threshold_percent": 90}
    numbers |= {"headline_au_percent": 96.5, "sustained_au_percent": 80.0}
    assert "16.5 points of prefetching" in words.verdict_line(Verdict(VerdictCode.PASS, numbers))


@pytest.mark.parametrize(
    ("code", "numbers"),
    [
        (Code.PAGE_CACHE, {"would_help": "", "from_storage_percent": 25.0}),
        (Code.PAGE_CACHE, {"would_help": "", "wanted_ratio": 5.0}),
        (Code.NO_DATA_FROM_STORAGE, {"file_system": "tmpfs"}),
        (Code.NO_DATA_FROM_STORAGE, {}),
    ],
)
@pytest.mark.parametrize("loud", [True, False])
def test_who_served_the_bytes_is_told_loudly_where_it_was_memory(
    code: Code, numbers: dict[str, Any], loud: bool
) -> None:
    finding = Finding(code, "loud" if loud else "caution", numbers)
    proof = CacheProof(from_storage_percent=Mean(mean=None, per_epoch=()), dataset_to_memory=None, finding=finding)
    always = code == Code.NO_DATA_FROM_STORAGE
    assert (words.cache_warning(proof) or "").startswith("MEASURED ") == (loud or always)


def test_why_checkpoints_are_incomplete() -> None:
    partial = summary.PartialCheckpoint(
        phase="write", checkpoint=3, folder="/c/3", ranks=1, files=2, of_files=8, bytes=2**29, of_bytes=2**31
    )
    said = checkpoint_words.why_incomplete("no space", [1, 2], partial)
    assert all(part in said for part in ("no space", "checkpoints 1, 2", "checkpoint 3", "2 of 8 files"))

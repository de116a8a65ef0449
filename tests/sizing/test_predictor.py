"""Where a search begins, and what it says beforehand of each count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dlemu.report.units import number
from dlemu.results.answer_files import read_answer, save_answer
from dlemu.studies.answers import SIZE, SizeAnswer
from dlemu.studies.size.predictor import Predictor
from dlemu.studies.size.wording import contradiction
from tests.prediction.test_calibration import workload
from tests.sizing.fakes import FakeRunner, known
from tests.sizing.test_search import find
from tests.sizing.test_size_verdict import answer_of, trial

ASKED = workload(ranks=12, steps=100)
EACH = 80.0
"""MB/s of one of its accelerators."""


def predictor(probe: float, one: float = 0.0) -> Predictor:
    read = known(probe_mb_per_second=probe, one_reader_mb_per_second=one, mb_per_accelerator=EACH, most=12)
    return Predictor(ASKED, read)


def test_a_search_begins_where_bandwidth_ends() -> None:
    said = predictor(0.9 * EACH * 6.5)
    assert said.most == 6
    size = said.size([5, 6, 7])
    assert size is not None
    assert size.null_max_accelerators == 6
    assert {5, 6, 7} <= {count.accelerators for count in size.counts}
    five, seven = size.au(5), size.au(7)
    assert five is not None
    assert seven is not None
    assert five.au_sustained_percent > 95 > 90 > seven.au_sustained_percent
    assert size.au(99) is None


def test_slow_readers_are_known_before_the_first_trial() -> None:
    """Sixteen readers get plenty, one 20 MB/s: the two of an accelerator that takes 80 can't keep up."""
    assert predictor(800.0, one=20.0).most == 0
    assert predictor(800.0).most > 8


def test_nothing_read_is_nothing_predicted() -> None:
    silent = predictor(0.0)
    assert silent.size([1]) is None
    assert silent.most == 0


def test_what_was_predicted_is_saved_and_read_again(tmp_path: Path) -> None:
    answer = find(FakeRunner(400.0), first=3)
    answer = replace(answer, predicted=predictor(0.9 * EACH * 3.5).size([3, 4]))
    save_answer(str(tmp_path), SIZE, answer)
    assert read_answer(str(tmp_path), SIZE, SizeAnswer) == answer
    assert answer.predicted is not None
    assert answer.predicted.max_accelerators == pytest.approx(3)


@pytest.mark.parametrize(
    ("feeds", "measured", "words"),
    [
        (3.5, 3, None),
        (3.5, 9, "3 pass, but 4 pass (au "),  # the first count that contradicts
        (9.5, 3, "9 pass, but 4 fail (au "),
    ],
)
def test_a_prediction_that_the_trials_contradict_is_named(feeds: float, measured: int, words: str | None) -> None:
    answer = answer_of(trial(3, 99), trial(4, 99 if measured > 3 else 70), probe_mb_per_second=feeds * 0.9 * EACH)
    answer = replace(answer, predicted=predictor(0.9 * EACH * feeds).size([3, 4]))
    said = contradiction(answer)
    if words is None:
        assert said == ""
    else:
        assert f"read probe of {number(feeds * 0.9 * EACH)} MB/s {words}" in said
        assert "the trials decide" in said
    assert contradiction(replace(answer, predicted=None)) == ""

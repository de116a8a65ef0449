"""From trials to an answer and its sentence, by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from dlemu.metrics.findings import LimitedBy
from dlemu.metrics.limit import Limit
from dlemu.studies.answers import CountResult, SizeAnswer, Trial
from dlemu.studies.size.search import pool
from dlemu.studies.size.size_verdict import build_answer, outcome_of, sentence
from tests.sizing.fakes import known, make_trial, question

# pooling trials


def trial(accelerators: int, au: float, spread: float = 0.5, **changes: Any) -> Trial:
    """Windows of which four lie above and four below an AU, alternating."""
    return make_trial(accelerators, [au + spread, au - spread] * 4, **changes)


def count_of(*trials: Trial) -> CountResult:
    (count,) = pool(trials, 90.0)
    return count


def test_the_width_of_a_count_is_the_wider_of_within_and_between() -> None:
    one = count_of(trial(4, 95)).half_width_percent
    # t of 7 degrees, 2.3646; standard deviation 0.5 sqrt(8 / 7), of 8 values.
    assert one == pytest.approx(2.3646 * 0.5 * math.sqrt(8 / 7) / math.sqrt(8), rel=0.003)
    assert count_of(trial(4, 95), trial(4, 95)).half_width_percent == pytest.approx(one / math.sqrt(2))
    assert count_of(trial(4, 95), trial(4, 97)).half_width_percent == pytest.approx(1.0), "half their difference"
    three = count_of(trial(4, 95), trial(4, 96), trial(4, 97))
    assert three.half_width_percent == pytest.approx(4.3027 / math.sqrt(3), rel=0.001), "t of 2 degrees, deviation 1"
    wide = trial(4, 95, spread=5.0)
    assert count_of(wide, wide, wide).half_width_percent == pytest.approx(10 * one / math.sqrt(3))


# the answer


STORAGE = Limit(what="storage", confidence="high", evidence=("the device was busy",), advice=("a faster one",))
CPU = Limit(what="host CPU", confidence="high", evidence=("no core was free",))


def answer_of(*trials: Trial, refusal: str = "", **changes: Any) -> SizeAnswer:
    answer = build_answer(question(), known(**changes), trials, refusal=refusal)
    return replace(answer, verdict=sentence(answer))


def test_the_limit_is_what_most_of_the_failing_trials_name() -> None:
    fails = [trial(5, 80, limited_by=CPU), trial(5, 80, limited_by=STORAGE), trial(5, 80, limited_by=STORAGE)]
    others = [trial(4, 99, limited_by=CPU)] * 4
    assert answer_of(*others, *fails).limited_by.what == "storage"
    alike = [trial(5, 80, limited_by=STORAGE)] * 2
    assert answer_of(*alike).limited_by.confidence == "high"
    assert answer_of(*alike, other_programs="1.0 of 2 cores in use").limited_by.confidence == "medium"
    assert answer_of(*others, fails[0], fails[0], fails[1]).limited_by.what == "host CPU"
    unknown = answer_of(*others, trial(5, 80))
    assert unknown.limited_by.what == "not known"
    assert unknown.limited_by.evidence == ("the trials' summaries do not record it",)


def test_a_host_that_gives_out_first_is_told_with_what_it_reaches() -> None:
    held_back = answer_of(trial(5, 60, ceiling_au_percent=65.0, limited_by=STORAGE)).limited_by
    assert held_back.what == "emulator"
    assert held_back.evidence[0].startswith("with 5 accelerators this host reaches an AU of 65.0 %")
    refused = answer_of(trial(4, 99), refusal="5 ranks want more memory")
    assert "this host can't hold more: 5 ranks want more memory; at the rate it delivered" in refused.verdict


@pytest.mark.parametrize("what", ["host CPU", "loader"])
def test_what_the_storage_could_have_fed_is_told_where_the_host_is_the_limit(what: Any) -> None:
    limit = replace(CPU, what=what)
    answer = answer_of(trial(4, 99), trial(5, 80, limited_by=limit))
    # 1000 MB/s of the probe by 90 MB/s each.
    assert answer.storage_could_feed == 11
    assert f"limit: {what}" in answer.verdict or what == "host"
    assert "; at the rate it delivered, the storage could have fed about 11" in answer.verdict
    fed_more = answer_of(trial(4, 99), trial(5, 80, limited_by=limit), probe_mb_per_second=10.0)
    assert fed_more.storage_could_feed == 4, "no less than were fed"
    free = answer_of(trial(4, 99), trial(5, 80, limited_by=limit), mb_per_accelerator=0.0)
    assert free.storage_could_feed is None


@pytest.mark.parametrize(
    ("counts", "what", "shown", "wanted", "outcome"),
    [
        ([(3, True), (4, False)], "storage", 3, 4, "fail"),
        ([(3, True), (4, None)], "storage", 3, 4, "undecided"),
        ([(3, True), (4, None), (5, False)], "storage", 3, 4, "undecided"),
        ([(3, True), (4, None), (5, False)], "storage", 3, 5, "fail"),
        ([(3, True)], "host", 3, 4, "no verdict"),
        ([(3, True), (4, False)], "emulator", 3, 4, "no verdict"),
    ],
)
def test_what_came_of_a_wanted_count(
    counts: list[tuple[int, bool | None]], what: str, shown: int, wanted: int, outcome: str
) -> None:
    answer = replace(
        build_answer(question(), known(), []),
        max_accelerators=shown,
        limited_by=LimitedBy(what=what, evidence=("x",)),
        counts=tuple(
            CountResult(accelerators=n, au_sustained_percent=90, half_width_percent=1, passed=passed, trials=1)
            for n, passed in counts
        ),
    )
    assert outcome_of(answer, wanted) == outcome

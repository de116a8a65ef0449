"""From trials to an answer and its sentence, by hand; and what is tried next, at every turn of the search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dlemu.metrics.limit import Limit
from dlemu.studies.answers import CountResult, HostOnly, SizeAnswer, SizeLimit, Trial
from dlemu.studies.size.search import Count, Limits, edge, next_count, pool
from dlemu.studies.size.size_verdict import HOST, Seen, build_answer, outcome_of
from dlemu.studies.size.wording import sentence, with_evidence
from tests.sizing.fakes import known, make_trial, question

# pooling trials


def trial(accelerators: int, au: float, spread: float = 0.5, **changes: Any) -> Trial:
    """Windows of which four lie above and four below an AU, alternating."""
    return make_trial(accelerators, [au + spread, au - spread] * 4, **changes)


def count_of(*trials: Trial) -> Count:
    (count,) = pool(trials, 90.0, 0.95)
    return count


def test_counts_are_pooled_smallest_first() -> None:
    pooled = pool([trial(9, 80), trial(3, 99), trial(9, 84), trial(4, 97)], 91.0, 0.95)
    assert [(count.accelerators, count.trials) for count in pooled] == [(3, 1), (4, 1), (9, 2)]
    assert pooled[2].au_percent == pytest.approx(82)
    assert {count.threshold_percent for count in pooled} == {91.0}
    assert pool([], 90.0, 0.95) == []


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
    assert pool([trial(4, 95)], 90.0, 0.5)[0].half_width_percent < one, "less confidence is narrower"


def counted(accelerators: int, au: float, width: float = 0.5, trials: int = 2, **changes: Any) -> Count:
    count = Count(
        accelerators=accelerators,
        trials=trials,
        au_percent=au,
        half_width_percent=width,
        threshold_percent=90.0,
        ceiling_au_percent=100.0,
    )
    return replace(count, **changes)


# what to try next


LIMITS = Limits(first=8, most=100)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([], (0, None)),
        ([counted(4, 95)], (4, None)),
        ([counted(4, 85)], (0, 4)),
        ([counted(4, 95), counted(5, 92), counted(7, 89), counted(9, 70)], (5, 7)),
        ([counted(4, 95), counted(5, 89), counted(6, 92)], (4, 5)),  # what passes above a failure counts for nothing
    ],
)
def test_the_edge_lies_below_the_first_failure(counts: Sequence[Count], expected: tuple[int, int | None]) -> None:
    assert edge(counts) == expected


@pytest.mark.parametrize(
    ("counts", "limits", "expected"),
    [
        ([], LIMITS, 8),
        ([], Limits(first=0, most=100), 1),
        ([], Limits(first=200, most=100), 100),
        # Nothing fails yet: steps of 1, 2, 4, ... above the first estimate.
        ([counted(8, 95)], LIMITS, 9),
        ([counted(8, 95), counted(9, 95)], LIMITS, 11),
        ([counted(8, 95), counted(9, 95), counted(11, 95)], LIMITS, 15),
        ([counted(3, 95), counted(8, 95), counted(9, 95)], LIMITS, 11),
        ([counted(3, 95)], LIMITS, 4),
        ([counted(8, 95), counted(9, 95)], Limits(first=8, most=10), 10),
        ([counted(8, 95, trials=1)], Limits(first=8, most=8), 8),
        ([counted(8, 95)], Limits(first=8, most=8), None),
        # 50 % at 90 accelerators are 45 of them, 50 at a threshold of 90 %.
        ([counted(90, 50.0)], LIMITS, 50),
        ([counted(90, 89.9)], LIMITS, 89),
        ([counted(90, 0.5)], LIMITS, 1),
        ([counted(47, 95), counted(90, 45.0)], LIMITS, 48),  # by arithmetic 45, which is known to pass
        ([counted(n, 95) for n in (1, 2, 3)] + [counted(90, 50.0)], LIMITS, 50),
        ([counted(n, 95) for n in (1, 2, 3, 4)] + [counted(90, 50.0)], LIMITS, 47),  # halved from the fifth on
        ([counted(n, 95) for n in (1, 2, 3, 4)] + [counted(6, 50.0)], LIMITS, 5),
        # Neighbours: each gets its trials, the one with fewer first.
        ([counted(8, 95, trials=1), counted(9, 85, trials=1)], LIMITS, 8),
        ([counted(8, 95, trials=2), counted(9, 85, trials=1)], LIMITS, 9),
        ([counted(8, 95), counted(9, 85)], LIMITS, None),
        ([counted(8, 90.2, trials=4), counted(9, 85)], LIMITS, 8),
        ([counted(8, 95), counted(9, 89.9, trials=4)], LIMITS, 9),
        ([counted(8, 95), counted(9, 89.9, trials=5)], LIMITS, None),
        ([counted(8, 90.2, trials=3), counted(9, 89.9, trials=2)], LIMITS, 9),
        ([counted(8, 90.2, trials=5), counted(9, 89.9, trials=5)], LIMITS, 7),
        ([counted(8, 95), counted(9, 85, trials=1)], Limits(first=8, most=100, repeats=1), None),
        ([counted(8, 95), counted(9, 89.9, trials=3)], Limits(first=8, most=100, most_repeats=3), None),
        ([counted(8, 95), counted(9, 85, trials=1, ceiling_au_percent=88.0)], LIMITS, None),
        ([counted(1, 85, trials=1)], LIMITS, 1),
        ([counted(1, 85, trials=2)], LIMITS, None),
        # Too close to tell: one below is shown to pass.
        ([counted(2, 90.2, trials=5), counted(3, 85)], LIMITS, 1),
        ([counted(7, 90.1, trials=4), counted(8, 90.2, trials=5), counted(9, 85)], LIMITS, 7),
        ([counted(6, 95), counted(7, 90.1, trials=5), counted(8, 90.2, trials=5), counted(9, 85)], LIMITS, None),
        ([counted(5, 95), counted(7, 90.1, trials=5), counted(8, 90.2, trials=5), counted(9, 85)], LIMITS, 6),
    ],
)
def test_the_next_count(counts: Sequence[Count], limits: Limits, expected: int | None) -> None:
    assert next_count(counts, limits) == expected


# the answer


STORAGE = Limit(what="storage", confidence="high", evidence=("the device was busy",), advice=("a faster one",))
CPU = Limit(what="host CPU", confidence="high", evidence=("no core was free",))


def answer_of(*trials: Trial, refusal: str = "", **changes: Any) -> SizeAnswer:
    answer = with_evidence(build_answer(question(), known(**changes), trials, refusal=refusal))
    return replace(answer, verdict=sentence(answer))


def said(answer: SizeAnswer) -> list[tuple[str, str]]:
    """The evidence, as codes and as sentences."""
    codes = [finding.code for finding in answer.limited_by.seen]
    return list(zip(codes, answer.limited_by.evidence, strict=True))


def test_an_answer_has_everything_that_was_found() -> None:
    trials = (
        trial(4, 99, limited_by=STORAGE, page_cache_warning="b"),
        trial(4, 99, seconds=7.0, page_cache_warning="a"),
        trial(5, 80, limited_by=STORAGE, page_cache_warning="a"),
        trial(5, 80, limited_by=STORAGE, mb_per_accelerator=110.0),
    )
    answer = answer_of(*trials)
    assert not answer.complete
    assert (answer.max_accelerators, answer.threshold_percent) == (4, 90.0)
    assert (answer.hosts, answer.question) == (("here",), question())
    assert answer.issues == ("a", "b")
    assert answer.trials == trials
    assert answer.seconds == 37.0
    assert answer.too_close_to_tell == ()
    assert answer.limited_by == SizeLimit(what="storage", evidence=("the device was busy", "a faster one"))
    assert answer.host_only is None
    assert (answer.probe_mb_per_second, answer.storage_mb_per_second) == (1000.0, 1000.0)
    assert [count.accelerators for count in answer.counts] == [4, 5]
    passing, failing = answer.edge.passing, answer.edge.failing
    assert passing is not None
    assert failing is not None
    assert (passing.accelerators, passing.au_percent, passing.trials) == (4, 99.0, 2)
    assert (failing.accelerators, failing.au_percent, failing.passed) == (5, 80.0, False)
    # 5 accelerators at 90 % of 110 MB/s each.
    assert answer.for_one_more.accelerators == 5
    assert answer.for_one_more.wanted_mb_per_second == pytest.approx(495)
    assert answer.for_one_more.most_delivered_mb_per_second == pytest.approx(400)
    # 800 s each: 1 to 3 at 100 %, 4 at 99 %, 5 at 80 %.
    assert answer.naive_seconds == pytest.approx(800 * (3 + 100 / 99 + 100 / 80))


def test_what_the_storage_gave_is_the_most_that_was_seen_of_it() -> None:
    assert answer_of(trial(14, 99)).storage_mb_per_second == pytest.approx(14 * 99)
    assert answer_of().storage_mb_per_second == 1000.0
    assert answer_of(trial(14, 99), probe_mb_per_second=2e4).storage_mb_per_second == 2e4


def test_the_limit_is_what_most_of_the_failing_trials_name() -> None:
    fails = [trial(5, 80, limited_by=CPU), trial(5, 80, limited_by=STORAGE), trial(5, 80, limited_by=STORAGE)]
    others = [trial(4, 99, limited_by=CPU)] * 4
    assert answer_of(*others, *fails).limited_by.what == "storage"
    assert answer_of(*others, fails[0], fails[0], fails[1]).limited_by.what == "host CPU"
    unknown = answer_of(*others, trial(5, 80))
    assert unknown.limited_by.what == "not known"
    assert said(unknown) == [(Seen.NOT_KNOWN, "the trials' summaries do not record it")]
    rates = "396.0 MB/s of the 1.00 GB/s that the storage delivers"
    assert unknown.verdict.endswith(f": what limits it is unknown; {rates}")


def test_a_host_that_gives_out_first_is_told_with_what_it_reaches() -> None:
    def limited(accelerators: int) -> SizeAnswer:
        return answer_of(trial(accelerators, 60, ceiling_au_percent=65.0, limited_by=STORAGE))

    assert limited(5).limited_by.what == "emulator"
    assert limited(5).limited_by.evidence[0].startswith("with 5 accelerators this host reaches an AU of 65.0 %")
    assert limited(1).limited_by.evidence[0].startswith("with 1 accelerator this host")
    refused = answer_of(trial(4, 99), refusal="5 ranks want more memory")
    assert (refused.limited_by.what, said(refused)) == ("host", [(Seen.REFUSED, "5 ranks want more memory")])
    assert "this host can't hold more: 5 ranks want more memory; at the rate it delivered" in refused.verdict


@pytest.mark.parametrize("what", HOST)
def test_what_the_storage_could_have_fed_is_told_where_the_host_is_the_limit(what: Any) -> None:
    limit = replace(CPU, what=what)
    answer = answer_of(trial(4, 99), trial(5, 80, limited_by=limit))
    # 1000 MB/s of the probe by 90 MB/s each.
    assert answer.host_only == HostOnly(storage_could_feed=11)
    assert f"limited by {what}" in answer.verdict or what == "host"
    assert "; at the rate it delivered, the storage could have fed about 11" in answer.verdict
    fed_more = answer_of(trial(4, 99), trial(5, 80, limited_by=limit), probe_mb_per_second=10.0)
    assert fed_more.host_only == HostOnly(storage_could_feed=4), "no less than were fed"
    free = answer_of(trial(4, 99), trial(5, 80, limited_by=limit), mb_per_accelerator=0.0)
    assert free.host_only == HostOnly(storage_could_feed=None)


@pytest.mark.parametrize(
    ("counts", "what", "shown", "wanted", "outcome"),
    [
        ([(3, True), (4, False)], "storage", 3, 3, "pass"),
        ([(3, True), (4, False)], "storage", 3, 4, "fail"),
        ([(3, True), (4, False)], "storage", 3, 9, "fail"),
        ([(3, True), (4, None)], "storage", 3, 4, "undecided"),
        ([(3, True), (4, None), (5, False)], "storage", 3, 4, "undecided"),
        ([(3, True), (4, None), (5, False)], "storage", 3, 5, "fail"),
        ([(1, None)], "storage", 0, 1, "undecided"),
        ([(3, True)], "count", 3, 4, "no verdict"),
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
        limited_by=SizeLimit(what=what, evidence=("x",)),
        counts=tuple(
            CountResult(accelerators=n, au_percent=90, half_width_percent=1, settled=True, passed=passed, trials=1)
            for n, passed in counts
        ),
    )
    assert outcome_of(answer, wanted) == outcome

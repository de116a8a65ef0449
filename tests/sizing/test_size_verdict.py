"""From trials to an answer and its sentence, by hand; and what is tried next, at every turn of the search."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dlemu.metrics.findings import Finding
from dlemu.metrics.limit import Limit
from dlemu.studies.answers import CountResult, HostOnly, NextAccelerator, SizeAnswer, SizeLimit, Trial
from dlemu.studies.compare.sides import _of_size
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


def test_the_best_ceiling_of_a_count_is_what_its_host_can() -> None:
    assert (
        count_of(trial(4, 80, ceiling_au_percent=70.0), trial(4, 80, ceiling_au_percent=75.0)).ceiling_au_percent == 75
    )
    assert (
        count_of(trial(4, 80, ceiling_au_percent=None), trial(4, 80, ceiling_au_percent=75.0)).ceiling_au_percent == 75
    )
    assert count_of(trial(4, 80, ceiling_au_percent=None)).ceiling_au_percent is None


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


@pytest.mark.parametrize(
    ("au", "width", "ceiling", "passes", "decided", "held_back"),
    [
        (90.0, 0.5, 100.0, True, False, False),
        (89.99, 0.5, 100.0, False, False, False),
        (90.5, 0.5, 100.0, True, False, False),
        (90.51, 0.5, 100.0, True, True, False),
        (89.49, 0.5, 100.0, False, True, False),
        (80.0, 0.5, 89.9, False, True, True),
        (80.0, 0.5, 90.0, False, True, False),
        (80.0, 0.5, None, False, True, False),
        (90.0, 0.5, 89.9, True, False, False),
    ],
)
def test_what_one_count_says(
    au: float, width: float, ceiling: float | None, passes: bool, decided: bool, held_back: bool
) -> None:
    count = counted(7, au, width, ceiling_au_percent=ceiling)
    assert (count.passes, count.decided, count.held_back) == (passes, decided, held_back)
    assert count.result == CountResult(
        accelerators=7,
        au_sustained_percent=au,
        half_width_percent=width,
        settled=decided,
        passed=passes if decided else None,
        trials=2,
    )


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


def test_a_warning_that_trials_repeat_with_other_numbers_is_one() -> None:
    warnings = [f"the page cache served {share} % of the bytes; more" for share in ("91", "92.5", "7")]
    trials = [trial(4, 99, page_cache_warning=warning) for warning in (*warnings, "something else")]
    issues = answer_of(*trials).issues
    assert len(issues) == 2
    assert set(issues) <= {*warnings, "something else"}


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
    assert (passing.accelerators, passing.au_sustained_percent, passing.trials) == (4, 99.0, 2)
    assert (failing.accelerators, failing.au_sustained_percent, failing.passed) == (5, 80.0, False)
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


def test_without_a_trial_nothing_is_shown() -> None:
    answer = answer_of()
    assert (answer.max_accelerators, answer.counts, answer.seconds, answer.naive_seconds) == (0, (), 0, 0)
    assert (answer.edge.passing, answer.edge.failing) == (None, None)
    assert (answer.limited_by.what, said(answer)) == ("count", [(Seen.MOST_ASKED, "--most 4096 was the limit")])
    assert answer.for_one_more == NextAccelerator(
        accelerators=1, wanted_mb_per_second=90.0, most_delivered_mb_per_second=None
    )
    assert answer.verdict == "not even 1 x h100 passes: no more were tried: --most 4096 was the limit"


def test_naive_seconds_of_a_search_that_found_no_failure_end_at_what_passes() -> None:
    answer = answer_of(trial(2, 100.5, spread=0.1), trial(3, 50.0))
    assert answer.naive_seconds == pytest.approx(800 * (1 + 1 + 2)), "never less than the nominal time"
    assert answer_of(trial(3, 96)).naive_seconds == pytest.approx(800 * (2 + 100 / 96))
    assert answer_of(trial(2, 0.0, spread=0.0)).naive_seconds == pytest.approx(1600)


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


def test_what_is_too_close_to_tell_is_listed_with_its_interval() -> None:
    close = [trial(16, 90.1, 2.0)] * 2
    fails = [trial(17, 84.0, limited_by=STORAGE)] * 2
    answer = answer_of(trial(15, 95.0), *close, *fails)
    assert answer.too_close_to_tell == (16,)
    assert answer.max_accelerators == 15
    assert answer.verdict.startswith(
        "15 x h100 pass (au 95.0 % +- 0.4), 17 fail (84.0 % +- 0.3), 16 is too close to call (90.1 % +- 1.3): limited"
    )
    undecided = answer_of(trial(15, 95.0), *[trial(16, 89.9, 2.0, limited_by=STORAGE)] * 2)
    assert undecided.too_close_to_tell == (16,)
    assert undecided.verdict.startswith("15 x h100 pass (au 95.0 % +- 0.4), 16 is too close to call (89.9 % +- 1.3):")
    far = answer_of(*[trial(14, 90.1, 2.0)] * 2, trial(15, 95.0), *fails)
    assert far.too_close_to_tell == (), "only the counts at the edge decide"


@pytest.mark.parametrize(
    ("name", "accelerators", "words"),
    [
        ("h100", 1, "1 x h100 passes (au 99.0 % +- 0.4), 2 fail"),
        ("h100", 4, "4 x h100 pass (au 99.0 % +- 0.4), 5 fail"),
        ("", 1, "1 accelerator passes (au 99.0 % +- 0.4), 2 fail"),
        ("", 4, "4 accelerators pass (au 99.0 % +- 0.4), 5 fail"),
    ],
)
def test_a_sentence_counts_as_people_do(name: str, accelerators: int, words: str) -> None:
    trials = [trial(accelerators, 99), trial(accelerators + 1, 80, limited_by=STORAGE)]
    answer = build_answer(question(accelerator=name), known(), trials)
    assert sentence(answer).startswith(words)
    answer = build_answer(question(accelerator=name, scale="laptop"), known(), trials)
    assert sentence(answer).startswith(words.replace(" pass", " at scale=laptop pass"))
    none = build_answer(question(accelerator=name), known(), [trial(1, 80, limited_by=STORAGE)])
    kind = f"x {name}" if name else "accelerator"
    assert sentence(none) == f"not even 1 {kind} passes, 1 fails (80.0 % +- 0.4): limited by storage"


@pytest.mark.parametrize(
    ("why", "limit", "words"),
    [
        (Finding(Seen.MOST_ASKED, numbers={"most": 4}), None, "no more were tried: --most 4 was the limit"),
        (
            Finding(Seen.FEW_SAMPLES, numbers={"most": 4, "one_more": 5, "files": 600}),
            None,
            "no more were tried: the dataset has too few files for more than 4: to try 5 takes 600 "
            "(dataset.num_files_train=600)",
        ),
        (
            Finding(Seen.FEW_OWN_FILES, numbers={"most": 4, "one_more": 5, "files": 600}),
            None,
            "no more were tried: the folder has too few files for more than 4: to try 5 takes 600",
        ),
        (Finding(Seen.MOST_ASKED, numbers={"most": 9}), STORAGE, "limited by storage"),
        (Finding(Seen.MOST_ASKED, numbers={"most": 9}), CPU, "limited by host CPU"),
        (
            Finding(Seen.MOST_ASKED, numbers={"most": 9}),
            Limit(what="nothing", confidence="high"),
            "limited by computation times that differ between accelerators, not by data",
        ),
    ],
)
def test_a_search_that_the_storage_did_not_end_may_feed_more(why: Finding, limit: Limit | None, words: str) -> None:
    fails = [] if limit is None else [trial(5, 80, limited_by=limit)]
    answer = answer_of(trial(4, 99), *fails, most_why=why)
    assert f": {words}; " in answer.verdict
    assert _of_size("size", answer).may_feed_more == (limit is not STORAGE)


@pytest.mark.parametrize(
    ("rates", "probe", "said"),
    [
        ((999.94,), 10.0, "; 999.9 MB/s of the 999.9 MB/s that the storage delivers"),
        ((1000.0,), 10.0, "; 1.00 GB/s of the 1.00 GB/s that the storage delivers"),
        ((500.0, 1500.0), 12345.6, "; 1.00 GB/s of the 12.35 GB/s that the storage delivers"),
        ((12.34, 12.36), 500.0, "; 12.3 MB/s of the 500.0 MB/s that the storage delivers"),
        ((0.041,), 2.2, "; 0.041 MB/s of the 2.200 MB/s that the storage delivers"),
    ],
)
def test_rates_are_told_in_the_unit_that_fits(rates: tuple[float, ...], probe: float, said: str) -> None:
    passing = [trial(4, 99, app_mb_per_second=rate) for rate in rates]
    fails = trial(5, 80, limited_by=STORAGE, app_mb_per_second=1.0)
    assert answer_of(*passing, fails, probe_mb_per_second=probe).verdict.endswith(said)


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
            CountResult(
                accelerators=n, au_sustained_percent=90, half_width_percent=1, settled=True, passed=passed, trials=1
            )
            for n, passed in counts
        ),
    )
    assert outcome_of(answer, wanted) == outcome

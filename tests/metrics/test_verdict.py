"""A verdict says what the storage can, and nothing where it can't be told; intervals hold what they promise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.jobs.training.wording import verdict_line
from dlemu.metrics import verdict as verdicts
from dlemu.metrics.t_interval import FEWEST, SequentialTest, estimate, half_width, is_steady, percent_interval, quantile
from dlemu.metrics.verdict import EXIT_STATUSES, Evidence, Verdict, VerdictCode, is_biased


def evidence(**changes: Any) -> Evidence:
    values: dict[str, Any] = {
        "complete": True,
        "threshold_percent": 90.0,
        "by": "au",
        "au": 95.0,
        "au_sustained": 94.5,
        "au_whole": 94.0,
        "uncertainty_percent": None,
        "length": ("e", 5),
        "ceiling_au": 99.0,
        "from_storage_percent": 100.0,
        "cached": False,
        "kept_steps": 100,
        "prefetched_steps": 5,
    }
    return Evidence(**(values | changes))


def judge(evidence: Evidence, limited_by: str = "") -> Verdict:
    verdict = verdicts.judge(evidence, limited_by)
    assert verdict_line(verdict), "it has every number that its line takes"
    return verdict


LOW = {"au": 60.0, "au_sustained": 60.0, "au_whole": 60.0}
AT_ONCE = {"by": "sustained", "supply_known": False, "au": 100.0}
BOUGHT = {"au": 96.5, "au_sustained": 80.0}  # by prefetching: the storage sustains less
BOTH = {"headline_au_percent": 96.5, "sustained_au_percent": 80.0}
HALF = {"from_storage_percent": 50.0}
SHORT = {"au": 100.0, "au_whole": 23.0}  # at a quarter of the demand, in epochs of no more steps than are read ahead


@pytest.mark.parametrize(
    ("changes", "code", "numbers"),
    [
        ({}, "pass", {"by": "au", "au_percent": 95.0, "threshold_percent": 90.0}),
        ({"by": "sustained"}, "pass", {"by": "sustained", "au_percent": 94.5}),
        ({"by": "rules"}, "pass", {"by": "rules", "au_percent": 94.0}),
        ({"au": 89.0}, "fail", {"au_percent": 89.0}),
        ({"complete": False}, "incomplete", {}),
        ({"au": None}, "nothing_computed", {}),
        ({"au": math.nan}, "nothing_computed", {}),
        ({"by": "sustained", "au_sustained": None}, "nothing_computed", {}),
        ({"au": 0.0, "au_sustained": 0.0, "au_whole": 0.0}, "nothing_computed", {}),
        ({"reads": False}, "nothing_read", {}),
        ({"reads": False, "cached": True}, "pass", {}),
        ({"ceiling_au": 80.0}, "pass", {}),
        ({"au": 89.0, "ceiling_au": 85.0}, "emulator_too_slow", {"ceiling_au_percent": 85.0}),
        ({"au": 89.0, "ceiling_au": None}, "fail", {}),
        ({"au": 89.0, "au_without_waits": 90.0}, "fail", {}),
        (
            {"au": 82.0, "au_without_waits": 89.0, "ceiling_au": 80.0},
            "uneven_computation",
            {"au_without_waits_percent": 89.0},
        ),
        # prefetching buys no pass
        (BOUGHT, "pass", BOTH),
        (BOUGHT | {"by": "sustained"}, "fail", BOTH),
        (SHORT | {"kept_steps": 1}, "too_few_steps", {"kept_steps": 1, "prefetched_steps": 5}),
        (SHORT | {"kept_steps": 6}, "pass", {}),
        ({"au": 100.0, "au_whole": 97.0, "kept_steps": 1}, "pass", {}),
        # epochs that are read at once: only a pass is sure
        (AT_ONCE | {"au_sustained": 40.0}, "supply_not_known", {"au_percent": 40.0}),
        (AT_ONCE | {"au_sustained": 40.0, "uncertainty_percent": 60.0}, "supply_not_known", {}),
        (AT_ONCE | {"au_sustained": 90.0}, "pass", {}),
        (AT_ONCE | {"au_sustained": 40.0, "au": 89.0}, "fail", {}),
        (AT_ONCE | {"au_sustained": 40.0, "by": "au"}, "pass", {}),
        # what memory served, unless it was asked for
        *((HALF | {"by": by}, "cache_served", HALF) for by in ("sustained", "au", "rules")),
        (HALF | {"cached": True}, "pass", {}),
        ({"from_storage_percent": None}, "pass", {}),
        ({"from_storage_percent": 130.0}, "pass", {}),
        (HALF | LOW, "fail", {}),  # even with memory's help
        # within U of the threshold
        ({"au": 89.5, "uncertainty_percent": 0.5}, "fail", {"uncertainty_percent": 0.5}),
        ({"au": 89.5, "uncertainty_percent": 0.51}, "undecided", {}),
        ({"au": 90.0, "uncertainty_percent": 0.0}, "pass", {}),
        ({"au": 90.5, "uncertainty_percent": 0.5}, "pass", {}),
        ({"au": 90.5, "uncertainty_percent": 0.51}, "undecided", {}),
        ({"by": "sustained", "au_sustained": 90.5, "uncertainty_percent": 1.0}, "undecided", {}),
        # how much longer to run is by the square of what is wanted
        ({"au": 91.0, "uncertainty_percent": 3.0, "length": ("e", 10)}, "undecided", {"longer": "e=100"}),
        ({"au": 90.0, "uncertainty_percent": 3.0, "length": ("e", 10)}, "undecided", {"longer": "e=1100"}),
        ({"au": 91.0, "uncertainty_percent": 1.01, "length": ("e", 2)}, "undecided", {"longer": "e=3"}),
    ],
)
def test_a_verdict_has_the_numbers_it_rests_on(changes: dict[str, Any], code: str, numbers: dict[str, Any]) -> None:
    verdict = judge(evidence(**changes))
    assert verdict.code == code
    assert numbers.items() <= verdict.numbers.items()
    assert verdict.passed == {"pass": True, "fail": False}.get(code)
    status = {"pass": (0, "pass"), "fail": (1, "fail"), "undecided": (4, "undecided")}.get(code, (4, "no verdict"))
    assert (EXIT_STATUSES[verdict.outcome], verdict.outcome) == status


def test_how_much_prefetching_flatters() -> None:
    assert [is_biased(evidence(**SHORT, kept_steps=kept)) for kept in (5, 6, 104, 106)] == [True, True, True, False]
    assert not is_biased(evidence(au=100.0, au_whole=97.0, kept_steps=20))
    assert not is_biased(evidence(au_whole=None))
    assert "sustained_au_percent" not in judge(evidence(au=90.0, au_sustained=90.0)).numbers


@pytest.mark.parametrize("by", ["sustained", "au", "rules"])
@pytest.mark.parametrize("limit", ["host CPU", "emulator"])
def test_while_the_host_is_the_limit_nothing_is_said_of_the_storage(by: str, limit: str) -> None:
    verdict = judge(evidence(by=by, **LOW), limit)
    assert (verdict.code, verdict.numbers["limited_by"]) == (VerdictCode.HOST_LIMITED, limit)
    assert judge(evidence(by=by), limit).passed is True, "a storage that passes passes"
    for other in ("storage", "loader", "nothing", ""):
        assert judge(evidence(by=by, **LOW), other).passed is False


# intervals


@pytest.mark.parametrize(
    ("share", "degrees", "expected", "within"),
    [
        (0.9, 3, 1.637744, 2e-4),
        (0.975, 3, 3.182446, 1.3e-3),
        (0.975, 10, 2.228139, 4e-6),
        (0.995, 3, 5.840909, 8e-3),
        (0.9995, 5, 6.868827, 5.2e-3),
        (0.9995, 20, 3.849516, 8e-6),
    ],
)
def test_the_expansion_is_as_near_to_the_tables_as_its_four_terms_bring_it(
    share: float, degrees: int, expected: float, within: float
) -> None:
    assert quantile(share, degrees) == pytest.approx(expected, rel=within)


def test_values_that_are_all_alike_leave_nothing_open_and_one_says_nothing() -> None:
    alike = estimate(np.array([90.0] * 8), 0.95)
    assert (alike.au_percent, alike.half_width_percent) == (90.0, 0.0)
    assert half_width(1.0, 1, 0.95) == math.inf
    assert not estimate(np.array([95.0]), 0.95).decides(90)
    assert math.isnan(estimate(np.empty(0), 0.95).au_percent)


def test_looking_often_errs_no_more_than_promised() -> None:
    """The truth lies on the threshold, so each verdict is an error."""
    random = np.random.default_rng(3)
    wrong = 0
    for _ in range(600):
        looks, values = SequentialTest(90.0, 0.95), 90 + random.standard_normal(60)
        wrong += any(looks(values[:length]) for length in range(1, len(values) + 1))
    assert wrong / 600 <= 0.05


def test_a_clear_case_is_decided_at_the_first_look() -> None:
    values = 97 + 0.5 * np.random.default_rng(1).standard_normal(FEWEST)
    looks = SequentialTest(90.0, 0.95)
    assert not any(looks(values[:length]) for length in range(FEWEST))
    assert looks(values)


def test_neighbours_that_are_alike_count_for_less() -> None:
    random = np.random.default_rng(5)
    alone = random.standard_normal(40)
    alike = np.repeat(random.standard_normal(10), 4)
    share = alike.std(ddof=1) / alone.std(ddof=1)
    wider = estimate(alike, 0.95).half_width_percent / (share * estimate(alone, 0.95).half_width_percent)
    assert wider > 1.5


@given(percent=st.floats(0, 100), half_width=st.floats(0, 1e6) | st.just(math.inf))
def test_an_interval_holds_its_percentage_and_lies_within_0_and_100(percent: float, half_width: float) -> None:
    low, high = percent_interval(percent, half_width)
    assert 0 <= low <= percent <= high <= 100


# SNIA's steady state: five rounds within 20 % of their mean, on a line that rises or falls by 10 % at most


@pytest.mark.parametrize(
    ("rates", "steady"),
    [
        ([100.0] * 4, None),
        ([100.0] * 5, True),
        ([900.0, 500.0, 100.0, 101.0, 99.0, 100.0, 100.0], True),  # only the last five count
        ([110.0, 90.0, 100.0, 110.0, 90.0], True),  # from 90 to 110 is 20 %
        ([111.0, 90.0, 100.0, 110.0, 89.0], False),
        ([104.9, 102.5, 100.0, 97.5, 95.1], True),  # falls by 9.8 %
        ([105.2, 102.6, 100.0, 97.4, 94.8], False),  # falls by 10.4 %
        ([1.11e6, 0.9e6, 1e6, 1.1e6, 0.89e6], False),  # in whatever unit
        ([0.0] * 5, True),
    ],
)
def test_the_criterion(rates: list[float], steady: bool | None) -> None:
    assert is_steady(rates) is steady

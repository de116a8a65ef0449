"""Intervals hold what they promise, however often they are looked at."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.metrics.t_interval import FEWEST, SequentialTest, estimate, half_width, is_steady, percent_interval, quantile


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


def test_values_that_are_all_alike_leave_nothing_open() -> None:
    alike = estimate(np.array([90.0] * 8), 0.95)
    assert (alike.au_percent, alike.half_width_percent) == (90.0, 0.0)


def test_one_value_says_nothing() -> None:
    assert half_width(1.0, 1, 0.95) == math.inf
    assert not estimate(np.array([95.0]), 0.95).decides(90)
    assert math.isnan(estimate(np.empty(0), 0.95).au_percent)


def test_looking_often_errs_no_more_than_promised() -> None:
    """The truth lies on the threshold, so each verdict is an error."""
    random = np.random.default_rng(3)
    wrong = sum(_decides(90 + random.standard_normal(60)) for _ in range(600))
    assert wrong / 600 <= 0.05


def _decides(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> bool:
    looks = SequentialTest(90.0, 0.95)
    return any(looks(values[:length]) for length in range(1, len(values) + 1))


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
        ([0.0] * 5, True),
    ],
)
def test_the_criterion(rates: list[float], steady: bool | None) -> None:
    assert is_steady(rates) is steady


@given(st.lists(st.integers(1, 10**6), min_size=5, max_size=9), st.sampled_from([0.25, 2.0, 1024.0]))
def test_units_do_not_matter(rates: list[int], factor: float) -> None:
    assert is_steady([rate * factor for rate in rates]) == is_steady(rates)

"""Intervals hold what they promise, however often they are looked at."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dlemu.metrics.t_interval import FEWEST, SequentialTest, estimate, half_width, quantile


@pytest.mark.parametrize(
    ("share", "degrees", "wanted", "within"),
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
    share: float, degrees: int, wanted: float, within: float
) -> None:
    assert quantile(share, degrees) == pytest.approx(wanted, rel=within)


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

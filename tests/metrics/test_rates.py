"""Rates over time: nothing is lost or counted twice; means over windows, where a rate stands at its interval's end."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.metrics.cache import delivered_between, mean_between
from dlemu.metrics.rates import Intervals, mean_within

TIMES = np.array([0, 10, 20, 40], np.int64)
RATES = np.array([777.0, 1.0, 3.0, 5.0])
"""1 from 0 to 10, 3 from 10 to 20, 5 from 20 to 40; what came before the first reading is not known."""


@pytest.mark.parametrize(
    ("windows", "mean"),
    [
        ([(0, 10)], 1.0),
        ([(0, 40)], (10 * 1 + 10 * 3 + 20 * 5) / 40),
        ([(5, 15)], (5 * 1 + 5 * 3) / 10),
        ([(12, 14)], 3.0),
        ([(0, 5), (30, 40)], (5 * 1 + 10 * 5) / 15),
        ([(-100, 10)], 1.0),
        ([(20, 1000)], 5.0),
        ([(-100, 1000)], (10 * 1 + 10 * 3 + 20 * 5) / 40),
    ],
)
def test_the_mean_over_windows_is_weighed_by_time(windows: list[tuple[int, int]], mean: float) -> None:
    assert mean_within(TIMES, RATES, windows) == pytest.approx(mean)


@pytest.mark.parametrize("windows", [[], [(50, 60)], [(-20, -10)], [(7, 7)]])
def test_without_readings_in_a_window_there_is_no_mean(windows: list[tuple[int, int]]) -> None:
    assert math.isnan(mean_within(TIMES, RATES, windows))


@pytest.mark.parametrize("count", [0, 1])
def test_one_reading_is_no_interval(count: int) -> None:
    assert math.isnan(mean_within(TIMES[:count], RATES[:count], [(0, 40)]))
    assert math.isnan(mean_between(TIMES[:count], RATES[:count], 0, 40))
    assert mean_within(TIMES[:2], RATES[:2], [(0, 40)]) == 1.0


S = 1_000_000_000


@pytest.mark.parametrize(
    ("begin_s", "end_s", "megabytes"),
    [
        (0, 40, 10 * 1 + 10 * 3 + 20 * 5),
        (0, 10, 10.0),
        (5, 10, 10.0),  # from the last reading before the begin
        (5, 15, 10 * 1 + 10 * 3),  # to the first after the end
        (10, 20, 30.0),
        (11, 40, 10 * 3 + 20 * 5),
        (-2, 40, 140.0),  # 2 of 42 s are missed, less than a twentieth
        (-3, 40, math.nan),
        (0, 42, 140.0),
        (0, 43, math.nan),
        (41, 80, math.nan),
        (-40, -1, math.nan),
    ],
)
def test_what_was_delivered_is_counted_from_reading_to_reading(begin_s: int, end_s: int, megabytes: float) -> None:
    seen = delivered_between(TIMES * S, RATES, begin_s * S, end_s * S)
    assert seen == pytest.approx(megabytes, nan_ok=True)


INTERVALS = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0.01, 50), st.floats(0, 1e6)).map(
        lambda part: (part[0], sum(part[:2]), part[2])
    ),
    min_size=1,
    max_size=20,
)


def test_amounts_are_spread_evenly_over_their_time_and_add_up() -> None:
    spread = Intervals(np.array([0.0, 1.0]), np.array([2.0, 2.0]), np.array([0.0, 1.0, 2.0, 4.0]))
    rates = spread.rates(np.array([4.0, 3.0]))
    assert rates.tolist() == [2.0, 5.0, 0.0]


@given(INTERVALS, st.integers(1, 30))
def test_rates_over_all_time_give_the_amounts(intervals: list[tuple[float, float, float]], bins: int) -> None:
    starts, ends, amounts = (np.array(column) for column in zip(*intervals, strict=True))
    edges = np.linspace(-1, 200, bins + 1)
    rates = Intervals(starts, ends, edges).rates(amounts)
    assert float((rates * np.diff(edges)).sum()) == pytest.approx(amounts.sum(), rel=1e-6, abs=1e-6)

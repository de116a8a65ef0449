"""Rates over time: nothing is lost and nothing counted twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.metrics.rates import Intervals

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

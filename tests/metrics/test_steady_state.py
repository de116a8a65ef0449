"""SNIA's steady state: five rounds within 20 % of their mean, on a line that rises or falls by 10 % at most."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlemu.metrics.t_interval import is_steady


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

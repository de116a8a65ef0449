"""The grammar of times, and what is drawn from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datagen.errors import UserError
from dlemu.config.duration import PARAMETERS, Duration, draw_seconds, is_zero, mean_seconds

SECONDS = st.floats(0, 1e6, allow_subnormal=False)


def durations() -> st.SearchStrategy[Duration]:
    def of_type(kind: Any) -> st.SearchStrategy[Duration]:
        if kind == "empirical":
            return st.lists(SECONDS, min_size=2, max_size=40).map(sorted).flatmap(measured)
        numbers = st.fixed_dictionaries(dict.fromkeys(PARAMETERS[kind], SECONDS))
        return numbers.map(lambda given: Duration(**{"type": kind, **given}))

    def measured(quantiles: list[float]) -> st.SearchStrategy[Duration]:
        means = st.floats(quantiles[0], quantiles[-1], allow_subnormal=False)
        return means.map(lambda mean: Duration(type="empirical", seconds=tuple(quantiles), mean=mean))

    return st.sampled_from(sorted(PARAMETERS)).flatmap(of_type).filter(lambda one: not [*one.problems("t")])


@given(durations())
def test_a_written_duration_reads_back(duration: Duration) -> None:
    assert Duration.from_value(duration.to_value(), "t") == duration


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (2, Duration(mean=2)),
        (0.5, Duration(mean=0.5)),
        ({"mean": 1}, Duration(mean=1)),
        ({"mean": 1, "stdev": 0}, Duration(mean=1)),
        ({"mean": 1, "stdev": 0.5}, Duration(type="normal", mean=1, stdev=0.5)),
        ({"type": "normal", "mean": 1, "stdev": 0}, Duration(type="normal", mean=1)),
        ({"type": "uniform", "min": 1, "max": 2}, Duration(type="uniform", min=1, max=2)),
        ({"type": "exponential", "scale": 1}, Duration(type="exponential", scale=1)),
        ({"type": "empirical", "seconds": [1, 2, 4], "mean": 2}, Duration(type="empirical", seconds=(1, 2, 4), mean=2)),
    ],
)
def test_the_grammar(value: object, wanted: Duration) -> None:
    assert Duration.from_value(value, "t") == wanted


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("1", "t is '1' (str): wanted a number of seconds"),
        (True, "t is True (bool)"),
        (-1, "t.mean is -1: wanted float >= 0"),
        (math.nan, "t.mean is nan: wanted"),
        ({}, "t.mean is missing"),
        ({"mean": "x"}, "t.mean is 'x': wanted float"),
        ({"type": "gama"}, "t.type is 'gama': did you mean gamma? wanted one of fixed, normal, uniform, gamma, exp"),
        ({"type": "gamma", "shape": 1, "scale": 1, "mean": 1}, "unknown key t.mean: t has shape, scale"),
        ({"type": "uniform", "min": 2, "max": 1}, "t.min is 2.0 and max 1.0"),
        ({"type": "empirical", "seconds": [1, "x"], "mean": 1}, "t.seconds[1] is 'x': wanted float"),
        ({"type": "empirical", "seconds": [1], "mean": 1}, "t.seconds has 1 values: wanted 2 to"),
        ({"type": "empirical", "seconds": [2, 1], "mean": 1}, "t.seconds is not ascending"),
        ({"type": "empirical", "seconds": [1, 2], "mean": 3}, "t.mean is 3, outside of t.seconds"),
    ],
)
def test_what_the_grammar_refuses(value: object, said: str) -> None:
    with pytest.raises(UserError) as caught:
        Duration.from_value(value, "t")
    assert said in str(caught.value)


@given(durations(), st.integers(0, 50))
def test_drawn_seconds_are_a_sane_array(duration: Duration, count: int) -> None:
    drawn = draw_seconds(duration, np.random.default_rng(1), count)
    assert drawn.shape == (count,)
    assert drawn.dtype == np.float64
    assert np.all(drawn >= 0)
    if is_zero(duration):
        assert not drawn.any()


@pytest.mark.parametrize(
    "duration",
    [
        Duration(mean=0.3),
        Duration(type="normal", mean=5, stdev=0.1),
        Duration(type="uniform", min=1, max=3),
        Duration(type="gamma", shape=2, scale=3),
        Duration(type="exponential", scale=2),
        Duration(type="poisson", lam=4),
        Duration(type="empirical", seconds=(1, 1, 1, 1, 50), mean=1.3),
    ],
)
def test_the_mean_of_many_draws_is_the_mean(duration: Duration) -> None:
    drawn = draw_seconds(duration, np.random.default_rng(7), 100_000)
    assert drawn.mean() == pytest.approx(mean_seconds(duration), rel=0.02)


def test_a_negative_draw_counts_as_no_time() -> None:
    drawn = draw_seconds(Duration(type="normal", mean=0, stdev=1), np.random.default_rng(7), 100_000)
    assert drawn.min() == 0
    assert drawn.mean() == pytest.approx(1 / math.sqrt(2 * math.pi), rel=0.02)

"""No AU is below 0 or above 100 %, nor is any end of an interval that is shown."""

from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from dlemu.metrics.t_interval import percent_interval, plus_minus

percents = st.floats(0, 100)
widths = st.floats(0, 1e6) | st.just(math.inf)


@given(percent=percents, half_width=widths)
def test_an_interval_holds_its_percentage_and_lies_within_0_and_100(percent: float, half_width: float) -> None:
    low, high = percent_interval(percent, half_width)
    assert 0 <= low <= percent <= high <= 100


@given(percent=percents, half_width=widths)
def test_what_is_written_is_within_0_and_100(percent: float, half_width: float) -> None:
    words = plus_minus(percent, half_width, 2)
    numbers = [float(number) for number in re.findall(r"\d+\.\d+", words)]
    if words.startswith("+-"):
        assert percent - numbers[0] >= -0.005
        assert percent + numbers[0] <= 100.005
    else:
        assert 0 <= numbers[0] <= numbers[1] <= 100

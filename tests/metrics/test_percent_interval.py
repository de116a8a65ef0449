"""No end of an AU's interval is below 0 or above 100 %."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from dlemu.metrics.t_interval import percent_interval

percents = st.floats(0, 100)
widths = st.floats(0, 1e6) | st.just(math.inf)


@given(percent=percents, half_width=widths)
def test_an_interval_holds_its_percentage_and_lies_within_0_and_100(percent: float, half_width: float) -> None:
    low, high = percent_interval(percent, half_width)
    assert 0 <= low <= percent <= high <= 100

"""Where a search begins."""

from __future__ import annotations

import pytest

from dlemu.studies.size.find_size import predicted_count
from tests.prediction.test_calibration import workload
from tests.sizing.fakes import known

ASKED = workload(ranks=12, steps=100)
EACH = 80.0
"""MB/s of one of its accelerators."""


@pytest.mark.parametrize(
    ("probe", "one_reader", "count"),
    [
        (0.9 * EACH * 6.5, 0.0, 6),  # where bandwidth ends
        (0.9 * EACH * 40, 0.0, 12),  # the dataset is enough for no more
        (800.0, 20.0, 0),  # two readers of 20 MB/s each can't keep up with an accelerator that takes 80
        (0.0, 0.0, 0),
    ],
)
def test_a_search_begins_where_the_model_sees_the_edge(probe: float, one_reader: float, count: int) -> None:
    read = known(probe_mb_per_second=probe, one_reader_mb_per_second=one_reader, mb_per_accelerator=EACH, most=12)
    assert predicted_count(ASKED, read) == count

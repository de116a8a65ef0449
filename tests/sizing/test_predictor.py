"""Where a search begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from dlemu.jobs.training.prediction.calibration import given_speed
from dlemu.studies.size import find_size
from dlemu.studies.size.find_size import expected_count
from tests.prediction.test_calibration import workload
from tests.sizing.fakes import known

EACH = 80.0
"""MB/s of one accelerator of 4 samples in 50 ms."""


@pytest.mark.parametrize(
    ("probe", "count"),
    [
        (0.9 * EACH * 6.5, 6),  # where bandwidth ends
        (0.9 * EACH * 40, 12),  # the dataset is enough for no more
    ],
)
def test_a_search_begins_where_the_model_sees_the_edge(
    probe: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find_size, "calibrate_from_levels", lambda *_, cores, **__: given_speed(probe, cores=cores))
    job = cast(Any, SimpleNamespace(workload=workload(ranks=12, steps=100)))
    read = known(probe_mb_per_second=probe, mb_per_accelerator=EACH, most=12)
    assert expected_count(job, (), read) == count

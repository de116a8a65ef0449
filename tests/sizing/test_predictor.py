"""Where a search begins, and what it says beforehand of each count."""

from __future__ import annotations

from dlemu.studies.size.predictor import Predictor
from tests.prediction.test_calibration import workload
from tests.sizing.fakes import known

ASKED = workload(ranks=12, steps=100)
EACH = 80.0
"""MB/s of one of its accelerators."""


def predictor(probe: float, one: float = 0.0) -> Predictor:
    read = known(probe_mb_per_second=probe, one_reader_mb_per_second=one, mb_per_accelerator=EACH, most=12)
    return Predictor(ASKED, read)


def test_a_search_begins_where_bandwidth_ends() -> None:
    said = predictor(0.9 * EACH * 6.5)
    assert said.most == 6
    size = said.size([5, 6, 7])
    assert size is not None
    assert size.null_max_accelerators == 6
    assert {5, 6, 7} <= {count.accelerators for count in size.counts}
    five, seven = size.au(5), size.au(7)
    assert five is not None
    assert seven is not None
    assert five.au_sustained_percent > 95 > 90 > seven.au_sustained_percent
    assert size.au(99) is None


def test_slow_readers_are_known_before_the_first_trial() -> None:
    """Sixteen readers get plenty, one 20 MB/s: the two of an accelerator that takes 80 can't keep up."""
    assert predictor(800.0, one=20.0).most == 0
    assert predictor(800.0).most > 8

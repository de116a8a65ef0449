"""Where a search begins, and what it says beforehand of each count."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dlemu.cli.interruption import Watched
from dlemu.metrics.findings import Finding
from dlemu.studies.prerequisites import StorageProbed
from dlemu.studies.size.predictor import Predictor
from dlemu.studies.size.size_verdict import Seen
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


@pytest.mark.parametrize(
    ("feeds", "why", "no_more"),
    [
        (40.0, Seen.FEW_SAMPLES, "the dataset has files for no more"),
        (40.0, Seen.FEW_OWN_FILES, "the dataset has files for no more"),
        (12.9, Seen.FEW_SAMPLES, "the dataset has files for no more"),
        (40.0, Seen.MOST_ASKED, "--most 12 was the limit"),
        (6.5, Seen.FEW_SAMPLES, ""),
        (6.5, Seen.MOST_ASKED, ""),
    ],
)
def test_a_prediction_that_the_dataset_ends_is_a_lower_bound(feeds: float, why: Seen, no_more: str) -> None:
    read = known(probe_mb_per_second=feeds * 0.9 * EACH, mb_per_accelerator=EACH, most=12, most_why=Finding(why))
    said = Predictor(ASKED, read)
    sized = said.size([1])
    assert sized is not None
    assert (said.most, said.no_more, sized.no_more) == (12 if no_more else 6, no_more, no_more)
    shown = Watched()
    text = io.StringIO()
    shown._console = Console(file=text, width=200)
    shown(StorageProbed(probe_mb_per_second=9, mb_per_accelerator=1, predicted_accelerators=12, no_more=no_more))
    assert text.getvalue().endswith(f"predicted: at least 12 pass: {no_more}\n" if no_more else "predicted: 12 pass\n")

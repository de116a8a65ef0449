"""`dlemu predict --others-mb-per-second` against `dlemu train` beside another program that reads at that rate."""

from __future__ import annotations

from collections.abc import Iterator

from validation.bandwidth import FOUR_MB
from validation.bed import Bed
from validation.check import Check
from validation.prediction import Row, Setting, measure_one

SETTINGS = (
    Setting(mb_per_second=120, ranks=2, step_seconds=0.025, others_mb_per_second=60, others_readers=8),
    Setting(mb_per_second=120, ranks=2, step_seconds=0.025, others_mb_per_second=30, others_readers=8),
    Setting(mb_per_second=120, ranks=2, step_seconds=0.1, others_mb_per_second=80, others_readers=16),
    Setting(
        mb_per_second=200, dataset=FOUR_MB, ranks=4, step_seconds=0.05, others_mb_per_second=100, others_readers=16
    ),
)
"""Cases whose neighbour has enough reads in flight to get its rate."""
SHY = Setting(mb_per_second=120, ranks=2, step_seconds=0.025, others_mb_per_second=60, others_readers=1)
"""A case whose neighbour has fewer reads in flight than training, and so gets less of the drive than it wants."""
AU_POINTS = 3.0


def measure(bed: Bed) -> Iterator[Row | Check]:
    """Predict and measure each case; if the neighbour gets less, the predicted AU may only be too low."""
    for setting in SETTINGS:
        row = measure_one(bed, setting)
        yield row
        yield Check(setting.name, "AU", row.au_percent, row.measured_au_percent, "%", within=AU_POINTS)
    row = measure_one(bed, SHY)
    yield row
    least = min(row.au_percent, row.measured_au_percent)
    yield Check(SHY.name, "AU, at least", row.au_percent, least, "%", within=AU_POINTS)

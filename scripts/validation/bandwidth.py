"""AU and throughput on a drive of known bandwidth, over the ratio of what is asked for to what it gives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from validation.bed import Bed, Dataset, Ran
from validation.check import Check
from validation.drive import Speed

MB = 1_000_000
THREADS = 2
BRIDGED_SECONDS = 0.2
"""What the batches ahead of the accelerators last for: the throttle lets reads pass in slices of 100 ms.

Not more: it serves readers unevenly, and batches that only some ranks have ahead cost AU in the end.
"""
EDGE_STEPS = 8
"""Steps left out at either end, where the loader fills and drains."""

ONE_MB = Dataset(name="npz-1mb", format="npz", sample_bytes=MB, files=900)
FOUR_MB = Dataset(name="npz-4mb", format="npz", sample_bytes=4 * MB, files=225)
RECORDS = Dataset(name="tfrecord-250kb", format="tfrecord", sample_bytes=250_000, samples_per_file=50, files=72)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run whose AU is known: min(1, bandwidth / demand)."""

    ratio: float
    """Demand / bandwidth."""
    ranks: int = 2
    dataset: Dataset = ONE_MB
    batch: int = 1
    loader: str = "pytorch"
    odirect: bool = True
    mb_per_second: float = 100.0
    seconds: float = 8.0
    """How long the steps take when dlemu is right."""

    @property
    def name(self) -> str:
        how = "direct" if self.odirect else "buffered"
        size = f"{self.batch} x {self.dataset.sample_bytes / MB:g} MB"
        return f"{self.ratio:g}: {self.ranks} ranks, {size}, {self.loader}, {how}"

    @property
    def step_bytes(self) -> int:
        """Bytes that all ranks together read for a step."""
        return self.ranks * self.batch * self.dataset.sample_bytes

    @property
    def compute_seconds(self) -> float:
        return self.step_bytes / (self.ratio * self.mb_per_second * MB)

    @property
    def au_percent(self) -> float:
        """What must come out."""
        return 100 * min(1.0, 1 / self.ratio)

    @property
    def steps(self) -> int:
        step_seconds = self.compute_seconds * max(1.0, self.ratio)
        return math.ceil(self.seconds / step_seconds)

    @property
    def prefetch(self) -> int:
        """Batches of each rank that are ready or under way."""
        return max(THREADS, math.ceil(BRIDGED_SECONDS * self.mb_per_second * MB / self.step_bytes))

    @property
    def speed(self) -> Speed:
        return Speed(read_bytes_per_second=int(self.mb_per_second * MB))

    @property
    def settings(self) -> list[str]:
        return [
            f"reader.data_loader={self.loader}",
            f"reader.odirect={str(self.odirect).lower()}",
            f"reader.batch_size={self.batch}",
            f"reader.read_threads={THREADS}",
            f"reader.prefetch_size={self.prefetch}",
            "reader.file_shuffle=seed",
            f"train.computation_time={self.compute_seconds}",
            f"train.total_training_steps={self.steps}",
            f"metric.exclude_start_steps={EDGE_STEPS}",
            f"metric.exclude_end_steps={EDGE_STEPS}",
            "metric.ceiling_seconds=0",
            "metric.scaling_seconds=0",  # reads after the run would stand in the count of the drive too
            f"ranks={self.ranks}",
        ]

    def run(self, bed: Bed, *prefix: str) -> Ran:
        """Run it, `prefix` before the command, with a cold page cache."""
        return bed.train(self.dataset, *self.settings, speed=self.speed, prefix=prefix)


RATIOS = (
    *(Case(ratio=ratio) for ratio in (0.5, 0.8, 1.25, 2, 4)),
    *(Case(ratio=ratio, odirect=False) for ratio in (0.8, 1.25, 4)),
)
SHAPES = (
    *(Case(ratio=ratio, ranks=8) for ratio in (0.8, 2)),
    *(Case(ratio=ratio, ranks=1, dataset=FOUR_MB) for ratio in (0.8, 2)),
    *(Case(ratio=ratio, dataset=FOUR_MB, loader="tensorflow") for ratio in (0.8, 1.25)),
    *(Case(ratio=ratio, dataset=RECORDS, batch=4, loader="tensorflow", odirect=False) for ratio in (0.5, 2)),
)


def measure_ratios(bed: Bed) -> Iterator[Check]:
    """One dataset, direct and buffered, over the ratio."""
    for case in RATIOS:
        ran = case.run(bed)
        yield from ran.beside(check(case, ran))


def measure_shapes(bed: Bed) -> Iterator[Check]:
    """Other counts of ranks, sizes of records, formats and loaders."""
    for case in SHAPES:
        ran = case.run(bed)
        yield from ran.beside(check(case, ran))


def check(case: Case, ran: Ran) -> Iterator[Check]:
    """What must hold for one case."""
    yield Check(case=case.name, what="au", theory=case.au_percent, measured=ran.au_percent, unit="%", within=2)
    limit = "storage" if case.ratio > 1 else "nothing"
    yield Check(case=case.name, what="limited by", theory=limit, measured=ran.limited_by)
    if case.ratio > 1:
        cap = case.mb_per_second
        yield Check(
            case=case.name,
            what="throughput",
            theory=cap,
            measured=ran.mb_per_second,
            unit="MB/s",
            within=2,
            percent=True,
        )
    if case.odirect:
        counted = 100 * ran.device_bytes / float(ran.metrics["app_bytes"])
        told = ran.metrics["device_bytes_percent_of_app"]["mean"]
        for what, percent in (("drive's own count / bytes read", counted), ("device bytes / bytes read", told)):
            yield Check(case=case.name, what=what, theory=100.0, measured=percent, unit="%", within=2)

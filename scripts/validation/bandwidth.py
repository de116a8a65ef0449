"""AU and throughput on a drive of known bandwidth or requests/s, for several ratios of demand to supply."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from measuring.runs import section

from validation.bed import Bed, Dataset, Ran
from validation.check import Check
from validation.drive import Speed

MB = 1_000_000
THREADS = 2
PREFETCH_SECONDS = 0.2
"""Time for which the prefetched batches last, because the throttle lets reads pass in slices of 100 ms.

Not more, because it serves readers unevenly, and batches that only some ranks have prefetched cost AU at the end.
"""
EDGE_STEPS = 8
"""Steps excluded at either end, while the loader's queue fills and drains."""

ONE_MB = Dataset(name="npz-1mb", format="npz", sample_bytes=MB, files=900)
FOUR_MB = Dataset(name="npz-4mb", format="npz", sample_bytes=4 * MB, files=225)
RECORDS = Dataset(name="tfrecord-250kb", format="tfrecord", sample_bytes=250_000, samples_per_file=50, files=72)
PAGES, MORE_PAGES = (
    Dataset(name=f"indexed-{kib}kib", format="indexed_binary", sample_bytes=kib << 10, samples_per_file=20_000, files=1)
    for kib in (4, 16)
)
"""Records aligned to pages: past the page cache, each is one request of exactly its bytes.

They are in one file, because each worker reads the index of each file.
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run whose AU is known: min(1, supply / demand)."""

    ratio: float
    """Demand / the drive's supply."""
    ranks: int = 2
    dataset: Dataset = ONE_MB
    batch: int = 1
    loader: str = "pytorch"
    odirect: bool = True
    threads: int = THREADS
    mb_per_second: float = 100.0
    reads_per_second: int = 0
    """If not 0, the drive is limited to these, and its bandwidth is not."""
    seconds: float = 8.0
    """Duration of the steps, by theory."""

    @property
    def name(self) -> str:
        mode = "direct" if self.odirect else "buffered"
        sample = self.dataset.sample_bytes
        size = f"{self.batch} x " + (f"{sample / MB:g} MB" if sample > MB / 10 else f"{sample >> 10} KiB")
        return f"{self.ratio:g}: {self.ranks} ranks, {size}, {self.loader}, {mode}"

    @property
    def step_bytes(self) -> int:
        """Bytes that all ranks together read per step."""
        return self.ranks * self.batch * self.dataset.sample_bytes

    @property
    def drive_seconds(self) -> float:
        """Time that the drive takes for a step; if requests are limited, a sample is one request."""
        if self.reads_per_second:
            return self.ranks * self.batch / self.reads_per_second
        return self.step_bytes / (self.mb_per_second * MB)

    @property
    def compute_seconds(self) -> float:
        return self.drive_seconds / self.ratio

    @property
    def au_percent(self) -> float:
        """The AU by theory."""
        return 100 * min(1.0, 1 / self.ratio)

    @property
    def steps(self) -> int:
        return math.ceil(self.seconds / max(self.compute_seconds, self.drive_seconds))

    @property
    def prefetch(self) -> int:
        """Batches of each rank that are ready or being read."""
        return max(self.threads, math.ceil(PREFETCH_SECONDS / self.drive_seconds))

    @property
    def speed(self) -> Speed:
        if self.reads_per_second:
            return Speed(reads_per_second=self.reads_per_second)
        return Speed(read_bytes_per_second=int(self.mb_per_second * MB))

    @property
    def settings(self) -> list[str]:
        return [
            *section("reader", data_loader=self.loader, odirect=self.odirect, batch_size=self.batch),
            *section("reader", read_threads=self.threads, prefetch_size=self.prefetch, file_shuffle="seed"),
            f"reader.sample_shuffle={'seed' if self.reads_per_second else 'off'}",  # else neighbours are one request
            *section("train", computation_time=self.compute_seconds, total_training_steps=self.steps),
            *section("metric", exclude_start_steps=EDGE_STEPS, exclude_end_steps=EDGE_STEPS, ceiling_seconds=0),
            f"ranks={self.ranks}",
        ]

    def run(self, bed: Bed, *prefix: str) -> Ran:
        """Run the case from a cold page cache; `prefix` is put before the command."""
        return bed.train(self.dataset, *self.settings, speed=self.speed, prefix=prefix)


RATIOS = (
    *(Case(ratio=ratio) for ratio in (0.5, 0.8, 1.25, 2, 4)),
    *(Case(ratio=ratio, odirect=False) for ratio in (0.8, 1.25, 4)),
)
"""Cases with one dataset, direct and buffered. SHAPES has other numbers of ranks, sizes of records, formats, loaders;
REQUESTS has small records on a drive that is limited to some requests/s."""
SHAPES = (
    *(Case(ratio=ratio, ranks=8) for ratio in (0.8, 2)),
    *(Case(ratio=ratio, ranks=1, dataset=FOUR_MB) for ratio in (0.8, 2)),
    *(Case(ratio=ratio, dataset=RECORDS, batch=4, loader="tensorflow", odirect=False) for ratio in (0.5, 2)),
)
REQUESTS = (
    *(Case(ratio=ratio, dataset=PAGES, batch=16, threads=4, reads_per_second=2000) for ratio in (0.8, 1.25, 2)),
    Case(ratio=2, ranks=4, dataset=MORE_PAGES, batch=4, threads=2, reads_per_second=1000),
)


def measure(cases: Sequence[Case], bed: Bed) -> Iterator[Check]:
    """Run the cases, and check each."""
    for case in cases:
        ran = case.run(bed)
        yield from ran.beside(check(case, ran))


def check(case: Case, ran: Ran) -> Iterator[Check]:
    """Check AU, limit, throughput and the drive's own counters of one case."""
    yield Check(case.name, "au", case.au_percent, ran.au_percent, "%", within=2)
    limit = "storage" if case.ratio > 1 else "nothing"
    yield Check(case.name, "limited by", limit, ran.limited_by)
    if case.ratio > 1:
        yield _throughput(case, ran)
    if case.odirect:
        counted = 100 * ran.watch_of_training.bytes / float(ran.metrics["app_bytes"])
        device, app = (float(ran.metrics[f"{name}_mb_per_second"]["mean"]) for name in ("device", "app"))
        for what, percent in (
            ("drive's own count / bytes read", counted),
            ("device bytes / bytes read", 100 * device / app),
        ):
            yield Check(case.name, what, 100.0, percent, "%", within=2)
    if case.reads_per_second:
        requests = 100 * ran.watch_of_training.reads / float(ran.metrics["samples"])
        yield Check(case.name, "requests / samples", 100.0, requests, "%", within=2)


def _throughput(case: Case, ran: Ran) -> Check:
    """Check dlemu's rate of the whole epoch: by theory, the drive's limit x the share of time in which it read."""
    if case.reads_per_second:
        cap, rate, unit = float(case.reads_per_second), "samples_per_second", "/s"
    else:
        cap, rate, unit = case.mb_per_second, "app_mb_per_second", "MB/s"
    return Check(
        case.name, "throughput", cap * ran.read_share, float(ran.metrics[rate]["mean"]), unit, within=2, percent=True
    )

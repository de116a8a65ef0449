"""Does U cover the truth? A hundred short runs on drives of known speed; and a long one: how wide U is there."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from measuring.runs import section

from validation.bandwidth import MB
from validation.bed import Bed, Dataset
from validation.check import Check
from validation.drive import Speed

RUNS = 100
DATASET = Dataset(name="npz-1mb-coverage", format="npz", sample_bytes=MB, files=900)
SLICE_SECONDS = 0.1
"""What a throttle lets pass at once when it was idle: at an epoch's start the drive gives so much more."""
MOST_RUN_U = 3.0
MOST_LONG_U = 1.0


@dataclass(frozen=True)
class Case:
    """One run; its numbers are drawn, by its own number alone."""

    number: int
    mb_per_second: int
    ratio: float
    """Demand / what the drive gives."""
    ranks: int
    readers: int
    seconds: float
    """How long it takes at the drive's speed."""
    epochs: int = 1
    """So many that all of it can be read."""

    @property
    def truth_percent(self) -> float:
        """What an endless epoch would have."""
        return 100 * min(1.0, 1 / self.ratio)


@dataclass(frozen=True)
class Told:
    """What came out."""

    number: int
    truth_percent: float
    sustained_percent: float
    u_percent: float
    """0 where there is none: too little was measured."""
    burst_percent: float
    """What the burst at each epoch's start adds to the truth, by theory."""
    extra_percent: float
    """What the drive gave beyond the samples' bytes (metadata, last blocks), in percent of these."""

    @property
    def covered(self) -> bool:
        """Whether the truth lies within U, what the drive itself is off by left out of neither side."""
        least = self.truth_percent * (1 - self.extra_percent / 100)
        most = min(100.0, self.truth_percent + self.burst_percent)
        return least - self.u_percent <= self.sustained_percent <= most + self.u_percent

    @property
    def covered_plainly(self) -> bool:
        """The same with the drive's name alone for truth."""
        return abs(self.sustained_percent - self.truth_percent) <= self.u_percent


def case(number: int) -> Case:
    """Return a case."""
    if number == RUNS:
        return Case(number=number, mb_per_second=60, ratio=1 / 0.9, ranks=2, readers=4, seconds=300.0, epochs=20)
    draw = random.Random(number)
    return Case(
        number=number,
        mb_per_second=draw.randint(50, 120),
        ratio=draw.choice((0.8, 1.05, 1.15, 1.3, 1.6, 2.0)),
        ranks=draw.choice((1, 2)),
        readers=draw.choice((2, 4, 6)),
        seconds=draw.choice((5.0, 2.5)),
    )


def told(bed: Bed, one: Case) -> Told:
    """Run one case."""
    step_bytes = one.ranks * MB
    compute_seconds = step_bytes / (one.mb_per_second * MB) / one.ratio
    seconds = max(compute_seconds, step_bytes / (one.mb_per_second * MB))
    steps = int(one.seconds / seconds)
    settings = [
        *section("reader", odirect=True, batch_size=1, read_threads=one.readers, file_shuffle="seed"),
        *section(
            "train", computation_time=compute_seconds, total_training_steps=steps, epochs=one.epochs, seed=one.number
        ),
        f"ranks={one.ranks}",
        *section("metric", ceiling_seconds=0, scaling_seconds=0),
    ]
    ran = bed.train(DATASET, *settings, speed=Speed(read_bytes_per_second=one.mb_per_second * MB))
    return Told(
        number=one.number,
        truth_percent=one.truth_percent,
        sustained_percent=float(ran.metrics["au_sustained_percent"]["mean"]),
        u_percent=float((ran.metrics["au_uncertainty"] or {}).get("expanded_percent", 0.0)),
        burst_percent=one.truth_percent * SLICE_SECONDS / (one.seconds / one.epochs),
        extra_percent=100 * (ran.watch.bytes / float(ran.metrics["app_bytes"]) - 1),
    )


def measure(bed: Bed) -> Iterator[Check]:
    """All runs."""
    yield from checks([told(bed, case(number)) for number in range(RUNS + 1)])


def checks(runs: Iterable[Told]) -> Iterator[Check]:
    """Say in how many runs the truth lay within U, and how wide U is."""
    told_of = list(runs)
    all_runs = [one for one in told_of if one.number < RUNS]
    runs = [one for one in all_runs if one.u_percent]
    plainly = 100 * sum(one.covered_plainly for one in runs) / len(runs)
    without = f", {len(all_runs) - len(runs)} more have no U" if len(all_runs) > len(runs) else ""
    name = f"{len(runs)} short runs{without} ({plainly:.0f} % without an allowance for bursts and metadata)"
    share = 100 * sum(one.covered for one in runs) / len(runs)
    yield Check(name, "U covers the truth", 100.0, share, "%", within=5)
    limited = sorted(one.u_percent for one in runs if one.truth_percent < 100)
    median = limited[len(limited) // 2] if limited else None
    yield Check(name, "U of those that storage limits, median", 0.0, median, "points", within=MOST_RUN_U, at_most=True)
    errors = [one.sustained_percent - one.truth_percent for one in runs]
    mean = sum(errors) / len(errors)
    yield Check(name, "mean error", 0.0, mean, "points", within=1.0)
    for one in told_of:
        if one.number == RUNS:
            yield from _long(one)


def _long(one: Told) -> Iterator[Check]:
    """A run as long as a user's: U is no wider than a verdict at the pass line needs."""
    name = "five minutes at 90 %"
    what = "sustained AU"
    yield Check(name, what, one.truth_percent, one.sustained_percent, "%", within=MOST_LONG_U)
    yield Check(name, "U", 0.0, one.u_percent, "points", within=MOST_LONG_U, at_most=True)

"""The sustained AU on a drive of known bandwidth is the drive's, whatever prefetch buys the headline; U covers it.

Short epochs, as of a first try; a hundred short runs whose numbers are drawn; and a long one: how wide U is there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from measuring.runs import section

from validation.bandwidth import MB
from validation.bed import Bed, Dataset, Ran
from validation.check import Check
from validation.drive import Speed

SMALL = Dataset(name="npz-4mb-few", format="npz", sample_bytes=4 * MB, files=100)
"""An epoch takes 4 to 7 s: a throttle that was idle lets a burst of 100 ms pass, which is 1.5 to 2.5 % of that."""
DATASET = Dataset(name="npz-1mb-coverage", format="npz", sample_bytes=MB, files=900)
RUNS = 100
SLICE_SECONDS = 0.1
"""What a throttle lets pass at once when it was idle: at an epoch's start the drive gives so much more."""
MOST_RUN_U = 3.0
MOST_LONG_U = 1.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """Accelerators that want `ratio` times what the drive gives; the defaults are those of a user's first try."""

    dataset: Dataset = SMALL
    mb_per_second: float
    ratio: float
    ranks: int = 1
    batch: int = 4
    readers: int = 4
    epochs: int = 3
    seconds: float = 0.0
    """How long all steps take at the drive's speed; 0: as long as the dataset lasts."""
    seed: int = 1

    @property
    def truth_percent(self) -> float:
        """What an endless epoch would have."""
        return 100 * min(1.0, 1 / self.ratio)

    def run(self, bed: Bed) -> Ran:
        """Run it with a cold page cache."""
        drive_seconds = self.ranks * self.batch * self.dataset.sample_bytes / (self.mb_per_second * MB)
        settings = [
            *section("reader", odirect=True, file_shuffle="seed", batch_size=self.batch, read_threads=self.readers),
            *section("train", computation_time=drive_seconds / self.ratio, epochs=self.epochs, seed=self.seed),
            f"ranks={self.ranks}",
            *section("metric", ceiling_seconds=0, scaling_seconds=0),
        ]
        if self.seconds:
            steps = int(self.seconds / max(drive_seconds / self.ratio, drive_seconds))
            settings += section("train", total_training_steps=steps)
        return bed.train(self.dataset, *settings, speed=Speed(read_bytes_per_second=int(self.mb_per_second * MB)))


def sustained(ran: Ran) -> tuple[float, float]:
    """Return the sustained AU of a run and its U, both in percent; U is 0 where too little was measured."""
    u = float((ran.metrics["au_uncertainty"] or {}).get("expanded_percent", 0.0))
    return float(ran.metrics["au_sustained_percent"]["mean"]), u


SHORT = (
    *(Case(ratio=ratio, mb_per_second=61) for ratio in (0.7, 1.0 / 0.885, 1.25, 2.0)),
    Case(ratio=1.25, mb_per_second=61, readers=8),
    Case(ratio=1.25, mb_per_second=100, ranks=3, epochs=5),
    *(Case(ratio=1.4, mb_per_second=100, seed=seed) for seed in range(2, 5)),
)


def measure_short(bed: Bed) -> Iterator[Check]:
    """Each case of short epochs, and over all of them how often the interval covers the truth."""
    covered = 0
    for case in SHORT:
        steps = case.dataset.files // (case.batch * case.ranks)
        name = f"{case.ratio:g}: {case.ranks} ranks, {steps} steps an epoch, {case.readers} readers, "
        name += f"{case.mb_per_second:g} MB/s, seed {case.seed}"
        ran, truth = case.run(bed), case.truth_percent
        au, u = sustained(ran)
        # The drive is not exactly its name: metadata is read too (0.4 %), and each epoch begins with a burst.
        covered += abs(au - truth) <= u + 2.5
        checks = [Check(name, "sustained AU", truth, au, "%", within=2.5)]
        if abs(truth - 90) > 3:
            word, theory = str(ran.summary["verdict"]).split(":")[0], "PASS" if truth >= 90 else "FAIL"
            checks.append(Check(name, "verdict", theory, word))
        yield from ran.beside(checks)
    yield Check("all", "runs whose U covers theory", 100.0, 100 * covered / len(SHORT), "%", within=10)


LONG = Case(dataset=DATASET, mb_per_second=60, ratio=1 / 0.9, ranks=2, batch=1, seconds=300.0, epochs=20, seed=RUNS)
"""As long as a user's, in epochs that last for all of it: U is no wider than a verdict at the pass line needs."""


def drawn(number: int) -> Case:
    """Return a short case; its numbers are drawn, by its own number alone."""
    draw = random.Random(number)
    return Case(
        dataset=DATASET,
        mb_per_second=draw.randint(50, 120),
        ratio=draw.choice((0.8, 1.05, 1.15, 1.3, 1.6, 2.0)),
        ranks=draw.choice((1, 2)),
        batch=1,
        readers=draw.choice((2, 4, 6)),
        epochs=1,
        seconds=draw.choice((5.0, 2.5)),
        seed=number,
    )


@dataclass(frozen=True)
class Told:
    """What came out of a case."""

    case: Case
    sustained_percent: float
    u_percent: float
    extra_percent: float
    """What the drive gave beyond the samples' bytes (metadata, last blocks), in percent of these."""

    @property
    def covered(self) -> bool:
        """Whether the truth lies within U, what the drive itself is off by left out of neither side.

        A burst at each epoch's start adds to the truth, by theory.
        """
        truth = self.case.truth_percent
        burst = truth * SLICE_SECONDS / (self.case.seconds / self.case.epochs)
        least, most = truth * (1 - self.extra_percent / 100), min(100.0, truth + burst)
        return least - self.u_percent <= self.sustained_percent <= most + self.u_percent

    @property
    def off_percent(self) -> float:
        """How far off the drive's name alone."""
        return self.sustained_percent - self.case.truth_percent


def told(bed: Bed, case: Case) -> Told:
    """Run one case."""
    ran = case.run(bed)
    return Told(case, *sustained(ran), 100 * (ran.watch.bytes / float(ran.metrics["app_bytes"]) - 1))


def measure_coverage(bed: Bed) -> Iterator[Check]:
    """Say in how many of all runs the truth lay within U, and how wide U is."""
    yield from _covered([told(bed, drawn(number)) for number in range(RUNS)])
    name, long = "five minutes at 90 %", told(bed, LONG)
    yield Check(name, "sustained AU", LONG.truth_percent, long.sustained_percent, "%", within=MOST_LONG_U)
    yield Check(name, "U", 0.0, long.u_percent, "points", within=MOST_LONG_U, at_most=True)


def _covered(all_runs: Sequence[Told]) -> Iterator[Check]:
    runs = [one for one in all_runs if one.u_percent]
    plainly = 100 * sum(abs(one.off_percent) <= one.u_percent for one in runs) / len(runs)
    without = f", {len(all_runs) - len(runs)} more have no U" if len(all_runs) > len(runs) else ""
    name = f"{len(runs)} short runs{without} ({plainly:.0f} % without an allowance for bursts and metadata)"
    share = 100 * sum(one.covered for one in runs) / len(runs)
    yield Check(name, "U covers the truth", 100.0, share, "%", within=5)
    limited = sorted(one.u_percent for one in runs if one.case.truth_percent < 100)
    median = limited[len(limited) // 2] if limited else None
    yield Check(name, "U of those that storage limits, median", 0.0, median, "points", within=MOST_RUN_U, at_most=True)
    mean = sum(one.off_percent for one in runs) / len(runs)
    yield Check(name, "mean error", 0.0, mean, "points", within=1.0)

"""On a drive of known bandwidth, the sustained AU is right, however much prefetch raises the headline AU; U covers it.

Cases: short epochs, as in a first try; a hundred short runs with random settings; and a long run, whose U is small.
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
"""An epoch takes 4 to 7 s. The burst of 100 ms that an idle throttle lets pass is 1.5 to 2.5 % of that."""
DATASET = Dataset(name="npz-1mb-coverage", format="npz", sample_bytes=MB, files=900)
RUNS = 100
SLICE_SECONDS = 0.1
"""Length of the burst that an idle throttle lets pass: at the start of an epoch, the drive reads so much more."""
MAX_SHORT_U = 3.0
MAX_LONG_U = 1.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """Accelerators with a demand of `ratio` times the drive's supply; the defaults are those of a first try."""

    dataset: Dataset = SMALL
    mb_per_second: float
    ratio: float
    ranks: int = 1
    batch: int = 4
    readers: int = 4
    epochs: int = 3
    seconds: float = 0.0
    """Time that all steps take at the drive's speed; 0 for the whole dataset."""
    seed: int = 1

    @property
    def truth_percent(self) -> float:
        """AU of an endless epoch."""
        return 100 * min(1.0, 1 / self.ratio)

    def run(self, bed: Bed) -> Ran:
        """Run the case from a cold page cache."""
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
    """Return the sustained AU of a run and its U, both in percent; U is 0 if too little was measured."""
    u = float((ran.metrics["au_uncertainty"] or {}).get("expanded_percent", 0.0))
    return float(ran.metrics["au_sustained_percent"]["mean"]), u


SHORT = (
    *(Case(ratio=ratio, mb_per_second=61) for ratio in (0.7, 1.0 / 0.885, 1.25, 2.0)),
    Case(ratio=1.25, mb_per_second=61, readers=8),
    Case(ratio=1.25, mb_per_second=100, ranks=3, epochs=5),
    *(Case(ratio=1.4, mb_per_second=100, seed=seed) for seed in range(2, 5)),
)


def measure_short(bed: Bed) -> Iterator[Check]:
    """Check each case of short epochs, and how often U covers the truth."""
    covered = 0
    for case in SHORT:
        steps = case.dataset.files // (case.batch * case.ranks)
        name = f"{case.ratio:g}: {case.ranks} ranks, {steps} steps an epoch, {case.readers} readers, "
        name += f"{case.mb_per_second:g} MB/s, seed {case.seed}"
        ran, truth = case.run(bed), case.truth_percent
        au, u = sustained(ran)
        # The drive differs from its nominal speed: it also reads metadata (0.4 %), and each epoch begins with a burst.
        covered += abs(au - truth) <= u + 2.5
        checks = [Check(name, "sustained AU", truth, au, "%", within=2.5)]
        if abs(truth - 90) > 3:
            word, theory = str(ran.summary["verdict"]).split(":")[0], "PASS" if truth >= 90 else "FAIL"
            checks.append(Check(name, "verdict", theory, word))
        yield from ran.beside(checks)
    yield Check("all", "runs whose U covers theory", 100.0, 100 * covered / len(SHORT), "%", within=10)


LONG = Case(dataset=DATASET, mb_per_second=60, ratio=1 / 0.9, ranks=2, batch=1, seconds=300.0, epochs=20, seed=RUNS)
"""As long as a user's run, at the pass threshold: U must be small enough for a verdict."""


def random_case(seed: int) -> Case:
    """Return a short case with random settings."""
    generator = random.Random(seed)
    return Case(
        dataset=DATASET,
        mb_per_second=generator.randint(50, 120),
        ratio=generator.choice((0.8, 1.05, 1.15, 1.3, 1.6, 2.0)),
        ranks=generator.choice((1, 2)),
        batch=1,
        readers=generator.choice((2, 4, 6)),
        epochs=1,
        seconds=generator.choice((5.0, 2.5)),
        seed=seed,
    )


@dataclass(frozen=True)
class Outcome:
    """The measured AU of a case."""

    case: Case
    sustained_percent: float
    u_percent: float
    extra_percent: float
    """Bytes that the drive read besides those of the samples (metadata, last blocks), in percent of these."""

    @property
    def covered(self) -> bool:
        """Whether the interval of +- U contains a value that may be true.

        By theory, extra bytes lower the true AU, and a burst at the start of each epoch raises it.
        """
        truth = self.case.truth_percent
        burst = truth * SLICE_SECONDS / (self.case.seconds / self.case.epochs)
        lowest, highest = truth * (1 - self.extra_percent / 100), min(100.0, truth + burst)
        return lowest - self.u_percent <= self.sustained_percent <= highest + self.u_percent

    @property
    def off_percent(self) -> float:
        """Error relative to the drive's nominal speed."""
        return self.sustained_percent - self.case.truth_percent


def outcome_of(bed: Bed, case: Case) -> Outcome:
    """Run one case."""
    ran = case.run(bed)
    return Outcome(case, *sustained(ran), 100 * (ran.watch.bytes / float(ran.metrics["app_bytes"]) - 1))


def measure_coverage(bed: Bed) -> Iterator[Check]:
    """Check in how many random runs U covers the truth, and how large U is."""
    yield from _covered([outcome_of(bed, random_case(seed)) for seed in range(RUNS)])
    name, long = "five minutes at 90 %", outcome_of(bed, LONG)
    yield Check(name, "sustained AU", LONG.truth_percent, long.sustained_percent, "%", within=MAX_LONG_U)
    yield Check(name, "U", 0.0, long.u_percent, "points", within=MAX_LONG_U, at_most=True)


def _covered(all_runs: Sequence[Outcome]) -> Iterator[Check]:
    runs = [run for run in all_runs if run.u_percent]
    plainly = 100 * sum(abs(run.off_percent) <= run.u_percent for run in runs) / len(runs)
    without = f", {len(all_runs) - len(runs)} more have no U" if len(all_runs) > len(runs) else ""
    name = f"{len(runs)} short runs{without} ({plainly:.0f} % without an allowance for bursts and metadata)"
    share = 100 * sum(run.covered for run in runs) / len(runs)
    yield Check(name, "U covers the truth", 100.0, share, "%", within=5)
    limited = sorted(run.u_percent for run in runs if run.case.truth_percent < 100)
    median = limited[len(limited) // 2] if limited else None
    yield Check(name, "U of those that storage limits, median", 0.0, median, "points", within=MAX_SHORT_U, at_most=True)
    mean = sum(run.off_percent for run in runs) / len(runs)
    yield Check(name, "mean error", 0.0, mean, "points", within=1.0)

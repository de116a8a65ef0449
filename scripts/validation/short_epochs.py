"""Short epochs on a drive of known bandwidth: the sustained AU is the drive's, whatever prefetch buys the headline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from measuring.runs import section

from validation.bandwidth import MB
from validation.bed import Bed, Dataset, Ran
from validation.check import Check
from validation.drive import Speed

SMALL = Dataset(name="npz-4mb-few", format="npz", sample_bytes=4 * MB, files=100)
"""An epoch takes 4 to 7 s: a throttle that was idle lets a burst of 100 ms pass, which is 1.5 to 2.5 % of that."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Epochs of a few steps, with as many readers as users set: the numbers of a first try with default settings."""

    ratio: float
    """Demand / what the drive gives."""
    mb_per_second: float
    epochs: int = 3
    batch: int = 4
    readers: int = 4
    ranks: int = 1
    seed: int = 1

    @property
    def name(self) -> str:
        steps = SMALL.files // (self.batch * self.ranks)
        return (
            f"{self.ratio:g}: {self.ranks} ranks, {steps} steps an epoch, {self.readers} readers, "
            f"{self.mb_per_second:g} MB/s, seed {self.seed}"
        )

    @property
    def sustained_percent(self) -> float:
        """What an endless epoch would have."""
        return 100 * min(1.0, 1 / self.ratio)

    def run(self, bed: Bed) -> Ran:
        """Run it with a cold page cache."""
        step_bytes = self.ranks * self.batch * SMALL.sample_bytes
        compute_seconds = step_bytes / (self.mb_per_second * MB) / self.ratio
        settings = [
            *section("reader", odirect=True, file_shuffle="seed", batch_size=self.batch, read_threads=self.readers),
            *section("train", computation_time=compute_seconds, epochs=self.epochs, seed=self.seed),
            f"ranks={self.ranks}",
            *section("metric", ceiling_seconds=0, scaling_seconds=0),
        ]
        return bed.train(SMALL, *settings, speed=Speed(read_bytes_per_second=int(self.mb_per_second * MB)))


CASES = (
    *(Case(ratio=ratio, mb_per_second=61) for ratio in (0.7, 1.0 / 0.885, 1.25, 2.0)),
    Case(ratio=1.25, mb_per_second=61, readers=8),
    Case(ratio=1.25, mb_per_second=100, ranks=3, epochs=5),
    *(Case(ratio=1.4, mb_per_second=100, seed=seed) for seed in range(2, 5)),
)


def measure(bed: Bed) -> Iterator[Check]:
    """Each case, and over all of them how often the interval covers the truth."""
    covered = 0
    for case in CASES:
        ran, truth = case.run(bed), case.sustained_percent
        sustained = float(ran.metrics["au_sustained_percent"]["mean"])
        u = float((ran.metrics["au_uncertainty"] or {}).get("expanded_percent", 0.0))
        # The drive is not exactly its name: metadata is read too (0.4 %), and each epoch begins with a burst.
        covered += abs(sustained - truth) <= u + 2.5
        checks = [Check(case.name, "sustained AU", truth, sustained, "%", within=2.5)]
        if abs(truth - 90) > 3:
            word, theory = str(ran.summary["verdict"]).split(":")[0], "PASS" if truth >= 90 else "FAIL"
            checks.append(Check(case.name, "verdict", theory, word))
        yield from ran.beside(checks)
    share = 100 * covered / len(CASES)
    yield Check("all", "runs whose U covers theory", 100.0, share, "%", within=10)

"""The rate and the limit, by theory, of storage with odd numbers of channels and with random latencies."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from validation import latency
from validation.bed import Bed, Ran
from validation.check import Check
from validation.drive import MEMORY
from validation.latency_draws import MEANS


@dataclass(frozen=True)
class Case:
    """Readers of a storage with some channels, each of which takes `latency_ms` for a read."""

    channels: int
    latency_ms: float
    readers: int
    jitter: str = "steady"

    @property
    def name(self) -> str:
        jitter = "" if self.jitter == "steady" else f", {self.jitter} jitter"
        return f"{self.readers} readers, {self.channels} channels of {self.latency_ms:g} ms{jitter}"

    @property
    def seconds(self) -> float:
        """Mean time of a read."""
        return self.latency_ms / 1000 * MEANS[self.jitter]

    @property
    def reads_per_second(self) -> float:
        return min(self.readers, self.channels) / self.seconds


CASES = (
    Case(3, 17, 2),
    Case(3, 17, 7),
    Case(5, 31, 9),
    Case(7, 43, 3),
    Case(1, 11, 4),
    Case(3, 17, 7, "uniform"),
    Case(5, 31, 2, "uniform"),
    Case(5, 31, 10, "pareto"),
    Case(7, 37, 3, "pareto"),
)
"""The longest read of a heavy tail takes 25 times the latency. For latencies over 40 ms, that would be a stall of a
second, which dlemu would report."""


def measure(bed: Bed) -> Iterator[Check]:
    """Check the cases, each on a model of its own."""
    with tempfile.TemporaryDirectory(prefix="dlemu-model-", dir=MEMORY) as source:
        bed.generate(latency.SMALL, source)
        for case in CASES:
            with latency.model_mounted(source, case.latency_ms / 1000, case.channels, case.jitter) as mount:
                ran = latency.run(
                    bed, mount, case.readers, latency_seconds=case.seconds, channels=case.channels, seconds=8.0
                )
            yield from ran.beside(_check(case, ran))


def _check(case: Case, ran: Ran) -> Iterator[Check]:
    """Check one case. With a heavy tail, ready batches wait for a slow one, so the rate may be lower."""
    samples = float(ran.metrics["samples_per_second"]["mean"])
    tail = case.jitter == "pareto"
    yield Check(
        case.name,
        "samples/s, at most" if tail else "samples/s",
        case.reads_per_second,
        samples,
        "/s",
        within=15,
        percent=True,
        at_most=tail,
    )
    limit = "loader" if case.readers < case.channels else "storage"
    yield Check(case.name, "limited by", limit, ran.limited_by)
    for what, pattern in (("changes of speed", "speed_changed"), ("stalls", "stalled")):
        yield Check(case.name, what, 0.0, float(len(ran.not_steady(pattern))))

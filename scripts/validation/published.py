"""Published results of MLPerf Storage v1.0, each predicted from the same storage's result with other accelerators.

`published_pairs.csv` has a few numbers of each result: the first of its five runs in mlcommons/storage_results_v1.0
(closed, unet3d), named by organisation and system. Nothing is measured, and nothing in the model is fitted to them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dlemu.config import load
from dlemu.jobs.training.prediction.from_times import ForeignRun, calibrate_from_times
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.prediction import Prediction
from validation.check import Check

PAIRS = Path(__file__).with_name("published_pairs.csv")
RATE_PERCENT, WORST_PERCENT, AU_POINTS, MISS_PERCENT, WIDTH_PERCENT = 3.0, 10.0, 2.3, 10.0, 10.0
"""At most: the mean and the worst error of samples/s, the mean of AU, intervals that miss, and their median width."""
TYPICAL_AU = 0.93
"""The AU of the second null model: of results that passed, and of which no more accelerators would have."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One published result."""

    run: ForeignRun
    au_percent: float
    samples_per_second: float

    @property
    def demand(self) -> float:
        """Samples/s of accelerators that never wait."""
        return self.run.ranks * self.run.workload.reader.batch_size / self.run.workload.train.computation_time.mean


@dataclass(frozen=True)
class Pair:
    """A result, and what is predicted of it from the other of its storage."""

    source: Result
    target: Result
    predicted: Prediction
    most: int
    """Accelerators that pass, as predicted."""

    @property
    def off_percent(self) -> float:
        return 100 * (self.predicted.shown.samples_per_second / self.target.samples_per_second - 1)

    @property
    def au_off(self) -> float:
        assert self.predicted.shown.au_dlio_v1_percent is not None
        return self.predicted.shown.au_dlio_v1_percent - self.target.au_percent

    @property
    def is_lower_bound(self) -> bool:
        return any(finding.numbers.get("pattern") == "saturation" for finding in self.predicted.findings)

    @property
    def check(self) -> Check:
        """The line of the pair: an error of samples/s that is not the mean's, but no blunder."""
        source, run = self.source.run, self.target.run
        low, high = self.predicted.shown.samples_per_second_interval
        case = f"{run.folder}, {run.ranks} x {run.workload.accelerator} from {source.ranks}"
        bound = "at least, " if self.is_lower_bound else ""
        what = f"samples/s ({bound}{low:.0f} to {high:.0f}); {self.most} pass"
        published, predicted = self.target.samples_per_second, self.predicted.shown.samples_per_second
        return Check(case, what, published, predicted, "/s", within=WORST_PERCENT, percent=True)


def measure(_: object) -> Iterator[Check]:
    """Predict each result, then hold the errors of all, and those of two null models, against what is wanted."""
    predicted = []
    for source, target in pairs():
        predicted.append(predict_one(source, target))
        yield predicted[-1].check
    yield from checks(predicted)


def pairs() -> list[tuple[Result, Result]]:
    """Return every result with its storage's other one, in both directions."""
    with open(PAIRS, newline="") as lines:
        rows = list(csv.DictReader(lines))
    results = {row["result"]: _result(row) for row in rows}
    other = {(row["pair"], row["accelerator"]): results[row["result"]] for row in rows}
    both = {"a100": "h100", "h100": "a100"}
    return [(other[row["pair"], both[row["accelerator"]]], results[row["result"]]) for row in rows]


def _result(row: dict[str, str]) -> Result:
    prefetch = [f"reader.prefetch_size={row['prefetch_size']}"] if row["prefetch_size"] else []
    words = [
        "workload=unet3d",
        f"accelerator={row['accelerator']}",
        f"dataset.num_files_train={row['files']}",
        f"reader.read_threads={row['read_threads']}",
        "workflow.checkpoint=false",
        "train.synchronous=true",
    ]
    run = ForeignRun(
        folder=row["result"],
        workload=load([*words, *prefetch]),
        ranks=int(row["accelerators"]),
        hosts=int(row["hosts"]),
        epoch_seconds=tuple(map(float, row["epoch_seconds"].split())),
        first_seconds=tuple(map(float, row["first_batch_seconds"].split())),
    )
    return Result(run=run, au_percent=float(row["au_percent"]), samples_per_second=float(row["samples_per_second"]))


def predict_one(source: Result, target: Result) -> Pair:
    """Predict a result from the other's times, and its own settings and number of accelerators and hosts."""
    known, asked = calibrate_from_times(source.run), target.run.workload
    by_counted = replace(asked, metric=replace(asked.metric, verdict="au"))  # as v1.0 judged
    search = predict(by_counted, known, hosts=target.run.hosts, assumes_files=True, most=max(8, 2 * target.run.ranks))
    assert search.max_accelerators is not None
    answer = predict(asked, known, ranks=target.run.ranks, hosts=target.run.hosts)
    return Pair(source, target, answer, search.max_accelerators)


def checks(predicted: Sequence[Pair]) -> Iterator[Check]:
    """Hold the errors of all pairs against what is wanted, and against the null models'."""
    truth = [pair.target.samples_per_second for pair in predicted]
    by_speed = [min(pair.source.samples_per_second, pair.target.demand) for pair in predicted]
    typical = [TYPICAL_AU * pair.target.demand for pair in predicted]
    error = float(np.mean([abs(pair.off_percent) for pair in predicted]))

    def at_most(what: str, measured: float, most: float, unit: str = "%") -> Check:
        return Check(f"{len(predicted)} pairs", what, most, measured, unit, at_most=True)

    yield at_most("samples/s, mean error", error, RATE_PERCENT)
    for name, values in (("speed / demand", by_speed), (f"AU of {100 * TYPICAL_AU:.0f} %", typical)):
        null = float(np.mean([100 * abs(value / true - 1) for value, true in zip(values, truth, strict=True)]))
        yield at_most(f"error / that of the null model {name} ({null:.1f} %)", error / null, 0.8, "")
    yield at_most("AU, mean error", float(np.mean([abs(pair.au_off) for pair in predicted])), AU_POINTS, "points")
    off, widths, outside = [], [], []
    for pair in predicted:
        low, high = pair.predicted.shown.samples_per_second_interval
        outside.append(not low <= pair.target.samples_per_second <= high)
        widths.append(100 * (high - low) / pair.predicted.shown.samples_per_second)
        hosts, there = pair.target.run.hosts, pair.target.run.ranks
        near = abs(pair.most // hosts - there // hosts) <= 1 or (pair.is_lower_bound and pair.most <= there)
        off.append(not near)
    yield at_most("intervals of samples/s that miss the truth", 100 * float(np.mean(outside)), MISS_PERCENT)
    yield at_most("median width of the intervals", float(np.median(widths)), WIDTH_PERCENT)
    yield at_most("largest passing counts off by more than one a host", 100 * float(np.mean(off)), MISS_PERCENT)
    yield at_most("pairs answered `at least`", sum(pair.is_lower_bound for pair in predicted), 10, "")

"""Published results of MLPerf Storage v1.0, each predicted from the same storage's result with other accelerators.

`published_pairs.csv` has a few numbers of the first of the five runs of each result in mlcommons/storage_results_v1.0
(closed, unet3d), named by organisation and system. Nothing is measured, and the model is not fitted to the results.
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
"""Upper bounds: mean and worst error of samples/s, mean error of AU, share of intervals that miss, median width."""
TYPICAL_AU = 0.93
"""The AU of the second null model: typical of a run that passes with as many accelerators as possible."""


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
    """A result, and its prediction from the storage's other result."""

    source: Result
    target: Result
    predicted: Prediction
    max_passing: int
    """Predicted maximum of accelerators that pass."""

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
        """The check of a single pair, with a larger tolerance than that of the mean."""
        source, run = self.source.run, self.target.run
        low, high = self.predicted.shown.samples_per_second_interval
        case = f"{run.folder}, {run.ranks} x {run.workload.accelerator} from {source.ranks}"
        bound = "at least, " if self.is_lower_bound else ""
        what = f"samples/s ({bound}{low:.0f} to {high:.0f}); {self.max_passing} pass"
        published, predicted = self.target.samples_per_second, self.predicted.shown.samples_per_second
        return Check(case, what, published, predicted, "/s", within=WORST_PERCENT, percent=True)


def measure(_: object) -> Iterator[Check]:
    """Predict and check each result, then compare the errors of all with their bounds and with two null models."""
    predicted = []
    for source, target in pairs():
        predicted.append(predict_one(source, target))
        yield predicted[-1].check
    yield from checks(predicted)


def pairs() -> list[tuple[Result, Result]]:
    """Return (source, target) of each pair of results of one storage, in both directions."""
    with open(PAIRS, newline="") as lines:
        rows = list(csv.DictReader(lines))
    results = {row["result"]: _result(row) for row in rows}
    other = {(row["pair"], row["accelerator"]): results[row["result"]] for row in rows}
    both = {"a100": "h100", "h100": "a100"}
    return [(other[row["pair"], both[row["accelerator"]]], results[row["result"]]) for row in rows]


def _result(row: dict[str, str]) -> Result:
    prefetch = [f"reader.prefetch_size={row['prefetch_size']}"] if row["prefetch_size"] else []
    settings = [
        "workload=unet3d",
        f"accelerator={row['accelerator']}",
        f"dataset.num_files_train={row['files']}",
        f"reader.read_threads={row['read_threads']}",
        "workflow.checkpoint=false",
        "train.synchronous=true",
    ]
    run = ForeignRun(
        folder=row["result"],
        workload=load([*settings, *prefetch]),
        ranks=int(row["accelerators"]),
        hosts=int(row["hosts"]),
        epoch_seconds=tuple(map(float, row["epoch_seconds"].split())),
        first_seconds=tuple(map(float, row["first_batch_seconds"].split())),
    )
    return Result(run=run, au_percent=float(row["au_percent"]), samples_per_second=float(row["samples_per_second"]))


def predict_one(source: Result, target: Result) -> Pair:
    """Predict `target` from its settings and numbers of accelerators and hosts, and the times of `source`."""
    calibration, workload = calibrate_from_times(source.run), target.run.workload
    by_au = replace(workload, metric=replace(workload.metric, verdict="au"))  # v1.0 judged by the AU of counted steps
    most = max(8, 2 * target.run.ranks)
    search = predict(by_au, calibration, hosts=target.run.hosts, assumes_files=True, most=most)
    assert search.max_accelerators is not None
    answer = predict(workload, calibration, ranks=target.run.ranks, hosts=target.run.hosts)
    return Pair(source, target, answer, search.max_accelerators)


def checks(predicted: Sequence[Pair]) -> Iterator[Check]:
    """Check the errors of all pairs against their bounds, and against the null models' errors."""
    truth = [pair.target.samples_per_second for pair in predicted]
    by_speed = [min(pair.source.samples_per_second, pair.target.demand) for pair in predicted]
    typical = [TYPICAL_AU * pair.target.demand for pair in predicted]
    error = float(np.mean([abs(pair.off_percent) for pair in predicted]))

    def at_most(what: str, measured: float, bound: float, unit: str = "%") -> Check:
        return Check(f"{len(predicted)} pairs", what, bound, measured, unit, at_most=True)

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
        hosts, ranks, predicted_ranks = pair.target.run.hosts, pair.target.run.ranks, pair.max_passing
        is_near = abs(predicted_ranks // hosts - ranks // hosts) <= 1
        off.append(not (is_near or (pair.is_lower_bound and predicted_ranks <= ranks)))
    yield at_most("intervals of samples/s that miss the truth", 100 * float(np.mean(outside)), MISS_PERCENT)
    yield at_most("median width of the intervals", float(np.median(widths)), WIDTH_PERCENT)
    yield at_most("largest passing counts off by more than one a host", 100 * float(np.mean(off)), MISS_PERCENT)
    yield at_most("pairs answered `at least`", sum(pair.is_lower_bound for pair in predicted), 10, "")

"""`dlemu predict` against `dlemu train`, on drives of known speed; docs/prediction.md has the protocol."""

from __future__ import annotations

import contextlib
import glob
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.processes import running
from measuring import evidence
from measuring.runs import run_job, section

from validation import latency
from validation.bandwidth import FOUR_MB, ONE_MB, PAGES
from validation.bed import Bed, Dataset
from validation.check import Check
from validation.drive import MEMORY, Speed

MB = 1_000_000
QUARTER_MB = Dataset(name="npz-250kb", format="npz", sample_bytes=250_000, files=3600)
SMALL = Dataset(name="npz-100kb-many", format="npz", sample_bytes=100_000, files=3000)
"""Read by FUSE: each sample is one request."""
AU_POINTS, RATE_PERCENT, COVERED_PERCENT, NULL_RATIO = 1.0, 2.0, 90.0, 3.0
"""Bounds: mean |AU error|, mean |samples/s error|, share of intervals with the truth, null model's error / model's."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A drive, and the accelerators that read from it."""

    dataset: Dataset = ONE_MB
    mb_per_second: float = 0.0
    """The drive's limit of bandwidth, if any."""
    reads_per_second: int = 0
    """The drive's limit of requests, if any."""
    channels: int = 0
    """The latency model's channels, if any: concurrent requests, each of `latency_seconds`."""
    latency_seconds: float = 0.04
    jitter: str = "steady"
    ranks: int
    batch: int = 1
    threads: int = 2
    prefetch: int = 0
    step_seconds: float
    seconds: float = 10.0
    """Approximate duration of the run."""
    epochs: int = 1
    loader: str = "pytorch"
    others_mb_per_second: float = 0.0
    """Rate of another program, which reads with `others_readers` threads meanwhile."""
    others_readers: int = 0

    @property
    def name(self) -> str:
        """The setting in one line."""
        if self.channels:
            drive = f"{self.channels} channels x {1000 * self.latency_seconds:g} ms, {self.jitter}"
        else:
            drive = f"{self.mb_per_second:g} MB/s" if self.mb_per_second else f"{self.reads_per_second} reads/s"
        sample = self.dataset.sample_bytes
        size = f"{self.batch} x " + (f"{sample / MB:g} MB" if sample > MB / 20 else f"{sample >> 10} KiB")
        epochs = f", {self.epochs} epochs" if self.epochs > 1 else ""
        readers = f"{self.threads} readers" if self.loader == "pytorch" else f"{self.threads} {self.loader}"
        if self.others_readers:
            drive += f" beside {self.others_readers} readers of {self.others_mb_per_second:g} MB/s"
        return f"{drive}: {self.ranks} ranks, {size} in {1000 * self.step_seconds:g} ms, {readers}{epochs}"

    @property
    def speed(self) -> Speed:
        return Speed(read_bytes_per_second=int(self.mb_per_second * MB), reads_per_second=self.reads_per_second)

    @property
    def samples_per_second(self) -> float:
        """Approximate rate: the demand of the accelerators, or the supply of the drive if it is lower."""
        demand = self.ranks * self.batch / self.step_seconds
        if self.channels:
            return min(demand, min(self.channels, self.ranks * self.threads) / self.latency_seconds)
        if self.mb_per_second:
            return min(demand, self.mb_per_second * MB / self.dataset.sample_bytes)
        return min(demand, self.reads_per_second)

    @property
    def settings(self) -> list[str]:
        """The setting as settings of dlemu."""
        steps = int(self.seconds * self.samples_per_second / self.ranks / self.batch)
        steps_per_epoch = self.dataset.files * self.dataset.samples_per_file // (self.ranks * self.batch)
        steps = min(steps, steps_per_epoch * self.epochs)
        return [
            *section("reader", data_loader=self.loader, odirect=True, batch_size=self.batch),
            *section("reader", read_threads=self.threads, prefetch_size=self.prefetch, file_shuffle="seed"),
            *section("reader", sample_shuffle="seed" if self.reads_per_second else "off"),
            *section(
                "train", computation_time=self.step_seconds, epochs=max(self.epochs, -(-steps // steps_per_epoch))
            ),
            *section("train", total_training_steps=steps),
            "workflow.checkpoint=false",
            *section("metric", ceiling_seconds=0, scaling_seconds=0),
            f"ranks={self.ranks}",
        ]


SETTINGS = (
    Setting(mb_per_second=60, ranks=2, step_seconds=0.025),
    Setting(mb_per_second=60, ranks=3, batch=2, threads=4, step_seconds=0.12),
    Setting(mb_per_second=90, ranks=1, batch=4, threads=4, step_seconds=0.03),
    Setting(mb_per_second=120, ranks=4, step_seconds=0.03),
    Setting(mb_per_second=120, ranks=8, batch=1, step_seconds=0.1),
    Setting(mb_per_second=120, ranks=2, dataset=FOUR_MB, step_seconds=0.07, threads=1),
    Setting(mb_per_second=200, ranks=4, dataset=FOUR_MB, step_seconds=0.05, threads=2),
    Setting(mb_per_second=80, ranks=2, dataset=QUARTER_MB, batch=8, step_seconds=0.06, threads=4),
    Setting(mb_per_second=80, ranks=6, dataset=QUARTER_MB, batch=4, step_seconds=0.06, loader="threads"),
    Setting(mb_per_second=150, ranks=2, step_seconds=0.02, epochs=3, threads=4, prefetch=8),
    Setting(reads_per_second=1500, dataset=PAGES, ranks=2, batch=16, threads=4, step_seconds=0.016),
    Setting(reads_per_second=1500, dataset=PAGES, ranks=4, batch=16, threads=2, step_seconds=0.06),
    Setting(reads_per_second=800, dataset=PAGES, ranks=1, batch=8, threads=8, step_seconds=0.008),
    Setting(channels=4, dataset=SMALL, ranks=1, batch=2, threads=1, step_seconds=0.06),
    Setting(channels=4, dataset=SMALL, ranks=1, batch=2, threads=2, step_seconds=0.03),
    Setting(channels=4, dataset=SMALL, ranks=2, batch=2, threads=1, step_seconds=0.07),
    Setting(channels=4, dataset=SMALL, ranks=2, batch=2, threads=4, step_seconds=0.06),
    Setting(channels=4, dataset=SMALL, ranks=1, batch=4, threads=2, step_seconds=0.07, jitter="uniform"),
    Setting(channels=6, dataset=SMALL, ranks=2, batch=2, threads=2, step_seconds=0.035, jitter="uniform"),
    Setting(channels=4, dataset=SMALL, ranks=1, batch=4, threads=2, step_seconds=0.06, jitter="pareto", seconds=20),
)
"""These were fixed before the first run, and the model was built with none of them."""


@dataclass(frozen=True, kw_only=True)
class Row(evidence.Row):
    """One setting, predicted and measured."""

    name: str
    au_percent: float
    au_low: float
    au_high: float
    samples_per_second: float
    rate_low: float
    rate_high: float
    null_au_percent: float
    null_samples_per_second: float
    measured_au_percent: float
    measured_samples_per_second: float
    cpu_wait_percent: float | None
    columns = (
        "drive: accelerators",
        "AU %, measured",
        "predicted",
        "interval",
        "null model",
        "samples/s, measured",
        "predicted",
        "null model",
        "CPU wait",
    )
    status = "for information"

    @property
    def cells(self) -> list[str]:
        return [
            self.name,
            f"{self.measured_au_percent:.1f}",
            f"{self.au_percent:.1f} ({self.au_off:+.1f})",
            f"{self.au_low:.1f} to {self.au_high:.1f}" + ("" if self.covered else ", MISSED"),
            f"{self.null_au_percent:.1f} ({self.null_au_off:+.1f})",
            f"{self.measured_samples_per_second:.1f}",
            f"{self.samples_per_second:.1f} ({self.rate_off_percent:+.1f} %)",
            f"{self.null_samples_per_second:.1f} ({self.null_rate_off_percent:+.1f} %)",
            "" if self.cpu_wait_percent is None else f"{self.cpu_wait_percent:.0f} %",
        ]

    @property
    def au_off(self) -> float:
        return self.au_percent - self.measured_au_percent

    @property
    def rate_off_percent(self) -> float:
        return 100 * (self.samples_per_second / self.measured_samples_per_second - 1)

    @property
    def null_au_off(self) -> float:
        return self.null_au_percent - self.measured_au_percent

    @property
    def null_rate_off_percent(self) -> float:
        return 100 * (self.null_samples_per_second / self.measured_samples_per_second - 1)

    @property
    def covered(self) -> bool:
        """Whether both intervals contain the measured values."""
        au = self.au_low <= self.measured_au_percent <= self.au_high
        return au and self.rate_low <= self.measured_samples_per_second <= self.rate_high


def measure(bed: Bed) -> Iterator[Row | Check]:
    """Predict and measure every setting, then check all rows together."""
    rows = []
    for setting in SETTINGS:
        rows.append(measure_one(bed, setting))
        yield rows[-1]
    yield from verdict(rows)


def measure_one(bed: Bed, setting: Setting) -> Row:
    """Predict from a probe, then measure on the same drive."""
    with contextlib.ExitStack() as stack:
        if setting.channels:
            source = stack.enter_context(tempfile.TemporaryDirectory(prefix="dlemu-model-", dir=MEMORY))
            bed.generate(setting.dataset, source)
            folder = stack.enter_context(
                latency.model_mounted(source, setting.latency_seconds, setting.channels, setting.jitter)
            )
        else:
            bed.prepare(setting.dataset)
            bed.drive.set_speed(setting.speed)
            bed.drive.forget_cache()
            folder = bed.drive.folder
        results = stack.enter_context(tempfile.TemporaryDirectory(prefix="dlemu-predicted-"))
        settings = [*setting.dataset.settings(folder), *setting.settings]
        arguments = [*settings, "--others-mb-per-second", str(setting.others_mb_per_second)]
        answer = run_job("predict", arguments, within=results, wrap=bed.command, result="predict.json").summary
        (predicted,) = (count for count in answer["counts"] if count["accelerators"] == answer["accelerators"])
        # The samples/s of accelerators that never wait, from the MB/s that they need at the AU of the threshold.
        needed_mb = predicted["needed_mb_per_second"] * 100 / answer["question"]["threshold_percent"]
        full_rate = needed_mb * predicted["samples_per_second"] / predicted["app_mb_per_second"]
        if not setting.channels:
            bed.drive.forget_cache()
        if setting.others_readers:
            stack.enter_context(running(bed.drive.command(neighbour(folder, setting))))
        ran = bed.train_on(folder, setting.dataset, *setting.settings)
    return Row(
        name=setting.name,
        au_percent=predicted["au_percent"],
        au_low=predicted["au_interval_percent"][0],
        au_high=predicted["au_interval_percent"][1],
        samples_per_second=predicted["samples_per_second"],
        rate_low=predicted["samples_per_second_interval"][0],
        rate_high=predicted["samples_per_second_interval"][1],
        null_au_percent=predicted["null_au_percent"],
        null_samples_per_second=full_rate * predicted["null_au_percent"] / 100,
        measured_au_percent=ran.au_percent,
        measured_samples_per_second=float(ran.metrics["samples_per_second"]["mean"]),
        cpu_wait_percent=ran.cpu_wait_percent,
    )


def neighbour(folder: str, setting: Setting) -> list[str]:
    """Return the command of the other program, which reads from the same drive for longer than the run takes."""
    files = sorted(glob.glob(os.path.join(folder, setting.dataset.name, "train", "*")))
    rate = f"--bytes-per-second={setting.others_mb_per_second * MB}"
    return [sys.executable, "-m", "validation.plain", str(setting.others_readers), "120", *files, rate]


def verdict(rows: Sequence[Row]) -> Iterator[Check]:
    """Check the errors and the intervals of all rows."""
    au = statistics.mean(abs(row.au_off) for row in rows)
    rate = statistics.mean(abs(row.rate_off_percent) for row in rows)
    null = statistics.mean(abs(row.null_au_off) for row in rows)
    covered = 100 * statistics.mean(row.covered for row in rows)
    yield Check("all", "mean |AU error|", 0.0, au, "points", within=AU_POINTS)
    yield Check("all", "mean |samples/s error|", 0.0, rate, "%", within=RATE_PERCENT)
    yield Check("all", "intervals that hold the truth", 100.0, covered, "%", within=100 - COVERED_PERCENT)
    yield Check("all", "AU error / the null model's", 0.0, au / max(null, 1e-9), within=1 / NULL_RATIO)

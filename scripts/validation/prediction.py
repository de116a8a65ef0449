"""`dlemu predict` against `dlemu train`, on drives of known speed; docs/prediction.md has the protocol.

    PYTHONPATH=scripts .venv/bin/python -m validation.prediction [--rows FILE] [--table PAGE] [NUMBER...]    # as root

`scripts/validate prediction` runs all of it. Alone, it takes numbers of settings, and keeps what each gave in FILE, so
that all of them may be measured piece by piece; the table is made of what FILE then holds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from datagen.errors import DlemuError
from dlemu.metrics.verdict import COMPLETED
from validation import latency, table
from validation.bandwidth import FOUR_MB, ONE_MB, PAGES
from validation.bed import Bed, Dataset, make_bed
from validation.check import Check
from validation.drive import MEMORY, Speed

MB = 1_000_000
QUARTER_MB = Dataset(name="npz-250kb", format="npz", sample_bytes=250_000, files=3600)
SMALL = Dataset(name="npz-100kb-many", format="npz", sample_bytes=100_000, files=3000)
"""By FUSE: one request each."""
GROUP = "prediction"
AU_POINTS, RATE_PERCENT, COVERED_PERCENT, TIMES = 1.0, 2.0, 90.0, 3.0
"""What must hold: mean |AU error|, mean |samples/s error|, share of intervals that hold the truth, null / model."""
DLEMU = (sys.executable, "-m", "dlemu")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A drive, and accelerators on it."""

    dataset: Dataset = ONE_MB
    mb_per_second: float = 0.0
    """Of a drive that is narrow."""
    reads_per_second: int = 0
    """Of one that answers so many requests."""
    channels: int = 0
    """Of one that is slow to answer: so many at a time, each after `latency_seconds`."""
    latency_seconds: float = 0.04
    jitter: str = "steady"
    ranks: int
    batch: int = 1
    threads: int = 2
    prefetch: int = 0
    step_seconds: float
    seconds: float = 10.0
    """About how long the run takes."""
    epochs: int = 1
    loader: str = "pytorch"

    @property
    def name(self) -> str:
        """What it is, in a line."""
        if self.channels:
            drive = f"{self.channels} channels x {1000 * self.latency_seconds:g} ms, {self.jitter}"
        else:
            drive = f"{self.mb_per_second:g} MB/s" if self.mb_per_second else f"{self.reads_per_second} reads/s"
        sample = self.dataset.sample_bytes
        size = f"{self.batch} x " + (f"{sample / MB:g} MB" if sample > MB / 20 else f"{sample >> 10} KiB")
        often = f", {self.epochs} epochs" if self.epochs > 1 else ""
        readers = f"{self.threads} readers" if self.loader == "pytorch" else f"{self.threads} {self.loader}"
        return f"{drive}: {self.ranks} ranks, {size} in {1000 * self.step_seconds:g} ms, {readers}{often}"

    @property
    def speed(self) -> Speed:
        return Speed(read_bytes_per_second=int(self.mb_per_second * MB), reads_per_second=self.reads_per_second)

    @property
    def samples_per_second(self) -> float:
        """About what comes out: what accelerators ask for, or the drive gives."""
        asked = self.ranks * self.batch / self.step_seconds
        if self.channels:
            return min(asked, min(self.channels, self.ranks * self.threads) / self.latency_seconds)
        if self.mb_per_second:
            return min(asked, self.mb_per_second * MB / self.dataset.sample_bytes)
        return min(asked, self.reads_per_second)

    @property
    def settings(self) -> list[str]:
        """dlemu's words for it."""
        steps = int(self.seconds * self.samples_per_second / self.ranks / self.batch)
        in_dataset = self.dataset.files * self.dataset.samples_per_file // (self.ranks * self.batch)
        steps = min(steps, in_dataset * self.epochs)
        return [
            f"reader.data_loader={self.loader}",
            "reader.odirect=true",
            f"reader.batch_size={self.batch}",
            f"reader.read_threads={self.threads}",
            f"reader.prefetch_size={self.prefetch}",
            "reader.file_shuffle=seed",
            f"reader.sample_shuffle={'seed' if self.reads_per_second else 'off'}",
            f"train.computation_time={self.step_seconds}",
            f"train.epochs={max(self.epochs, -(-steps // in_dataset))}",
            f"train.total_training_steps={steps}",
            "workflow.checkpoint=false",
            "metric.ceiling_seconds=0",
            "metric.scaling_seconds=0",
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
"""Frozen: docs/prediction.md says when, and what may not be changed after it."""
TRIED = (
    Setting(mb_per_second=100, ranks=2, step_seconds=0.016),
    Setting(mb_per_second=100, ranks=3, batch=2, threads=4, step_seconds=0.05),
    Setting(reads_per_second=2000, dataset=PAGES, ranks=2, batch=16, threads=4, step_seconds=0.0128),
    Setting(channels=5, dataset=SMALL, ranks=1, batch=2, threads=2, step_seconds=0.034),
    Setting(channels=5, dataset=SMALL, ranks=2, batch=2, threads=2, step_seconds=0.034, jitter="uniform"),
    Setting(channels=5, dataset=SMALL, ranks=2, batch=2, threads=1, step_seconds=0.05, jitter="pareto"),
)
"""Those that the model was built with: numbers 100 and up. They are no part of the proof."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one setting gave: predicted and measured."""

    number: int
    name: str
    au_percent: float
    au_low: float
    au_high: float
    samples_per_second: float
    rate_low: float
    rate_high: float
    null_au_percent: float
    null_samples_per_second: float
    limited_by: str
    measured_au_percent: float
    measured_samples_per_second: float
    measured_limited_by: str
    cpu_wait_percent: float | None

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
        """Both intervals hold what was measured."""
        au = self.au_low <= self.measured_au_percent <= self.au_high
        return au and self.rate_low <= self.measured_samples_per_second <= self.rate_high


def why_no_prediction() -> str | None:
    """Return why it can't be measured here, or None when it can."""
    return latency.why_no_model()


def measure(bed: Bed) -> Iterator[Check]:
    """Predict and measure every setting."""
    rows = []
    for number in range(len(SETTINGS)):
        rows.append(measure_one(bed, number))
        yield from checks(rows[-1])
    yield from verdict(rows)


def setting_of(number: int) -> Setting:
    """Return a setting by its number."""
    return TRIED[number - 100] if number >= 100 else SETTINGS[number]


def measure_one(bed: Bed, number: int) -> Row:
    """Predict from a probe, and measure, one after the other on the same drive."""
    setting = setting_of(number)
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
        words = [*setting.dataset.settings(folder), *setting.settings]
        asked = [*DLEMU, "predict", *words, f"output.folder={results}/predicted", "--json"]
        told = subprocess.run(bed.drive.command(asked), check=False, capture_output=True, text=True)
        if told.returncode not in COMPLETED:
            raise DlemuError(f"setting {number}: dlemu predict ended with status {told.returncode}: {told.stderr}")
        predicted = json.loads(told.stdout)
        if not setting.channels:
            bed.drive.forget_cache()
        ran = bed.train_on(folder, setting.dataset, *setting.settings)
    return Row(
        number=number,
        name=setting.name,
        au_percent=predicted["au_percent"],
        au_low=predicted["au_interval_percent"][0],
        au_high=predicted["au_interval_percent"][1],
        samples_per_second=predicted["samples_per_second"],
        rate_low=predicted["samples_per_second_interval"][0],
        rate_high=predicted["samples_per_second_interval"][1],
        null_au_percent=predicted["null_model"]["au_percent"],
        null_samples_per_second=predicted["null_model"]["samples_per_second"],
        limited_by=predicted["limited_by"]["what"],
        measured_au_percent=ran.au_percent,
        measured_samples_per_second=float(ran.metrics["samples_per_second"]["mean"]),
        measured_limited_by=str(ran.limited_by),
        cpu_wait_percent=ran.cpu_wait_percent,
    )


def checks(row: Row) -> Iterator[Check]:
    """What is said of one setting; the verdict is on all together."""
    yield Check(
        case=row.name, what="au, predicted", theory=row.measured_au_percent, measured=row.au_percent, unit="%",
        within=5, cpu_wait_percent=row.cpu_wait_percent,
    )  # fmt: skip
    yield Check(
        case=row.name, what="samples/s, predicted", theory=row.measured_samples_per_second,
        measured=row.samples_per_second, unit="/s", within=10, percent=True, cpu_wait_percent=row.cpu_wait_percent,
    )  # fmt: skip


def verdict(rows: Sequence[Row]) -> Iterator[Check]:
    """What must hold of all settings."""
    au = statistics.mean(abs(row.au_off) for row in rows)
    rate = statistics.mean(abs(row.rate_off_percent) for row in rows)
    null = statistics.mean(abs(row.null_au_off) for row in rows)
    covered = 100 * statistics.mean(row.covered for row in rows)
    yield Check(case="all", what="mean |AU error|", theory=0.0, measured=au, unit="points", within=AU_POINTS)
    yield Check(case="all", what="mean |samples/s error|", theory=0.0, measured=rate, unit="%", within=RATE_PERCENT)
    yield Check(
        case="all", what="intervals that hold the truth", theory=100.0, measured=covered, unit="%",
        within=100 - COVERED_PERCENT,
    )  # fmt: skip
    yield Check(
        case="all", what="AU error / the null model's", theory=0.0, measured=au / max(null, 1e-9), within=1 / TIMES
    )


HEAD = (
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


def markdown(rows: Sequence[Row]) -> str:
    """Return the table of all settings, with the verdict on top."""
    au, rate, null, null_rate = (
        statistics.mean(map(abs, values))
        for values in (
            [row.au_off for row in rows],
            [row.rate_off_percent for row in rows],
            [row.null_au_off for row in rows],
            [row.null_rate_off_percent for row in rows],
        )
    )
    covered = sum(row.covered for row in rows)
    top = (
        f"{len(rows)} settings: mean |AU error| {au:.2f} points (null model {null:.2f}), mean |samples/s error| "
        f"{rate:.2f} % (null model {null_rate:.2f} %), {covered} of {len(rows)} pairs of intervals hold both. "
        f"{date.today()}, {table.machine()}."
    )
    lines = [top, "", _line(HEAD), _line(["---"] * len(HEAD))]
    for row in rows:
        lines.append(
            _line(
                [
                    row.name,
                    f"{row.measured_au_percent:.1f}",
                    f"{row.au_percent:.1f} ({row.au_off:+.1f})",
                    f"{row.au_low:.1f} to {row.au_high:.1f}" + ("" if row.covered else ", MISSED"),
                    f"{row.null_au_percent:.1f} ({row.null_au_off:+.1f})",
                    f"{row.measured_samples_per_second:.1f}",
                    f"{row.samples_per_second:.1f} ({row.rate_off_percent:+.1f} %)",
                    f"{row.null_samples_per_second:.1f} ({row.null_rate_off_percent:+.1f} %)",
                    "" if row.cpu_wait_percent is None else f"{row.cpu_wait_percent:.0f} %",
                ]
            )
        )
    return "\n".join(lines)


def main() -> int:
    """Measure the settings whose numbers are given, or all; return the exit status."""
    parser = argparse.ArgumentParser(prog="validation.prediction", description=__doc__.split("\n")[0])
    parser.add_argument(
        "settings", nargs="*", type=int, metavar="NUMBER", help=f"0 to {len(SETTINGS) - 1}; without: all"
    )
    parser.add_argument("--rows", metavar="FILE", help="keep what each gave here, a JSON line each; a later one counts")
    parser.add_argument("--table", metavar="PAGE", help="write the table into this page, such as docs/prediction.md")
    asked = parser.parse_args()
    kept: dict[int, Row] = {}
    if asked.rows and os.path.exists(asked.rows):
        with open(asked.rows) as lines:
            kept = {row.number: row for row in (Row(**json.loads(line)) for line in lines)}
    with make_bed() as bed:
        for number in asked.settings or range(len(SETTINGS)):
            row = kept[number] = measure_one(bed, number)
            print(
                f"{number}: {row.name}: au {row.au_percent:.2f} / {row.measured_au_percent:.2f} "
                f"[{row.au_low:.1f}-{row.au_high:.1f}] null {row.null_au_percent:.1f}; samples/s "
                f"{row.samples_per_second:.2f} / {row.measured_samples_per_second:.2f} null "
                f"{row.null_samples_per_second:.1f}; {row.limited_by} / {row.measured_limited_by}; CPU wait "
                f"{row.cpu_wait_percent or 0:.0f} %",
                flush=True,
            )
            if asked.rows:
                with open(asked.rows, "a") as out:
                    out.write(json.dumps(row.__dict__) + "\n")
    rows = [kept[number] for number in sorted(kept) if number < 100]
    if len(rows) < len(SETTINGS):
        return 0
    last = list(verdict(rows))
    for check in last:
        print(table.line(check))
    if asked.table:
        table.put(asked.table, GROUP, markdown(rows))
    return 0 if all(check.holds for check in last) else 1


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())

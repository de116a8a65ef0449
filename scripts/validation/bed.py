"""The test bed of the cases: a drive of known speed, datasets on it, and runs of dlemu as a user makes them."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow.parquet
from benchmarks.processes import run
from measuring.runs import dlemu, run_job, section
from numpy.typing import NDArray

from validation.check import Check
from validation.drive import KnownDrive, Speed, known_drive
from validation.watch import Watch, watching

DRIVE_BYTES = 4 << 30


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset with samples of one size."""

    name: str
    format: str
    sample_bytes: int
    samples_per_file: int = 1
    files: int
    subfolders: int = 0

    def settings(self, folder: str) -> list[str]:
        """Return dlemu's settings for the dataset in `folder`."""
        return [
            "workload=default",
            *section("dataset", data_folder=os.path.join(folder, self.name), format=self.format),
            *section("dataset", record_length_bytes=self.sample_bytes, num_samples_per_file=self.samples_per_file),
            *section("dataset", num_files_train=self.files),
            *([f"dataset.num_subfolders_train={self.subfolders}"] if self.subfolders else []),
        ]


@dataclass(frozen=True)
class Ran:
    """A completed run of `dlemu train`."""

    summary: Mapping[str, Any]
    watch: Watch
    """What the drive did meanwhile, measured from outside."""
    folder: str
    cpu_wait_percent: float | None
    """Share of the time in which some task of the host waited for a core; None if the kernel does not measure it."""
    exit_status: int = 0
    """0 or 1."""

    def beside(self, checks: Iterable[Check]) -> Iterator[Check]:
        """Yield the checks with this run's CPU wait."""
        return (replace(check, cpu_wait_percent=self.cpu_wait_percent) for check in checks)

    @property
    def metrics(self) -> Mapping[str, Any]:
        metrics: Mapping[str, Any] = self.summary["metrics"]
        return metrics

    @property
    def au_percent(self) -> float:
        return float(self.metrics["au_percent"]["mean"])

    @property
    def bytes_per_sample(self) -> float:
        return float(self.metrics["app_bytes"]) / float(self.metrics["samples"])

    @property
    def limited_by(self) -> str | None:
        """What dlemu says limited the run."""
        limit = self.summary["limited_by"]
        return None if limit is None else str(limit["what"])

    @property
    def advice(self) -> list[str]:
        """The sentences of dlemu's advice."""
        return list((self.summary["limited_by"] or {}).get("advice", []))

    @property
    def read_share(self) -> float:
        """Share of the training time in which the drive was reading, measured from outside."""
        start, end = int(self._steps("free_ns").min()), int(self._steps("met_ns").max())
        return self.watch.reading_seconds(start, end) * 1e9 / (end - start)

    def found(self, code: str, pattern: str | None = None) -> list[Mapping[str, Any]]:
        """Return the numbers of dlemu's findings with this code and, if given, this pattern."""
        explaining = (self.summary["limited_by"] or {}).get("findings", [])
        matching = [found["numbers"] for found in (*explaining, *self.summary["findings"]) if found["code"] == code]
        return [numbers for numbers in matching if pattern is None or numbers.get("pattern") == pattern]

    def not_steady(self, pattern: str) -> list[Mapping[str, Any]]:
        """Return the numbers of dlemu's findings, with this pattern, that the storage was not steady."""
        return self.found("storage_not_steady", pattern)

    def seconds_of(self, moment_ns: int) -> float:
        """Return a moment of CLOCK_MONOTONIC as seconds since training began."""
        return (moment_ns - int(self._steps("free_ns").min())) / 1e9

    @property
    def watch_of_training(self) -> Watch:
        """What the drive did until the last step was over, without dlemu's trials with more readers after the run."""
        return self.watch.until(int(self._steps("met_ns").max()))

    @property
    def watched_mb(self) -> float:
        """MB that all programs read from the drive while dlemu trained, measured from outside."""
        start, end = int(self._steps("free_ns").min()), int(self._steps("met_ns").max())
        return self.watch.bytes_between(start, end) / 1e6

    @property
    def worker_cpu_seconds_per_sample(self) -> float:
        """CPU time of workers per sample."""
        return float(self._steps("cpu_ns").sum()) / 1e9 / float(self._steps("samples").sum())

    def _steps(self, column: str) -> NDArray[np.int64]:
        """Return a column of the step log."""
        table = pyarrow.parquet.read_table(os.path.join(self.folder, "steps.parquet"), columns=[column])
        values: NDArray[np.int64] = table[column].to_numpy()
        return values


class Bed:
    """A drive, and a folder of results elsewhere. Made by `make_bed`."""

    def __init__(self, drive: KnownDrive, results: str) -> None:
        self.drive, self._results = drive, results
        self._on_drive: set[str] = set()  # names of the datasets that exist

    def train(
        self, dataset: Dataset, *settings: str, speed: Speed, prefix: Sequence[str] = (), cold: bool = True
    ) -> Ran:
        """Run `dlemu train` at `speed`, from a cold page cache if `cold`; `prefix` is put before the command."""
        self.prepare(dataset)
        self.drive.set_speed(speed)
        if cold:
            self.drive.forget_cache()
        return self.train_on(self.drive.folder, dataset, *settings, prefix=prefix)

    def train_on(self, folder: str, dataset: Dataset, *settings: str, prefix: Sequence[str] = ()) -> Ran:
        """Run `dlemu train` on a dataset in `folder`."""
        arguments = [*dataset.settings(folder), "workflow.checkpoint=false", *settings]
        waits_us, start = _cpu_waits_us(), time.monotonic()
        with watching(self.drive.device) as watch:
            done = run_job("train", arguments, within=self._results, wrap=lambda argv: self.command([*prefix, *argv]))
        return Ran(done.summary, watch, done.folder, _share_percent(waits_us, _cpu_waits_us(), start), done.status)

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs a command at the drive's speed."""
        return self.drive.command(argv)

    def checkpoint(self, *settings: str, speed: Speed) -> Mapping[str, Any]:
        """Run `dlemu checkpoint` on the drive at `speed`, remove the checkpoints, and return the summary."""
        self.drive.set_speed(speed)
        folder = os.path.join(self.drive.folder, "checkpoints")
        arguments = [*settings, f"checkpoint.checkpoint_folder={folder}"]
        summary = run_job("checkpoint", arguments, within=self._results, wrap=self.command).summary
        shutil.rmtree(folder)
        return summary

    def plain(self, dataset: Dataset, readers: int, *, speed: Speed, seconds: float = 3.0) -> float:
        """Return bytes/s of the plain reader on the same files."""
        self.prepare(dataset)
        self.drive.set_speed(speed)
        return self.plain_on(self.drive.folder, dataset, readers, seconds=seconds)

    def plain_on(self, folder: str, dataset: Dataset, readers: int, *, seconds: float = 3.0) -> float:
        """Return bytes/s of the plain reader on a dataset in `folder`."""
        files = sorted(glob.glob(os.path.join(folder, dataset.name, "train", "*")))
        argv = [sys.executable, "-m", "validation.plain", str(readers), str(seconds), *files]
        return float(run(self.drive.command(argv)).output)

    def prepare(self, dataset: Dataset) -> None:
        """Generate the dataset on the drive, at full speed, unless it is there."""
        if dataset.name not in self._on_drive:
            self.generate(dataset, self.drive.folder)
            self._on_drive.add(dataset.name)

    def remove(self, dataset: Dataset) -> None:
        """Remove the dataset, to make room."""
        shutil.rmtree(os.path.join(self.drive.folder, dataset.name))
        self._on_drive.discard(dataset.name)

    def clear(self) -> None:
        """Remove all datasets."""
        for name in self._on_drive:
            shutil.rmtree(os.path.join(self.drive.folder, name))
        self._on_drive.clear()

    def generate(self, dataset: Dataset, folder: str, *settings: str) -> None:
        """Generate a dataset in a folder."""
        run(dlemu("datagen", *dataset.settings(folder), *settings))


@contextlib.contextmanager
def make_bed(size_bytes: int = DRIVE_BYTES) -> Iterator[Bed]:
    """Make a drive and a folder of results, which are removed at the end."""
    results = tempfile.mkdtemp(prefix="dlemu-validation-")
    try:
        with known_drive(Speed(), size_bytes=size_bytes) as drive:
            yield Bed(drive, results)
    finally:
        shutil.rmtree(results, ignore_errors=True)


def _cpu_waits_us() -> int | None:
    """Return for how long some task waited for a core since boot, us (kernel: accounting/psi); None if not measured."""
    try:
        with open("/proc/pressure/cpu") as lines:
            return int(next(lines).rpartition("total=")[2])
    except OSError:
        return None


def _share_percent(before_us: int | None, after_us: int | None, start: float) -> float | None:
    if before_us is None or after_us is None:
        return None
    return (after_us - before_us) / 1e4 / (time.monotonic() - start)

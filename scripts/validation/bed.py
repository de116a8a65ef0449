"""Where the cases are measured: a drive of known speed, datasets on it, and dlemu run as a user runs it."""

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
    """Samples of one size."""

    name: str
    format: str
    sample_bytes: int
    samples_per_file: int = 1
    files: int
    subfolders: int = 0

    def settings(self, folder: str) -> list[str]:
        """Return dlemu's words for it."""
        return [
            "workload=default",
            *section("dataset", data_folder=os.path.join(folder, self.name), format=self.format),
            *section("dataset", record_length_bytes=self.sample_bytes, num_samples_per_file=self.samples_per_file),
            *section("dataset", num_files_train=self.files),
            *([f"dataset.num_subfolders_train={self.subfolders}"] if self.subfolders else []),
        ]


@dataclass(frozen=True)
class Ran:
    """A run that was measured to its end."""

    summary: Mapping[str, Any]
    watch: Watch
    """Measured on the drive from outside."""
    folder: str
    cpu_wait_percent: float | None
    """Share of the time in which some task of the host wanted a core and had none; None where the kernel can't tell."""
    exit_status: int = 0
    """0 or 1."""

    def beside(self, checks: Iterable[Check]) -> Iterator[Check]:
        """Tell with each check how much the host's tasks wanted for cores."""
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
        """What dlemu advises to do."""
        return list((self.summary["limited_by"] or {}).get("advice", []))

    @property
    def read_share(self) -> float:
        """Share of training's time in which the drive had anything to do, measured from outside."""
        began, ended = int(self._steps("free_ns").min()), int(self._steps("met_ns").max())
        return self.watch.reading_seconds(began, ended) * 1e9 / (ended - began)

    def found(self, code: str, pattern: str | None = None) -> list[Mapping[str, Any]]:
        """Return the numbers of what dlemu found under this code."""
        explaining = (self.summary["limited_by"] or {}).get("findings", [])
        named = [one["numbers"] for one in (*explaining, *self.summary["findings"]) if one["code"] == code]
        return [numbers for numbers in named if pattern is None or numbers.get("pattern") == pattern]

    def not_steady(self, pattern: str) -> list[Mapping[str, Any]]:
        """Return what dlemu found not steady of the drive in this way."""
        return self.found("storage_not_steady", pattern)

    def seconds_of(self, moment_ns: int) -> float:
        """Return a moment of CLOCK_MONOTONIC as seconds since training began."""
        return (moment_ns - int(self._steps("free_ns").min())) / 1e9

    @property
    def watch_of_training(self) -> Watch:
        """What was seen until the last step was over: what dlemu then asks of more readers is no part of it."""
        return self.watch.until(int(self._steps("met_ns").max()))

    @property
    def watched_mb(self) -> float:
        """What the drive gave to anybody while dlemu trained, measured from outside."""
        began, ended = int(self._steps("free_ns").min()), int(self._steps("met_ns").max())
        return self.watch.bytes_between(began, ended) / 1e6

    @property
    def worker_cpu_seconds_per_sample(self) -> float:
        """What a worker needs a core for."""
        return float(self._steps("cpu_ns").sum()) / 1e9 / float(self._steps("samples").sum())

    def _steps(self, column: str) -> NDArray[np.int64]:
        """Return a column of the step log."""
        table = pyarrow.parquet.read_table(os.path.join(self.folder, "steps.parquet"), columns=[column])
        values: NDArray[np.int64] = table[column].to_numpy()
        return values


class Bed:
    """A drive and the folder of results beside it. Made by `make_bed`."""

    def __init__(self, drive: KnownDrive, results: str) -> None:
        self.drive, self._results = drive, results
        self._made: set[str] = set()

    def train(
        self, dataset: Dataset, *settings: str, speed: Speed, prefix: Sequence[str] = (), cold: bool = True
    ) -> Ran:
        """Run `dlemu train` at `speed`, with nothing in the page cache when `cold`; `prefix` precedes the command."""
        self.prepare(dataset)
        self.drive.set_speed(speed)
        if cold:
            self.drive.forget_cache()
        return self.train_on(self.drive.folder, dataset, *settings, prefix=prefix)

    def train_on(self, folder: str, dataset: Dataset, *settings: str, prefix: Sequence[str] = ()) -> Ran:
        """Run `dlemu train` on a dataset that lies in `folder`."""
        words = [*dataset.settings(folder), "workflow.checkpoint=false", *settings]
        waited, began = _cpu_waits_us(), time.monotonic()
        with watching(self.drive.device) as watch:
            done = run_job("train", words, within=self._results, wrap=lambda argv: self.command([*prefix, *argv]))
        return Ran(done.summary, watch, done.folder, _share_percent(waited, _cpu_waits_us(), began), done.status)

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on the drive, at its speed."""
        return self.drive.command(argv)

    def checkpoint(self, *settings: str, speed: Speed) -> Mapping[str, Any]:
        """Run `dlemu checkpoint` on the drive at `speed`; return its summary. Nothing of it stays on the drive."""
        self.drive.set_speed(speed)
        folder = os.path.join(self.drive.folder, "checkpoints")
        words = [*settings, f"checkpoint.checkpoint_folder={folder}"]
        summary = run_job("checkpoint", words, within=self._results, wrap=self.command).summary
        shutil.rmtree(folder)
        return summary

    def plain(self, dataset: Dataset, readers: int, *, speed: Speed, seconds: float = 3.0) -> float:
        """Return bytes/s of the plain reader on the same files."""
        self.prepare(dataset)
        self.drive.set_speed(speed)
        return self.plain_on(self.drive.folder, dataset, readers, seconds=seconds)

    def plain_on(self, folder: str, dataset: Dataset, readers: int, *, seconds: float = 3.0) -> float:
        """Return bytes/s of the plain reader on a dataset that lies in `folder`."""
        files = sorted(glob.glob(os.path.join(folder, dataset.name, "train", "*")))
        argv = [sys.executable, "-m", "validation.plain", str(readers), str(seconds), *files]
        return float(run(self.drive.command(argv)).output)

    def prepare(self, dataset: Dataset) -> None:
        """Generate it once; writing meets no limit."""
        if dataset.name not in self._made:
            self.generate(dataset, self.drive.folder)
            self._made.add(dataset.name)

    def remove(self, dataset: Dataset) -> None:
        """Make room: it is generated again where it is wanted."""
        shutil.rmtree(os.path.join(self.drive.folder, dataset.name))
        self._made.discard(dataset.name)

    def clear(self) -> None:
        """Remove all datasets."""
        for name in self._made:
            shutil.rmtree(os.path.join(self.drive.folder, name))
        self._made.clear()

    def generate(self, dataset: Dataset, folder: str, *settings: str) -> None:
        """Generate a dataset in a folder."""
        run(dlemu("datagen", *dataset.settings(folder), *settings))


@contextlib.contextmanager
def make_bed(size_bytes: int = DRIVE_BYTES) -> Iterator[Bed]:
    """Make a drive and a place for results; both are gone in the end."""
    results = tempfile.mkdtemp(prefix="dlemu-validation-")
    try:
        with known_drive(Speed(), size_bytes=size_bytes) as drive:
            yield Bed(drive, results)
    finally:
        shutil.rmtree(results, ignore_errors=True)


def _cpu_waits_us() -> int | None:
    """Return for how long some task wanted a core and had none, since boot (kernel: accounting/psi)."""
    try:
        with open("/proc/pressure/cpu") as lines:
            return int(next(lines).rpartition("total=")[2])
    except OSError:
        return None


def _share_percent(before_us: int | None, after_us: int | None, began: float) -> float | None:
    if before_us is None or after_us is None:
        return None
    return (after_us - before_us) / 1e4 / (time.monotonic() - began)

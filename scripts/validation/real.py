"""Real trainings, their replays and their predictions on drives of known speed (docs/record.md, "How true it is").

Each job (a script in scripts/validation/jobs that does not use dlemu) is recorded once on fast storage. Then these run
in turn on each drive: the job, `dlemu train` with its recipe on its files, and `dlemu predict`. A recording of the
job's run on the drive shows what limits it. The rates leave out the first steps, in which a job starts its workers and
they import their libraries, because that says nothing about the storage.
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.processes import run
from measuring import evidence
from measuring.runs import dlemu, run_job

from datagen.errors import DlemuError
from dlemu.contrib.record.answer import VERDICTS, Recording
from dlemu.contrib.record.recording import analyse
from dlemu.contrib.record.rows import read_rows, with_hook
from dlemu.jobs.training.result import read_run
from dlemu.metrics.verdict import COMPLETED
from validation import latency
from validation.bed import Bed
from validation.check import Check
from validation.drive import Speed

JOBS_FOLDER = Path(__file__).with_name("jobs")
MEAN_PERCENT, WORST_PERCENT = 5.0, 10.0
"""Tolerance of a replay's samples/s: the mean and the largest error."""
SECONDS = 20.0
"""Approximate duration of a run, by the drive's speed: most of a pass over the files, so that job and replay, which
shuffle differently, read nearly the same files."""
RECORDED_STEPS = 105
SKIP = 10
_REQUEST_BYTES = 100_000
"""Approximate size of a drive's requests, from which the number of steps is computed."""
_MIN_WAIT_SHARE = 0.05
"""Waiting for more than this share of a step limits a job."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training script and its arguments."""

    name: str
    script: str
    batch: int
    step_seconds: float
    workers: int = 2
    megabytes: int = 800
    """Size of its files: more than a run reads, so that nothing is read twice."""
    trains: bool = False
    """Whether its model computes on the CPU; else its steps sleep."""

    def command(self, folder: str, steps: int, skip: int = 0) -> list[str]:
        options = [f"--steps={steps}", f"--skip={skip}", f"--batch={self.batch}", f"--workers={self.workers}"]
        options.append("--train" if self.trains else f"--step-seconds={self.step_seconds}")
        return [sys.executable, str(JOBS_FOLDER / f"{self.script}.py"), os.path.join(folder, self.script), *options]


JOBS = (
    Job(name="JPEG in class folders, Pillow", script="pictures", batch=16, step_seconds=0.080),
    # A random read of a mapped file caches 128 KiB. So most of a small file would be cached before it is read.
    Job(name="tokens in a mapped file", script="tokens", batch=32, step_seconds=0.060, megabytes=3_200),
    Job(name="crops of npz volumes", script="crops", batch=4, step_seconds=0.080),
    Job(name="rows of Parquet, pyarrow", script="rows", batch=32, step_seconds=0.020),
    Job(name="latents in tar shards", script="shards", batch=32, step_seconds=0.060),
    Job(name="JPEG, and a ResNet on the CPU", script="pictures", batch=16, step_seconds=0.4, workers=1, trains=True),
)


@dataclass(frozen=True, kw_only=True)
class Drive:
    """A drive on which recipes are checked."""

    name: str
    speed: Speed = Speed()  # noqa: RUF009  # it is frozen
    channels: int = 0
    """Channels of the latency model, which is mounted over the drive; 0 for no model."""
    cores: int = 0
    """If not 0, programs have so many cores, and all data is in the page cache; else all cores, and a cold cache."""


MS_10 = 0.010
DRIVES = (
    Drive(name="40 MB/s", speed=Speed(read_bytes_per_second=40_000_000)),
    Drive(name="100 MB/s", speed=Speed(read_bytes_per_second=100_000_000)),
    Drive(name="300 requests/s", speed=Speed(reads_per_second=300)),
    Drive(name="4 channels x 10 ms", channels=4),
    Drive(name="memory, 1 core", cores=1),
)


@dataclass(frozen=True, kw_only=True)
class Row(evidence.Row):
    """A job on a drive; rates are in samples/s."""

    job: str
    drive: str
    real: float
    replayed: float
    predicted: float
    real_limit: str
    replayed_limit: str
    predicted_limit: str
    core_wait_percent: float
    """Share of the job's time in which it waited for a core, because of other programs on the host."""
    columns = (
        *("job", "drive", "real", "replayed", "predicted"),
        *("limit of the job", "said by replay", "by prediction", "job waited for a core", ""),
    )

    @property
    def replay_off_percent(self) -> float:
        return 100 * (self.replayed / self.real - 1)

    @property
    def prediction_off_percent(self) -> float:
        return 100 * (self.predicted / self.real - 1)

    @property
    def cells(self) -> list[str]:
        return [
            self.job,
            self.drive,
            f"{self.real:.1f}",
            f"{self.replayed:.1f} ({self.replay_off_percent:+.1f} %)",
            f"{self.predicted:.1f} ({self.prediction_off_percent:+.1f} %)",
            self.real_limit,
            self.replayed_limit,
            self.predicted_limit,
            f"{self.core_wait_percent:.0f} %",
            self.status,
        ]

    @property
    def status(self) -> str:
        """The status of the replay; predictions are not judged."""
        return "ok" if abs(self.replay_off_percent) <= WORST_PERCENT and self.names_the_limit else "MISSED"

    @property
    def names_the_limit(self) -> bool:
        """Whether the replay has the job's limit. If that is the storage, `loader` is right, too: more readers help."""
        return self.replayed_limit == self.real_limit or (self.real_limit, self.replayed_limit) == ("storage", "loader")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A job's recipe, made by `dlemu record`."""

    path: str
    replayable: bool | None
    """None if not verified."""
    reason: str
    device_bytes: float
    """Bytes per sample that the device read."""
    hand_over_seconds: float
    """Time to receive a ready batch from its worker, in the recorded run."""


def why_no_real() -> str | None:
    """Return why this can't be measured on this host; None if it can."""
    return latency.why_no_model() or (
        None if shutil.which("taskset") else "cores are taken away by taskset: util-linux"
    )


def measure(bed: Bed) -> Iterator[Row | Check]:
    """Measure all jobs on all drives, then check all rows together."""
    rows = []
    for job in JOBS:
        for row in measure_job(bed, job):
            rows.append(row)
            yield row
    yield from together(rows)


def together(rows: Sequence[Row]) -> Iterator[Check]:
    """Check the replays of all rows; predictions are not judged."""
    mean = statistics.mean(abs(row.replay_off_percent) for row in rows)
    named = 100 * statistics.mean(row.names_the_limit for row in rows)
    yield Check("all", "mean |samples/s error| of replays", 0.0, mean, "%", within=MEAN_PERCENT)
    yield Check("all", "replays that name the limit", 100.0, named, "%")


def measure_job(bed: Bed, job: Job, drives: Sequence[Drive] = DRIVES) -> Iterator[Row]:
    """Record a job, and compare it with its replays and predictions; its files are removed at the end."""
    data = os.path.join(bed.drive.folder, job.script)
    run([sys.executable, str(JOBS_FOLDER / "data.py"), job.script, data, str(job.megabytes)])
    with tempfile.TemporaryDirectory(prefix="dlemu-real-") as results:
        try:
            recipe = _recorded(bed, job, results)
            for drive in drives:
                yield _row(bed, job, drive, recipe, tempfile.mkdtemp(dir=results))
        finally:
            bed.drive.set_speed(Speed())
            shutil.rmtree(data)


def _recorded(bed: Bed, job: Job, results: str) -> Recipe:
    """Record a job on a drive without limits, from a cold page cache; return its recipe."""
    bed.drive.set_speed(Speed())
    bed.drive.forget_cache()
    out, folder = os.path.join(results, "job.yaml"), os.path.join(results, "recorded")
    argv = dlemu("record", "--out", out, "--output", folder, "--no-report", "--skip", str(SKIP), "--")
    run(bed.drive.command([*argv, *job.command(bed.drive.folder, RECORDED_STEPS)]), accepted=COMPLETED)
    with open(os.path.join(folder, "record.json")) as lines:
        answer: dict[str, Any] = json.load(lines)
    return Recipe(
        path=out,
        replayable=answer["replayable"],
        reason=answer["reason"],
        device_bytes=float(answer["recording"]["device_bytes_per_sample"]),
        hand_over_seconds=float(answer["recording"]["hand_over"]),
    )


def _row(bed: Bed, job: Job, drive: Drive, recipe: Recipe, results: str) -> Row:
    steps = _steps(job, drive, recipe)
    with _ready(bed, drive, job) as folder:
        real, real_limit, core_wait_percent = _real(bed, job, drive, folder, steps, results)
    with _ready(bed, drive, job) as folder:
        replayed, replayed_limit = _replayed(bed, job, drive, recipe, folder, steps, results)
    with _ready(bed, drive, job) as folder:
        predicted, predicted_limit = _predicted(bed, job, drive, recipe, folder, steps, results)
    return Row(
        job=job.name if recipe.replayable else f"{job.name} ({VERDICTS[recipe.replayable]}: {recipe.reason})",
        drive=drive.name,
        real=real,
        replayed=replayed,
        predicted=predicted,
        real_limit=real_limit,
        replayed_limit=replayed_limit,
        predicted_limit=predicted_limit,
        core_wait_percent=core_wait_percent,
    )


@contextlib.contextmanager
def _ready(bed: Bed, drive: Drive, job: Job) -> Iterator[str]:
    """Set the drive's speed, and empty or fill the page cache; yield the folder above the files."""
    bed.drive.set_speed(Speed())
    bed.drive.forget_cache()
    if drive.channels:
        with latency.model_mounted(bed.drive.folder, MS_10, drive.channels) as mount:
            yield mount
        return
    if drive.cores:
        for path in glob.glob(os.path.join(bed.drive.folder, job.script, "**"), recursive=True):
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    while file.read(1 << 20):
                        pass
    bed.drive.set_speed(drive.speed)
    yield bed.drive.folder


def _steps(job: Job, drive: Drive, recipe: Recipe) -> int:
    """Return the number of steps of a run: as many as take SECONDS, within one pass over the files."""
    batch_bytes = job.batch * recipe.device_bytes
    requests_per_second = drive.speed.reads_per_second or drive.channels / MS_10
    rate = drive.speed.read_bytes_per_second or _REQUEST_BYTES * requests_per_second
    max_steps = 0.9 * job.megabytes * 1e6 / batch_bytes
    step_seconds = max(job.step_seconds, batch_bytes / rate if rate else 0.0)
    return int(max(3 * SKIP, min(max_steps, SECONDS / step_seconds)))


def _command(bed: Bed, drive: Drive, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` at the drive's speed and on its number of cores."""
    cores = sorted(os.sched_getaffinity(0))[-drive.cores :]
    taskset = ["taskset", "-c", ",".join(map(str, cores))] if drive.cores else []
    return bed.drive.command([*taskset, *argv])


def _real(bed: Bed, job: Job, drive: Drive, folder: str, steps: int, results: str) -> tuple[float, str, float]:
    """Run the job; return its samples/s, its limit by its recording, and the share of waiting for a core, %."""
    rows = os.path.join(results, "rows")
    hook = [f"{name}={value}" for name, value in with_hook(results, rows, minutes=60.0).items()]
    ended = run(_command(bed, drive, ["env", *hook, *job.command(folder, steps, SKIP)]))
    recording = analyse(read_rows(rows), SKIP)
    core_wait_percent = 100 * recording.parts.cpu_queue / recording.parts.step
    return float(ended.output.split()[-2]), limit_of(recording), core_wait_percent


def limit_of(recording: Recording) -> str:
    """Return what a job waited for, as dlemu calls it: nothing, storage, or host CPU."""
    parts = recording.parts
    cpu = parts.cpu_queue + parts.preprocessing
    if parts.storage + cpu <= _MIN_WAIT_SHARE * parts.step:
        return "nothing"
    return "storage" if parts.storage >= cpu else "host CPU"


def _settings(job: Job, recipe: Recipe, folder: str, steps: int, drive: Drive) -> list[str]:
    return [
        f"workload={recipe.path}",
        "dataset.source=folder",
        f"dataset.data_folder={os.path.join(folder, job.script)}",
        f"train.total_training_steps={steps}",
        "workflow.checkpoint=false",
        *(["metric.cached=true"] if drive.cores else []),
    ]


def _replayed(
    bed: Bed, job: Job, drive: Drive, recipe: Recipe, folder: str, steps: int, results: str
) -> tuple[float, str]:
    done = run_job(
        "train", _settings(job, recipe, folder, steps, drive), within=results, wrap=partial(_command, bed, drive)
    )
    rate, wait_share = _steady(done.folder, job.batch, recipe.hand_over_seconds)
    return rate, "nothing" if wait_share <= _MIN_WAIT_SHARE else _limit(done.summary["limited_by"])


def _steady(folder: str, batch: int, hand_over_seconds: float) -> tuple[float, float]:
    """Return the samples/s of a run of one rank, and the share of time it waited, without the first SKIP steps.

    The time to receive a ready batch does not count as waiting, as in the job's limit.
    """
    steps = read_run(folder).training
    order = np.lexsort((steps["step"], steps["epoch"]))[SKIP:]
    wait, compute, sync = (float(np.asarray(steps[part])[order].sum()) for part in ("wait_ns", "compute_ns", "sync_ns"))
    total_ns = wait + compute + sync
    return batch * len(order) / total_ns * 1e9, (wait - len(order) * hand_over_seconds * 1e9) / total_ns


def _predicted(
    bed: Bed, job: Job, drive: Drive, recipe: Recipe, folder: str, steps: int, results: str
) -> tuple[float, str]:
    """Return the prediction for one accelerator; NaN if dlemu refuses, because the trainer needs all cores."""
    settings = [*_settings(job, recipe, folder, steps, drive), "ranks=1"]
    wrap = partial(_command, bed, drive)
    try:
        answer = run_job("predict", settings, within=results, wrap=wrap, result="predict.json").summary
    except DlemuError as error:
        if "trainers alone exceed this host" not in str(error):
            raise
        return math.nan, "refused"
    (for_one,) = (count for count in answer["counts"] if count["accelerators"] == 1)
    return float(for_one["samples_per_second"]), _limit(answer["limited_by"])


def _limit(limited_by: dict[str, Any] | None) -> str:
    return "nothing" if limited_by is None else str(limited_by["what"])

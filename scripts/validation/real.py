"""Real trainings beside their replays and predictions, on drives of known speed (docs/record.md, "How true it is").

Each job (scripts/validation/jobs, scripts of which nothing knows of dlemu) is recorded once on fast storage. Then, on
each drive and in turn: the job itself, `dlemu train` with the recipe on the job's files, and `dlemu predict`. What
limits the job is told by a recording of that very run. Both rates leave out the first steps: a job starts its workers
then, which import their libraries, and that is no part of what a storage has to give.
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
"""Of a replay's samples/s beside the job's own."""
SECONDS = 20.0
"""About how long a run takes, by what its drive gives: most of a pass over the files, so that job and replay, which
shuffle differently, read nearly the same ones."""
RECORDED_STEPS = 105
SKIP = 10
_REQUEST_BYTES = 100_000
"""Of a drive's requests, about: only how long a run goes depends on it."""
_WAITS = 0.05
"""Share of a step beyond which waiting limits a job; less is none."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A script, and what it is asked to do."""

    name: str
    script: str
    batch: int
    step_seconds: float
    workers: int = 2
    megabytes: int = 800
    """Of its files: more than a run reads, so that nothing is read twice."""
    trains: bool = False
    """Its model computes on the CPU, in place of a step that sleeps."""

    def command(self, folder: str, steps: int, skip: int = 0) -> list[str]:
        words = [f"--steps={steps}", f"--skip={skip}", f"--batch={self.batch}", f"--workers={self.workers}"]
        words.append("--train" if self.trains else f"--step-seconds={self.step_seconds}")
        return [sys.executable, str(JOBS_FOLDER / f"{self.script}.py"), os.path.join(folder, self.script), *words]


JOBS = (
    Job(name="JPEG in class folders, Pillow", script="pictures", batch=16, step_seconds=0.080),
    # A random read of a mapped file brings 128 KiB: of a small file, most of what later steps want is then cached.
    Job(name="tokens in a mapped file", script="tokens", batch=32, step_seconds=0.060, megabytes=3_200),
    Job(name="crops of npz volumes", script="crops", batch=4, step_seconds=0.080),
    Job(name="rows of Parquet, pyarrow", script="rows", batch=32, step_seconds=0.020),
    Job(name="latents in tar shards", script="shards", batch=32, step_seconds=0.060),
    Job(name="JPEG, and a ResNet on the CPU", script="pictures", batch=16, step_seconds=0.4, workers=1, trains=True),
)


@dataclass(frozen=True, kw_only=True)
class Drive:
    """Where a recipe is to hold."""

    name: str
    speed: Speed = Speed()  # noqa: RUF009  # it is frozen
    channels: int = 0
    """Of the latency model, mounted over the drive."""
    cores: int = 0
    """0: all of the host's, with nothing in the page cache; else so many, with all data in it."""


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
    """A job on a drive. Rates in samples/s."""

    job: str
    drive: str
    real: float
    replayed: float
    predicted: float
    real_limit: str
    replayed_limit: str
    predicted_limit: str
    core_wait_percent: float
    """Of the job's time: it wanted a core and had none, because of what else ran on the host."""
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
        """Of the replay: it is the proof. A prediction stands beside it."""
        return "ok" if abs(self.replay_off_percent) <= WORST_PERCENT and self.names_the_limit else "MISSED"

    @property
    def names_the_limit(self) -> bool:
        """The replay names the job's own limit; where that waits for storage, dlemu may advise more readers."""
        return self.replayed_limit == self.real_limit or (self.real_limit, self.replayed_limit) == ("storage", "loader")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What `dlemu record` made of a job."""

    path: str
    replayable: bool | None
    """None: not verified."""
    reason: str
    device_bytes: float
    """Of a sample."""
    hand_over_seconds: float
    """To take a batch that is ready from its worker, in the recorded run."""


def why_no_real() -> str | None:
    """Return why it can't be measured here, or None when it can."""
    return latency.why_no_model() or (
        None if shutil.which("taskset") else "cores are taken away by taskset: util-linux"
    )


def measure(bed: Bed) -> Iterator[Row | Check]:
    """All jobs on all drives, then all together."""
    rows = []
    for job in JOBS:
        for row in measure_job(bed, job):
            rows.append(row)
            yield row
    yield from together(rows)


def together(rows: Sequence[Row]) -> Iterator[Check]:
    """What must hold of all; predictions are no part of the promise."""
    mean = statistics.mean(abs(row.replay_off_percent) for row in rows)
    same = 100 * statistics.mean(row.names_the_limit for row in rows)
    yield Check("all", "mean |samples/s error| of replays", 0.0, mean, "%", within=MEAN_PERCENT)
    yield Check("all", "replays that name the limit", 100.0, same, "%")


def measure_job(bed: Bed, job: Job, drives: Sequence[Drive] = DRIVES) -> Iterator[Row]:
    """Record a job, and hold its replays and predictions against it; its files are gone afterwards."""
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
    """Record a job on a drive without limits, from a cold page cache."""
    bed.drive.set_speed(Speed())
    bed.drive.forget_cache()
    out, folder = os.path.join(results, "job.yaml"), os.path.join(results, "recorded")
    argv = dlemu("record", "--out", out, "--output", folder, "--no-report", "--skip", str(SKIP), "--")
    run(bed.drive.command([*argv, *job.command(bed.drive.folder, RECORDED_STEPS)]), accepted=COMPLETED)
    with open(os.path.join(folder, "record.json")) as lines:
        said: dict[str, Any] = json.load(lines)
    return Recipe(
        path=out,
        replayable=said["replayable"],
        reason=said["reason"],
        device_bytes=float(said["recording"]["device_bytes_per_sample"]),
        hand_over_seconds=float(said["recording"]["hand_over"]),
    )


def _row(bed: Bed, job: Job, drive: Drive, recipe: Recipe, results: str) -> Row:
    steps = _steps(job, drive, recipe)
    with _ready(bed, drive, job) as folder:
        real, limit, core = _real(bed, job, drive, folder, steps, results)
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
        real_limit=limit,
        replayed_limit=replayed_limit,
        predicted_limit=predicted_limit,
        core_wait_percent=core,
    )


@contextlib.contextmanager
def _ready(bed: Bed, drive: Drive, job: Job) -> Iterator[str]:
    """Set the drive's speed and what is in the page cache; give the folder below which the files lie."""
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
    """Return for how many steps a run goes: for some seconds, and within one pass over the files."""
    batch_bytes = job.batch * recipe.device_bytes
    requests_per_second = drive.speed.reads_per_second or drive.channels / MS_10
    rate = drive.speed.read_bytes_per_second or _REQUEST_BYTES * requests_per_second
    most = 0.9 * job.megabytes * 1e6 / batch_bytes
    step_seconds = max(job.step_seconds, batch_bytes / rate if rate else 0.0)
    return int(max(3 * SKIP, min(most, SECONDS / step_seconds)))


def _command(bed: Bed, drive: Drive, argv: Sequence[str]) -> list[str]:
    """Return the command that runs at the drive's speed, on the cores it leaves."""
    cores = sorted(os.sched_getaffinity(0))[-drive.cores :]
    taken = ["taskset", "-c", ",".join(map(str, cores))] if drive.cores else []
    return bed.drive.command([*taken, *argv])


def _real(bed: Bed, job: Job, drive: Drive, folder: str, steps: int, results: str) -> tuple[float, str, float]:
    """Run the job; return its own samples/s, what its recording says it waited for, and how much for a core, %."""
    rows = os.path.join(results, "rows")
    hook = [f"{name}={value}" for name, value in with_hook(results, rows, minutes=60.0).items()]
    ended = run(_command(bed, drive, ["env", *hook, *job.command(folder, steps, SKIP)]))
    recording = analyse(read_rows(rows), SKIP)
    core = 100 * recording.parts.cpu_queue / recording.parts.step
    return float(ended.output.split()[-2]), limit_of(recording), core


def limit_of(recording: Recording) -> str:
    """Return in dlemu's words what a job waited for: nothing, storage, or the host's CPU."""
    parts = recording.parts
    cpu = parts.cpu_queue + parts.preprocessing
    if parts.storage + cpu <= _WAITS * parts.step:
        return "nothing"
    return "storage" if parts.storage >= cpu else "host CPU"


def _words(job: Job, recipe: Recipe, folder: str, steps: int, drive: Drive) -> list[str]:
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
        "train", _words(job, recipe, folder, steps, drive), within=results, wrap=partial(_command, bed, drive)
    )
    rate, waited = _steady(done.folder, job.batch, recipe.hand_over_seconds)
    return rate, "nothing" if waited <= _WAITS else _limit(done.summary["limited_by"])


def _steady(folder: str, batch: int, hand_over_seconds: float) -> tuple[float, float]:
    """Return samples/s and the share of waits of a run of one rank, without the steps that the job leaves out too.

    Taking a batch that is ready is no wait, as in the job's limit.
    """
    steps = read_run(folder).training
    order = np.lexsort((steps["step"], steps["epoch"]))[SKIP:]
    wait, compute, sync = (float(np.asarray(steps[part])[order].sum()) for part in ("wait_ns", "compute_ns", "sync_ns"))
    took_ns = wait + compute + sync
    return batch * len(order) / took_ns * 1e9, (wait - len(order) * hand_over_seconds * 1e9) / took_ns


def _predicted(
    bed: Bed, job: Job, drive: Drive, recipe: Recipe, folder: str, steps: int, results: str
) -> tuple[float, str]:
    """Return what `dlemu predict` says for one accelerator; NaN where it refuses, as its trainer needs all cores."""
    words = [*_words(job, recipe, folder, steps, drive), "ranks=1"]
    wrap = partial(_command, bed, drive)
    try:
        answer = run_job("predict", words, within=results, wrap=wrap, result="predict.json").summary
    except DlemuError as error:
        if "trainers alone exceed this host" not in str(error):
            raise
        return math.nan, "refused"
    (one,) = (count for count in answer["counts"] if count["accelerators"] == 1)
    return float(one["samples_per_second"]), _limit(answer["limited_by"])


def _limit(said: dict[str, Any] | None) -> str:
    return "nothing" if said is None else str(said["what"])

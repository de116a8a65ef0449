"""Drives in virtual time, probed and trained on: what `dlemu predict` is told of one, and what it then must say.

Their requests wait for a channel of the drive: that is not the shared link that the model makes of them.
"""

from __future__ import annotations

import numpy as np

from dlemu.config.schema import Workload
from dlemu.jobs.training import pattern
from dlemu.jobs.training.pattern import READ_DTYPE, Level, fewest_at_full_speed, judge_level, repeat_seconds
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.prediction.batches import planned_job
from dlemu.jobs.training.prediction.event_model import HostCosts
from dlemu.jobs.training.prediction.from_reads import calibrate_from_levels
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.model_run import ModelRun
from dlemu.jobs.training.prediction.prediction import Prediction
from tests.validation.virtual_drives import START_SECONDS, Drive, Training, train


def probed(drive: Drive, job: TrainingJob, again: int, seed: int) -> list[Level]:
    """Return what the levels of `dlemu predict`'s probe would be."""
    samples, size = job.workload.reader.batch_size, int(job.workload.dataset.record_length_bytes)
    levels: list[Level] = []
    for readers in (1, 2, 4, 8, 16):
        levels.append(_level(drive, readers, samples, size, pattern.LEVEL_SECONDS, seed + readers))
    readers = again or fewest_at_full_speed(levels)
    nearest = min(levels, key=lambda level: abs(level.readers - readers))
    for turn in range(pattern.REPEATS):
        seconds = min(40.0, repeat_seconds(nearest, readers))
        levels.append(_level(drive, readers, samples, size, seconds, seed + 100 + turn))
    return levels


def _level(drive: Drive, readers: int, samples: int, size: int, seconds: float, seed: int) -> Level:
    """Let readers read one batch after the other for so long: workers whose batches are all wanted at once."""
    steps, begin_ns = 100, round(START_SECONDS * 1e9)
    last_ns = begin_ns + round((pattern.SETTLE_SECONDS + seconds) * 1e9)
    while True:
        asked = Training(
            workers=readers, ahead=steps, steps=steps, step_seconds=0.0, batch_bytes=samples * size, requests=samples
        )
        rows = train(drive, asked, seed)
        if rows["started_ns"].max() > last_ns:
            break
        steps *= 2
    rows = rows[rows["started_ns"] <= last_ns]
    reads = np.zeros(len(rows), READ_DTYPE)
    for name, column in (("begin_ns", "started_ns"), ("end_ns", "finished_ns"), ("reader", "worker")):
        reads[name] = rows[column]
    reads["app_bytes"], reads["samples"] = samples * size, samples
    return judge_level(reads, readers, begin_ns, seconds)


def trained(drive: Drive, workload: Workload, ranks: int, seed: int) -> ModelRun:
    """Return what a run on such a drive gives."""
    samples, size = workload.reader.batch_size, int(workload.dataset.record_length_bytes)
    asked = Training(
        ranks=ranks,
        workers=workload.reader.read_threads,
        ahead=planned_job(workload, ranks).batches_ahead // workload.reader.read_threads,
        steps=workload.dataset.num_files_train // ranks // samples,
        step_seconds=workload.train.computation_time.mean,
        batch_bytes=samples * size,
        requests=samples,
        samples=samples,
    )
    return ModelRun(
        ranks=ranks,
        rows=train(drive, asked, seed),
        workload=workload,
        simulated_steps=asked.steps,
        planned_steps=asked.steps,
        read_ahead=False,
        storage_percent=100.0,
    )


def predicted(drive: Drive, workload: Workload, ranks: int, seed: int) -> Prediction:
    """Return what is predicted of so many ranks on such a drive, from a probe of it."""
    job = planned_job(workload, 1)
    levels = probed(drive, job, ranks * workload.reader.read_threads, seed)
    return predict(workload, calibrate_from_levels(job, levels, HostCosts(), cores=2, folder="virtual"), ranks=ranks)

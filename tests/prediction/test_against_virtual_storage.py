"""What is predicted from a probe is what a run gives, on storages that are no shared link; all in virtual time.

Their requests wait for a channel of the drive: that is not the shared link that the model makes of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from datagen.spec import DatasetSpec
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
from tests.prediction.test_calibration import workload
from tests.validation.virtual_drives import START_SECONDS, Drive, Training, link, train


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
    return predict(workload, calibrate_from_levels(job, levels, HostCosts(), cores=2), ranks=ranks)


def asked(*, ranks: int, batch: int, size: int, step_seconds: float, readers: int, steps: int) -> Workload:
    """Steps enough for what is measured to be of the storage and not of chance."""
    made = workload(ranks=ranks, steps=steps, step_seconds=step_seconds, read_threads=readers)
    data = DatasetSpec(
        data_folder="virtual", format="npz", num_files_train=ranks * steps * batch, record_length_bytes=size
    )
    return replace(made, dataset=data, reader=replace(made.reader, batch_size=batch))


NARROW, FASTER = link(lambda _: 60.0, spread=0.0), link(lambda _: 66.0, spread=0.0)
CHANNELS = Drive(channels=4, serve=lambda *_: 0.04)
JITTER = Drive(channels=4, serve=lambda _, random: float(random.uniform(0, 0.08)))


@pytest.mark.parametrize(
    ("drive", "ranks", "workload"),
    [
        (NARROW, 2, asked(ranks=2, batch=1, size=1_000_000, step_seconds=0.025, readers=2, steps=300)),
        (NARROW, 3, asked(ranks=3, batch=2, size=1_000_000, step_seconds=0.12, readers=4, steps=150)),
        (CHANNELS, 1, asked(ranks=1, batch=2, size=100_000, step_seconds=0.06, readers=1, steps=200)),
        (CHANNELS, 2, asked(ranks=2, batch=2, size=100_000, step_seconds=0.035, readers=4, steps=200)),
        (JITTER, 1, asked(ranks=1, batch=2, size=100_000, step_seconds=0.035, readers=2, steps=4000)),
    ],
    ids=["narrow", "readers that share", "one slow reader", "more readers than channels", "jitter"],
)
def test_a_probe_predicts_a_run(drive: Drive, ranks: int, workload: Workload) -> None:
    answer = predicted(drive, workload, ranks, seed=1)
    truth = trained(drive, workload, ranks, 2).outcome
    assert answer.shown.au_percent == pytest.approx(truth.au_percent, abs=1.5)
    assert answer.shown.samples_per_second == pytest.approx(truth.samples_per_second, rel=0.02)


def test_the_interval_holds_a_run_of_few_reads_that_differ() -> None:
    """A run of 100 steps is one of many that the same storage would give: the probe's own error is the smaller part."""
    short = asked(ranks=1, batch=2, size=100_000, step_seconds=0.035, readers=2, steps=100)
    answer = predicted(JITTER, short, 1, seed=3)
    low, high = answer.shown.au_interval_percent
    runs = np.array([trained(JITTER, short, 1, seed).outcome.au_percent for seed in range(30)])
    assert np.mean((low <= runs) & (runs <= high)) >= 0.85
    assert high - low < 8 * runs.std(), "not by saying nothing"


def test_what_differs_between_two_passes_is_part_of_the_interval() -> None:
    """The same readers got 60 and then 66 MB/s: nobody knows which of them comes next."""
    made = asked(ranks=2, batch=1, size=1_000_000, step_seconds=0.025, readers=2, steps=100)
    job = planned_job(made, 1)
    slower, faster = probed(NARROW, job, 4, seed=1), probed(FASTER, job, 4, seed=1)
    steady = calibrate_from_levels(job, slower, HostCosts(), cores=2)
    moved = calibrate_from_levels(job, [*slower[:-1], faster[-1]], HostCosts(), cores=2)
    assert steady.half_width_percent < 1
    assert 2 < moved.half_width_percent < 8
    assert 60 < moved.curve[-1].mb_per_second < 66


@pytest.mark.parametrize("decode_seconds", [0.001, 0.002, 0.01, 0.05])
def test_decoding_makes_no_storage_faster_or_slower(decode_seconds: float) -> None:
    """One reader alone gets 200 MB/s while it reads, all together 300 MB/s, whatever they do between two reads."""
    size, decode_ns, levels = 1_000_000, round(decode_seconds * 1e9), []
    for readers in (1, 2, 4, 8, 16, 32, 64):
        took_ns = round(1e9 * max(0.005 + decode_seconds, readers * size / 300e6))
        rows = []
        for reader in range(readers):
            for begin_ns in range(reader * took_ns // readers, 4_000_000_000, took_ns):
                rows.append((begin_ns, begin_ns + took_ns, size, 1, decode_ns, decode_ns, reader))
        levels.append(judge_level(np.array(rows, READ_DTYPE), readers, 0, 2.0))
    job = planned_job(asked(ranks=2, batch=1, size=size, step_seconds=0.025, readers=2, steps=100), 1)
    found = calibrate_from_levels(job, levels, HostCosts(), cores=2)
    curve = {point.readers: point.mb_per_second for point in found.curve}
    assert [curve[1], curve[64]] == [pytest.approx(200, rel=0.05), pytest.approx(300, rel=0.03)]
    assert 250 < curve[2] < 310


def test_one_pass_of_a_hundred_times_the_speed_is_no_storage_that_stands_still() -> None:
    """Its deviation from the mean is above 100 %, as where a probe's first passes were kept waiting."""
    made = asked(ranks=2, batch=1, size=1_000_000, step_seconds=0.025, readers=2, steps=100)
    job = planned_job(made, 1)
    passes = probed(NARROW, job, 4, seed=1)
    fast = replace(passes[-1], mb_per_second=6000.0)
    moved = calibrate_from_levels(job, [*passes, passes[-1], fast], HostCosts(), cores=2)
    low, high = predict(made, moved, ranks=2).shown.au_interval_percent
    assert 0 < low < high <= 100

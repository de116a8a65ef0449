"""The model keeps to what arithmetic says, breaks no rule of a loader, and predicts from a probe what a run gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.spec import DatasetSpec
from dlemu.config.duration import Duration
from dlemu.config.schema import Workload
from dlemu.jobs.training import pattern
from dlemu.jobs.training.pattern import READ_DTYPE, Level, fewest_at_full_speed, judge_level, repeat_seconds
from dlemu.jobs.training.plan import TrainingJob
from dlemu.jobs.training.prediction.batches import batch_bytes, bytes_by_file, planned_job
from dlemu.jobs.training.prediction.calibration import Calibration, CurvePoint, flat, given_speed, throughputs
from dlemu.jobs.training.prediction.event_model import EpochInput, HostCosts, simulate
from dlemu.jobs.training.prediction.from_reads import Reads, calibrate_from_levels, cost_quantiles
from dlemu.jobs.training.prediction.make_prediction import predict
from dlemu.jobs.training.prediction.model_run import MIN_STEPS, Model, ModelRun
from dlemu.jobs.training.prediction.prediction import Prediction
from dlemu.plan.samples import Plan, RankPlan
from tests.prediction.test_calibration import workload
from tests.prediction.test_make_prediction import DEMAND
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
        max_sustained_percent=100.0,
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


NARROW = link(lambda _: 60.0, spread=0.0)
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
    truth = trained(drive, workload, ranks, 2).figures
    assert answer.shown.au_percent == pytest.approx(truth.au_percent, abs=1.5)
    assert answer.shown.samples_per_second == pytest.approx(truth.samples_per_second, rel=0.02)


def test_the_interval_holds_a_run_of_few_reads_that_differ() -> None:
    """A run of 100 steps is one of many that the same storage would give: the probe's own error is the smaller part."""
    short = asked(ranks=1, batch=2, size=100_000, step_seconds=0.035, readers=2, steps=100)
    answer = predicted(JITTER, short, 1, seed=3)
    low, high = answer.shown.au_interval_percent
    runs = np.array([trained(JITTER, short, 1, seed).figures.au_percent for seed in range(30)])
    assert np.mean((low <= runs) & (runs <= high)) >= 0.85
    assert high - low < 8 * runs.std(), "not by saying nothing"


def test_a_probe_says_what_its_levels_say_together() -> None:
    """Two readers, in two passes, each get nearly as much as one; how the reads of four differ is of their queue."""
    random = np.random.default_rng(1)

    def level(readers: int, seconds: float, mb_per_second: float, spread: float) -> Level:
        reads = np.zeros((readers, 40), READ_DTYPE)
        reads["end_ns"] = np.cumsum(random.uniform(1 - spread, 1 + spread, reads.shape), axis=1) * 1e8
        reads["begin_ns"][:, 1:] = reads["end_ns"][:, :-1]
        reads["app_bytes"], reads["samples"], reads["reader"] = 2_000_000, 2, np.arange(readers)[:, np.newaxis]
        return Level(readers, seconds, reads.ravel(), mb_per_second, 1.0)

    alone, crowd = level(1, 5.0, 100.0, 0.0), level(4, 5.0, 200.0, 0.3)
    passes = [level(2, seconds, rate, 0.5) for seconds, rate in ((10.0, 150.0), (30.0, 190.0))]
    job = planned_job(asked(ranks=2, batch=2, size=1_000_000, step_seconds=0.025, readers=2, steps=100), 1)
    found = calibrate_from_levels(job, [alone, passes[0], crowd, passes[1]], FREE, cores=2, busy_cores=0.5)
    rows = np.concatenate([one.rows for one in passes])
    assert found == Calibration(
        source="a probe of virtual with 1, 2, 4 readers",
        curve=(CurvePoint(1, 100.0), CurvePoint(2, 180.0), CurvePoint(4, 200.0)),
        half_width_percent=100 * abs(150 / 180 - 1) * 0.5,
        work=cost_quantiles([Reads(rows["begin_ns"] / 1e9, rows["end_ns"] / 1e9, rows["app_bytes"], rows["reader"])]),
        samples_per_read=2,
        sample_bytes=1e6,
        bytes_factor=1e6 / float(bytes_by_file(job.workload.dataset).mean()),
        cores=2,
        busy_cores=0.5,
        costs=FREE,
    )
    assert len(found.work) > 1
    fast = level(2, 40.0, 20_000.0, 0.5)  # where the first passes were kept waiting
    kept_waiting = calibrate_from_levels(job, [alone, *passes, crowd, fast], FREE, cores=2)
    assert kept_waiting.half_width_percent == 50.0, "no storage that stands still"
    assert 0.7 < calibrate_from_levels(job, [alone, *passes[:1] * 2], FREE, cores=2).half_width_percent < 0.71


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


FREE = HostCosts(hand_over_seconds=0.0, epoch_start_seconds=0.0, step_seconds=0.0)
MB = 1e6


def scene(ranks: int = 2, steps: int = 100, **changes: Any) -> EpochInput:
    shape = (ranks, steps)
    settings: dict[str, Any] = {
        "weighted_bytes": np.full(shape, MB),
        "decode_seconds": np.zeros(shape),
        "compute_seconds": np.full(shape, 0.02),
        "rate": throughputs(flat(100.0), 64),
        "workers": 2,
        "window": 4,
        "in_turn": True,
        "synchronous": False,
        "cores": 4.0,
        "costs": FREE,
    }
    return EpochInput(**(settings | changes))


def au(scene: EpochInput) -> float:
    times = simulate(scene)
    return float(scene.compute_seconds.mean(axis=0).sum() / times.free[-1])


TAKES_5_MS = HostCosts(hand_over_seconds=0.0, take_seconds=0.005, epoch_start_seconds=0.0, step_seconds=0.0)
FAR = throughputs((CurvePoint(readers=1, mb_per_second=50.0), CurvePoint(readers=64, mb_per_second=3200.0)), 64)
FAST = throughputs(flat(1e6), 64)


def each(seconds: float, ranks: int = 2) -> Any:
    return np.full((ranks, 400), seconds)


@pytest.mark.parametrize(
    ("ranks", "changes", "wanted"),
    [
        # 100 MB/s feed two accelerators of 50 MB/s; first steps are the difference to 1
        *[(ranks, {}, share) for ranks, share in ((1, 1.0), (2, 1.0), (4, 0.5), (8, 0.25))],
        # 20 ms a read whoever reads beside: two readers make 100 batches/s, the accelerator takes 200
        (1, {"rate": FAR, "compute_seconds": each(0.005, 1)}, 0.5),
        (1, {"rate": FAR, "compute_seconds": each(0.005, 1), "workers": 4}, 1.0),
        # no readers: the trainer reads 10 ms, then computes 20 ms
        (1, {"workers": 0, "window": 0}, 2 / 3),
        # receiving a batch that is ready delays a host that asks after the step
        (1, {"costs": TAKES_5_MS, "synchronous": True}, 20 / 25),
        (1, {"costs": TAKES_5_MS}, 1.0),
        # four workers want a core 40 ms a batch, two cores: 50 batches/s, asked for 100
        (2, {"rate": FAST, "decode_seconds": each(0.04), "cores": 2.0}, 0.5),
        # four workers decode for 0.1 ms and sleep for 39 ms a batch: 100 batches/s on one core, as many as asked for
        (2, {"rate": FAST, "decode_seconds": each(0.0001), "sleep_seconds": each(0.039), "cores": 1.0}, 1.0),
    ],
)
def test_it_is_what_arithmetic_says(ranks: int, changes: dict[str, Any], wanted: float) -> None:
    assert au(scene(ranks, 400, **changes)) == pytest.approx(wanted, rel=0.02)


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.integers(1, 5),
    steps=st.integers(1, 30),
    workers=st.integers(0, 4),
    factor=st.integers(1, 3),
    drawn=st.fixed_dictionaries({"in_turn": st.booleans(), "synchronous": st.booleans()}),
    decodes=st.booleans(),
    sleeps=st.booleans(),
    late=st.sampled_from([0.0, 0.003]),
    seed=st.integers(0, 1000),
)
def test_no_rule_of_a_loader_is_broken(
    ranks: int, steps: int, workers: int, factor: int, drawn: Any, decodes: bool, sleeps: bool, late: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    shape = (ranks, steps)
    window = max(1, workers) * factor
    made = scene(
        ranks,
        steps,
        weighted_bytes=random.exponential(MB, shape),
        decode_seconds=random.exponential(0.005, shape) * decodes,
        sleep_seconds=random.exponential(0.005, shape) if sleeps else None,
        compute_seconds=random.uniform(0, 0.03, shape),
        workers=workers,
        window=window,
        costs=HostCosts(hand_over_seconds=0.001, epoch_start_seconds=0.002, step_seconds=late),
        **drawn,
    )
    times, near = simulate(made), 1e-9
    assert (times.read >= times.started).all()
    assert (times.finished >= times.read - near).all()
    assert (times.ready >= times.finished + made.costs.hand_over_seconds - near).all()
    assert (np.diff(times.ready, axis=1) >= -near).all(), "batches come in order"
    begin = np.maximum(times.ready, times.free[:-1])
    ends = (begin + made.compute_seconds).max(axis=0)
    assert times.free[1:] == pytest.approx(ends), "a step is over when the slowest is"
    if made.workers and times.ready.shape[1] > window:
        later = times.started[:, window:] - times.ready[:, : -window or None]
        assert (later >= -near).all(), "no more batches ahead than the window"
    busy = (times.read - times.started).sum()
    assert made.weighted_bytes.sum() <= 100 * MB * busy + 1, "the storage gives no more than it has"
    span = times.read.max() - times.started.min()
    assert made.weighted_bytes.sum() <= 100 * MB * span * (1 + near) + 1


AT_ONCE = given_speed(10_000.0, cores=2)


@pytest.mark.parametrize("changes", [{}, {"worker_streams": 3}, {"worker_streams": 3, "file_shuffle": True}])
def test_a_batch_has_the_bytes_of_the_files_that_the_plan_gives_it(changes: dict[str, Any]) -> None:
    shuffles = {"file_shuffle": False, "sample_shuffle": False, "seed_change_epoch": True}
    plan = Plan(num_files=60, num_samples_per_file=2, batch_size=4, ranks=2, seed=7, **shuffles | changes)
    by_file = np.arange(60.0) ** 2
    planned = [
        [by_file[RankPlan(plan, rank).sample_ids(2, step) // 2].sum() for step in range(1, 11)] for rank in (0, 1)
    ]
    assert batch_bytes(plan, by_file, 2, 10).tolist() == planned


@pytest.mark.parametrize(("preprocess", "kind", "took_ms"), [("sleep", "fixed", 20), ("burn", "normal", 40)])
def test_only_preprocessing_that_burns_shares_the_cores_with_decoding(preprocess: Any, kind: Any, took_ms: int) -> None:
    """Two ranks of a worker each, one core: 4 x 5 ms a batch asleep, or on a core that both want."""
    asked = workload(steps=30, step_seconds=0.001, read_threads=1, preprocess=preprocess)
    duration = Duration(type=kind, mean=0.005, stdev=0.00001)
    asked = replace(asked, reader=replace(asked.reader, preprocess_time=duration))
    decodes = replace(given_speed(10_000.0, cores=1), decode_seconds_per_sample=1e-6)
    rows = Model(asked, decodes).run(2).rows
    assert np.median(rows["finished_ns"] - rows["started_ns"]) / 1e6 == pytest.approx(took_ms, rel=0.05)


def test_a_part_of_the_accelerators_has_its_part_of_files_storage_and_hosts() -> None:
    """20 of 40, each of which decodes as long as 0.8 of its part of a core allows."""
    asked = workload(ranks=40, steps=200)
    curve = (
        CurvePoint(readers=8, mb_per_second=0.4 * 40 * DEMAND),
        CurvePoint(readers=60, mb_per_second=0.7 * 40 * DEMAND),
    )
    known = replace(AT_ONCE, curve=curve)
    whole, part = (Model(asked, known).run(40, max_rows=640, shrinks=one) for one in (False, True))
    assert (whole.ranks, part.ranks) == (40, 20)
    assert part.planned_steps == whole.planned_steps == 200
    assert part.simulated_steps == MIN_STEPS + 2
    assert part.figures.au_whole_percent == pytest.approx(whole.figures.au_whole_percent, abs=3)
    assert 2 * part.figures.samples_per_second == pytest.approx(whole.figures.samples_per_second, rel=0.03)
    decoding = replace(known, decode_seconds_per_sample=0.01, cores=24.0)
    both = [Model(asked, decoding).run(40, max_rows=640, shrinks=one) for one in (False, True)]
    assert both[1].figures.au_whole_percent == pytest.approx(both[0].figures.au_whole_percent, abs=3)
    assert Model(asked, known).run(40, max_rows=641, shrinks=True).ranks == 40


@pytest.mark.parametrize(("decode_ms", "au"), [(10.0, 62.5), (1.0, 100.0), (40.0, 25.0)])
def test_a_trainer_that_waits_leaves_its_core_to_the_readers(decode_ms: float, au: float) -> None:
    """One core: 40 ms of each step for the trainer, and as much for each of the batch's 4 samples as a reader decodes.

    So a step takes the sum of both, or the 50 ms of its computation; beside a trainer that never waits, readers have
    a fifth of the core.
    """
    asked = workload(ranks=1, steps=400, read_threads=4)
    asked = replace(asked, train=replace(asked.train, step_cpu_time=Duration(mean=0.040)))
    decoding = replace(AT_ONCE, decode_seconds_per_sample=decode_ms / 1000, cores=1.0)
    found = Model(asked, decoding).run(1).figures.au_whole_percent
    assert found == pytest.approx(min(100.0, 100 * 0.050 / (0.040 + 4 * decode_ms / 1000)), abs=3)
    assert found == pytest.approx(au, abs=3)

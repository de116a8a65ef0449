"""Simulates a whole run: the epochs of a workload, for a number of accelerators on a calibrated storage.

Of a run with more than `max_rows` rank-steps (ranks x steps), only the first epochs are simulated, or the first steps
of the first epoch. With `shrinks`, a fraction of its accelerators run on the same fraction of files, storage and hosts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from datagen.errors import UserError
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.jobs.training.plan import Block, Epoch, TrainingJob
from dlemu.jobs.training.prediction import batches
from dlemu.jobs.training.prediction.calibration import Calibration, CurvePoint, throughputs
from dlemu.jobs.training.prediction.event_model import EpochInput, EpochTimes, simulate
from dlemu.jobs.training.prediction.prediction import EndedBy, SimulatedFigures
from dlemu.jobs.training.steplog import STEP_DTYPE, TRAINING, StepRows
from dlemu.metrics.au import au_dlio_percents, au_percent, kept_rows, sustained_au
from dlemu.metrics.rates import Floats, first_batch_seconds, over_epochs, per_second, training_ns
from dlemu.metrics.rows import StepTable, as_table
from dlemu.results.wording import count

MAX_ROWS = 300_000  # maximum rank-steps of a simulation; they take 2 to 3 seconds
MIN_STEPS = 30  # steps of an epoch, besides those read ahead, for which its middle counts more than its two ends


@dataclass(frozen=True, eq=False)
class ModelRun:
    """A simulated run. Its metrics are computed when they are first used: most runs need only one AU."""

    ranks: int
    rows: StepRows
    workload: Workload
    simulated_steps: int  # steps per rank
    planned_steps: int
    read_ahead: bool  # whether the batches of all counted steps may have been read ahead, during excluded steps
    max_sustained_percent: float  # AU that the highest throughput of this many readers allows
    # Simulates longer epochs; set if those of this run are so short that read-ahead hides what the storage sustains
    simulate_longer: Callable[[], ModelRun] | None = None

    @cached_property
    def figures(self) -> SimulatedFigures:
        """All figures of the run, by the formulas for measured runs."""
        rows, metric = self._table, self.workload.metric
        dlio = au_dlio_percents(rows, metric.exclude_start_steps, metric.exclude_end_steps)
        return SimulatedFigures(
            au_percent=self.au("au"),
            au_sustained_percent=self.au("sustained"),
            au_whole_percent=self.au("rules"),
            au_dlio_v1_percent=over_epochs([v1 for _, v1 in dlio]).mean,
            samples_per_second=self.samples_per_second,
            app_mb_per_second=per_second(float(rows["app_bytes"].sum()) / 1e6, rows),
        )

    @cached_property
    def longer(self) -> ModelRun | None:
        """The same run with longer epochs; None if its own are long enough."""
        return None if self.simulate_longer is None else replace(self.simulate_longer(), simulate_longer=None)

    @property
    def training_seconds(self) -> float:
        return training_ns(self._table) / 1e9

    @property
    def first_batch_seconds(self) -> float:
        """Wait for the first batch of an epoch, mean over epochs."""
        return first_batch_seconds(self._table).mean or 0.0

    def au(self, by: str) -> float:
        """Return the AU, in percent, that is compared with the threshold when `metric.verdict` is `by`."""
        if by == "rules":
            return au_percent(self._table)
        metric = self.workload.metric
        kept = kept_rows(self._table, metric.exclude_start_steps, metric.exclude_end_steps)
        headline = min(au_percent(kept), 100.0)  # time stamps are rounded to nanoseconds
        if by == "au":
            return headline
        sustained = sustained_au(self._table, kept).mean if self.longer is None else self.longer.au(by)
        return min(headline, self.max_sustained_percent, math.nan if sustained is None else sustained)

    @property
    def samples_per_second(self) -> float:
        return per_second(float(self.rows["samples"].sum()), self._table)

    @cached_property
    def _table(self) -> StepTable:
        return as_table(self.rows)


@dataclass(frozen=True, eq=False)
class Model:
    """A workload on a calibrated storage, for any number of accelerators."""

    workload: Workload
    calibration: Calibration
    hosts: int = 1
    assumes_files: bool = False  # whether each number of accelerators has as many files as it needs

    @cached_property
    def _by_file(self) -> Floats:
        return batches.bytes_by_file(self.workload.dataset)

    @property
    def mean_sample_bytes(self) -> float:
        """Mean bytes that the storage reads for a sample."""
        return float(self._by_file.mean()) * self.calibration.bytes_factor

    @property
    def min_steps(self) -> int:
        """Steps that an epoch needs for an AU: those that the settings exclude, and one that counts."""
        metric = self.workload.metric
        return metric.exclude_start_steps + metric.exclude_end_steps + 1

    def max_ranks(self) -> dict[EndedBy, float]:
        """Return the largest numbers of accelerators for which files and cores suffice; infinity for no limit."""
        samples = self.workload.dataset.num_files_train * self.workload.dataset.num_samples_per_file
        most = samples // (self.workload.reader.batch_size * self.min_steps)

        def negative_steps(ranks: int) -> int:  # streams are read by file, so a rank's last samples may be left out
            return -batches.planned_job(self.workload, ranks).train_plan.steps_per_epoch

        by_files = bisect_right(range(1, most + 1), -self.min_steps, key=negative_steps)
        trainer_cores, cores = self._trainer_cores(), self.hosts * self.calibration.cores_to_share
        by_cores = math.ceil(cores / trainer_cores) - 1 if trainer_cores and math.isfinite(cores) else math.inf
        return {"files": math.inf if self.assumes_files else by_files, "cores": by_cores}

    def with_files_for(self, ranks: int) -> Model:
        """Return the model for `ranks` accelerators; with `assumes_files`, with enough files for MIN_STEPS steps."""
        if not self.assumes_files:
            return self
        data, batch_size = self.workload.dataset, self.workload.reader.batch_size
        steps = max(self.min_steps, MIN_STEPS + batches.planned_job(self.workload, ranks).batches_ahead)
        files = max(data.num_files_train, math.ceil(ranks * batch_size * steps / data.num_samples_per_file))
        enough = replace(self.workload, dataset=replace(data, num_files_train=files))
        return replace(self, workload=enough, assumes_files=False)

    def with_readers(self, times: int) -> Model:
        """Return the model with `times` as many readers, and a prefetch queue as many times as deep."""
        reader = self.workload.reader
        threads = times * max(1, reader.read_threads)
        more_readers = replace(reader, read_threads=threads, prefetch_size=times * reader.prefetch_size)
        return replace(self, workload=replace(self.workload, reader=more_readers))

    def run(
        self, ranks: int, *, speedup: float = 1.0, max_rows: int = MAX_ROWS, shrinks: bool = False, seed: int = 0
    ) -> ModelRun:
        """Simulate a run on a storage `speedup` times as fast as calibrated; raises UserError if no step counts."""
        job = batches.planned_job(self.workload, ranks)
        batches_ahead, train = job.batches_ahead, self.workload.train
        long_epoch = MIN_STEPS + batches_ahead  # steps
        if not self.assumes_files:
            self._refuse_too_short(job)
        divisor = max(1, ranks * long_epoch // max_rows) if shrinks else 1
        if divisor > 1 or self.assumes_files:
            model = self._shrunk(divisor) if divisor > 1 else self.with_files_for(ranks)
            return model.run(max(1, ranks // divisor), speedup=speedup, max_rows=max_rows, seed=seed)
        reader, data, calibration = self.workload.reader, self.workload.dataset, self.calibration
        epochs = _first_epochs(job.schedule, ranks, max_rows, long_epoch)
        # Few readers leave a part of the throughput unused. Other jobs use that part first, and slow the readers down
        # only if both together could use more than the whole.
        without_others = speedup * throughputs(calibration.curve, ranks * max(1, reader.read_threads))
        rate = np.minimum(without_others, 1e6 * calibration.available_mb_per_second(speedup))
        times_longer = math.ceil(long_epoch / job.schedule[0].steps)
        simulate_longer = None
        if times_longer > 1:  # one epoch with as many times the files, simulated only for its sustained AU
            longer_data = replace(data, num_files_train=times_longer * data.num_files_train)
            one_epoch = replace(train, epochs=1, total_training_steps=-1)
            model = replace(self, workload=replace(self.workload, dataset=longer_data, train=one_epoch))
            max_rows = min(max_rows, 30_000)
            simulate_longer = partial(model.run, ranks, speedup=speedup, max_rows=max_rows, shrinks=True, seed=seed)
        shortest_block = min(block.steps for epoch in job.schedule for block in epoch.blocks)
        # The trainer holds one batch more, which it takes off the loader while a step computes.
        max_read_ahead = batches_ahead + 1 if batches_ahead and not train.synchronous else batches_ahead
        step_bytes = ranks * reader.batch_size * self.mean_sample_bytes
        demand = step_bytes / mean_seconds(train.computation_time)  # bytes/s, if no accelerator waits
        return ModelRun(
            ranks=ranks,
            rows=self._rows_with_trainers(job, epochs, rate, seed),
            workload=self.workload,
            simulated_steps=sum(epoch.steps for epoch in epochs),
            planned_steps=sum(epoch.steps for epoch in job.schedule),
            read_ahead=shortest_block - (self.min_steps - 1) <= max_read_ahead,
            max_sustained_percent=100.0 * float(rate.max()) / demand,
            simulate_longer=simulate_longer,
        )

    def _refuse_too_short(self, job: TrainingJob) -> None:
        """Raise UserError if too few samples, or a limit of steps, leave no step that counts."""
        plan, min_steps = job.train_plan, self.min_steps
        if plan.steps_per_epoch < min_steps:
            max_ranks, is_folder = min(self.max_ranks().values()), self.workload.dataset.source == "folder"
            hint = "name a folder with more files" if is_folder else "set dataset.num_files_train to what it will have"
            if max_ranks >= 1:
                hint = f"predict at most {max_ranks:g}, or {hint}"
            raise UserError(
                f"the dataset has {count(plan.num_samples, 'sample')}, too few for {count(min_steps, 'step')} x "
                f"{count(job.ranks, 'accelerator')} x batch {plan.batch_size} that an AU needs: {hint}"
            )
        longest = max(block.steps for epoch in job.schedule for block in epoch.blocks)
        if longest < min_steps:
            limits_run = 0 < self.workload.train.total_training_steps < min_steps
            setting = "train.total_training_steps" if limits_run else "checkpoint.steps_between_checkpoints"
            raise UserError(
                f"{setting}={longest} leaves no step to count: an AU leaves out {min_steps - 1} of each block of steps "
                f"(metric.exclude_start_steps, exclude_end_steps); set {setting} to {min_steps} or more"
            )

    def _shrunk(self, divisor: int) -> Model:
        """Return the model for 1 / `divisor` of the accelerators, on the same fraction of files, storage and hosts."""
        data, calibration = self.workload.dataset, self.calibration
        fewer_files = replace(data, num_files_train=max(1, data.num_files_train // divisor))
        curve = {max(1, point.readers // divisor): point.mb_per_second / divisor for point in calibration.curve}
        smaller = replace(
            calibration,
            curve=tuple(CurvePoint(*point) for point in sorted(curve.items())),
            cores=calibration.cores_to_share / divisor,
            others_mb_per_second=calibration.others_mb_per_second / divisor,
        )
        return replace(self, workload=replace(self.workload, dataset=fewer_files), calibration=smaller)

    def _rows_with_trainers(self, job: TrainingJob, epochs: Sequence[Epoch], rate: Floats, seed: int) -> StepRows:
        """Simulate epochs whose trainers use cores while they compute; raises UserError if they need all cores."""
        used_cores, cores = job.ranks * self._trainer_cores(), self.hosts * self.calibration.cores_to_share
        if used_cores >= cores:
            raise UserError(
                f"train.step_cpu_time of {job.ranks} accelerators needs {used_cores:.1f} cores, and there are "
                f"{cores:g}: the trainers alone exceed this host; predict fewer, or more --hosts"
            )
        # Trainers use their cores only while they compute: the higher the AU, the fewer cores are left to the readers.
        # Bisection finds the AU that the cores left at this AU allow.
        rows = self._rows(job, epochs, rate, cores - used_cores, seed)
        low = au_percent(rows) / 100
        high = au_percent(self._rows(job, epochs, rate, cores, seed)) / 100 if used_cores else low
        while high - low > 0.02:
            au = (low + high) / 2
            rows = self._rows(job, epochs, rate, cores - au * used_cores, seed)
            if au_percent(rows) > 100 * au:
                low = au
            else:
                high = au
        return rows

    def _trainer_cores(self) -> float:
        """Return how many cores `train.step_cpu_time` keeps busy for one accelerator that never waits."""
        train = self.workload.train
        seconds = mean_seconds(train.computation_time)
        return mean_seconds(train.step_cpu_time) / seconds if seconds else 0.0

    def _rows(self, job: TrainingJob, epochs: Sequence[Epoch], rate: Floats, cores: float, seed: int) -> StepRows:
        """Simulate epochs whose readers get bytes at `rate` (see `EpochInput`) and share `cores`."""
        reader, calibration, plan = self.workload.reader, self.calibration, job.train_plan
        random = np.random.default_rng([seed, job.ranks])
        delay_seconds = calibration.step_share * mean_seconds(self.workload.train.computation_time)
        costs = replace(
            calibration.costs,
            step_seconds=calibration.costs.step_seconds + delay_seconds,
            take_seconds=self.workload.recorded.hand_over_seconds if reader.tensors else 0.0,
        )
        workers = max(1, reader.read_threads)
        rows_of_epochs = []
        start_seconds = 0.0
        for epoch in epochs:
            planned_bytes = batches.batch_bytes(
                plan, self._by_file, epoch.number, epoch.steps, group_rows=job.group_rows, workers=workers
            )
            app_bytes = calibration.bytes_factor * planned_bytes
            samples_per_read = max(plan.batch_size, job.group_rows)
            relative_costs = _draw_costs(calibration, samples_per_read, app_bytes.shape, random)
            decode_seconds = plan.batch_size * calibration.decode_seconds_per_sample
            preprocess_seconds = batches.preprocessing_seconds(self.workload, app_bytes.shape, random)
            sleeps = reader.preprocess == "sleep"
            core_seconds = decode_seconds + (np.zeros_like(preprocess_seconds) if sleeps else preprocess_seconds)
            inputs = EpochInput(
                weighted_bytes=app_bytes * relative_costs,
                decode_seconds=core_seconds,
                sleep_seconds=preprocess_seconds if sleeps else None,
                compute_seconds=batches.computation_seconds(job, epoch.number, epoch.steps),
                rate=rate,
                workers=reader.read_threads,
                window=job.batches_ahead,
                in_turn=job.traits.in_turn,
                synchronous=self.workload.train.synchronous,
                cores=cores if core_seconds.any() else np.inf,
                costs=costs,
            )
            times = simulate(inputs)
            rows = step_rows(epoch, inputs, times, start_seconds=start_seconds)
            rows["samples"], rows["app_bytes"] = plan.batch_size, np.rint(app_bytes).ravel()
            rows_of_epochs.append(rows)
            start_seconds += float(times.free[-1]) + 1.0  # no metric uses the time between epochs
        all_rows: StepRows = np.concatenate(rows_of_epochs)
        return all_rows


def _draw_costs(
    calibration: Calibration, samples_per_read: int, shape: tuple[int, ...], random: np.random.Generator
) -> Floats:
    """Return random relative costs (`Calibration.work`) of reads, with mean 1; those of larger reads vary less.

    A read as large as k measured ones has the mean cost of k draws. To limit the memory, at most 16 are drawn: then the
    deviations are scaled by sqrt(16 / k).
    """
    quantiles = np.array(calibration.work)
    if len(quantiles) < 2:
        return np.ones(shape)
    size = samples_per_read / calibration.samples_per_read  # in measured reads
    draws = min(max(1, round(size)), 16)
    mean_drawn: Floats = random.choice(quantiles, size=(*shape, draws)).mean(axis=-1)
    deviations = (mean_drawn - 1) * np.sqrt(draws / max(size, 1 / 16))
    costs = np.maximum(0.02, 1 + deviations)  # 0.02: each read takes some time
    return np.asarray(costs / costs.mean())


def _first_epochs(schedule: tuple[Epoch, ...], ranks: int, max_rows: int, min_steps: int) -> tuple[Epoch, ...]:
    """Return the first epochs with at most `max_rows` rank-steps in total, or the first steps of the first epoch."""
    first, max_steps = schedule[0], max(min_steps, max_rows // ranks)
    steps_so_far = np.cumsum([epoch.steps for epoch in schedule])
    epochs_that_fit = int(np.searchsorted(steps_so_far, max_rows / ranks, side="right"))
    if epochs_that_fit > 1 or first.steps <= max_steps:
        return schedule[: max(1, epochs_that_fit)]
    return (Epoch(first.number, (Block(1, max_steps, checkpoint=False),), evaluation=False),)


def step_rows(epoch: Epoch, inputs: EpochInput, times: EpochTimes, *, start_seconds: float) -> StepRows:
    """Return the simulated epoch as rows of a step log, without samples and bytes; blocks follow without a pause."""
    ranks, steps = times.ready.shape
    rows = np.zeros((ranks, steps), STEP_DTYPE)

    def stamp(seconds: object) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        return np.rint((np.asarray(seconds) + start_seconds) * 1e9).astype(np.int64)

    free, overhead_ns = stamp(times.free), round(inputs.costs.step_seconds * 1e9)
    compute = np.rint(inputs.compute_seconds * 1e9).astype(np.int64)
    rows["rank"], rows["phase"] = np.arange(ranks)[:, np.newaxis], TRAINING
    rows["epoch"], rows["step"] = epoch.number, np.arange(1, steps + 1)
    rows["block"] = np.repeat([block.number for block in epoch.blocks], [block.steps for block in epoch.blocks])[:steps]
    rows["free_ns"], rows["compute_ns"] = free[:-1], compute
    rows["ready_ns"] = stamp(times.ready)
    begin = np.maximum(rows["ready_ns"], rows["free_ns"])
    end = begin + compute
    step_end = np.maximum(free[1:], end.max(axis=0))  # rounding must not let a step end before its slowest rank
    rows["free_ns"][:, 1:] = step_end[:-1]
    rows["wait_ns"] = np.maximum(0, begin - rows["free_ns"])
    rows["sync_ns"] = step_end - (rows["free_ns"] + rows["wait_ns"] + compute)
    rows["met_ns"] = step_end + overhead_ns
    rows["asked_ns"] = np.concatenate([np.full((ranks, 1), free[0]), rows["met_ns"][:, :-1]], axis=1)
    rows["got_ns"] = np.maximum(rows["ready_ns"], rows["asked_ns"])
    rows["slept_ns"] = np.maximum(end, rows["got_ns"])  # a host whose delay is longer than a step does not sleep
    rows["started_ns"], rows["finished_ns"] = stamp(times.started), stamp(times.finished)
    rows["read_ns"] = stamp(times.read) - rows["started_ns"]
    rows["decode_ns"] = rows["finished_ns"] - rows["started_ns"] - rows["read_ns"]
    flat: StepRows = rows.reshape(-1)
    return flat

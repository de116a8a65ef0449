"""A whole run of the model: the epochs of a workload with so many accelerators on a calibrated storage."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from datagen.errors import UserError
from dlemu.config.duration import mean_seconds
from dlemu.config.schema import Workload
from dlemu.jobs.training.prediction.batches import (
    batch_bytes,
    bytes_by_file,
    computation_seconds,
    planned_job,
    preprocessing_seconds,
)
from dlemu.jobs.training.prediction.calibration import Calibration
from dlemu.jobs.training.prediction.curve import CurvePoint, rates
from dlemu.jobs.training.prediction.event_model import Scene, simulate
from dlemu.jobs.training.prediction.outcome import EPOCH_GAP_SECONDS, SimulatedFigures, au_of, outcome_of, step_rows
from dlemu.jobs.training.schedule import Block, Epoch
from dlemu.jobs.training.steplog import StepRows
from dlemu.metrics.rates import per_second
from dlemu.metrics.rows import StepTable, in_order

Floats = NDArray[np.float64]

MOST_ROWS = 300_000
"""Rank-steps that one prediction simulates at most: 2 to 3 seconds."""
SUSTAINED_ROWS = 30_000
"""Rank-steps of a simulation whose only use is to see what the storage sustains."""
LEAST_STEPS = 30
"""Of an epoch, beside those that are read ahead: shorter ones say little of its middle."""


@dataclass(frozen=True, eq=False)
class ModelRun:
    """A simulated run. Its figures are computed when they are first used: most runs are simulated for one AU."""

    ranks: int
    rows: StepRows
    workload: Workload
    simulated_steps: int
    """Of each rank."""
    planned_steps: int
    read_ahead: bool
    """All batches whose steps count may be read while the first step, which does not, waits."""
    storage_percent: float
    """The AU that the fastest rate of this many readers sustains: no more than that is sustained."""
    longer: ModelRun | None = None
    """A run of longer epochs, whose sustained AU counts where this run's epochs are too short for one."""

    @cached_property
    def outcome(self) -> SimulatedFigures:
        """All figures of the run."""
        return outcome_of(self._table, self.workload, self.au("sustained"))

    def au(self, by: str) -> float:
        """Return one AU in percent, a key of VERDICT_AUS: much less work than all of `outcome`."""
        if by != "sustained":
            return au_of(self._table, self.workload, by)
        lasting = au_of(self._table, self.workload, by) if self.longer is None else self.longer.au(by)
        return min(au_of(self._table, self.workload, "au"), self.storage_percent, lasting)

    @property
    def samples_per_second(self) -> float:
        """Samples/s of all ranks simulated."""
        return per_second(float(self.rows["samples"].sum()), self._table)

    @cached_property
    def _table(self) -> StepTable:
        return in_order(self.rows)


class Model:
    """A workload on a calibrated storage, for any count of accelerators.

    `assumes_files`: a count that the workload's files are too few for is simulated with as many files as it needs.
    """

    def __init__(
        self, workload: Workload, calibration: Calibration, *, hosts: int = 1, assumes_files: bool = False
    ) -> None:
        self.workload, self.calibration, self.hosts = workload, calibration, hosts
        self.assumes_files = assumes_files
        self._by_file = bytes_by_file(workload.dataset)

    @property
    def least_steps(self) -> int:
        """Steps that an epoch must have for an AU: those that it leaves out, and one."""
        metric = self.workload.metric
        return metric.exclude_start_steps + metric.exclude_end_steps + 1

    def most_ranks(self) -> dict[str, float]:
        """Return how many accelerators the "files" are enough for (infinity if they are assumed), and the "cores"."""
        samples = self.workload.dataset.num_files_train * self.workload.dataset.num_samples_per_file
        files = math.inf if self.assumes_files else samples // (self.workload.reader.batch_size * self.least_steps)
        each = self._trainer_cores()
        cores = math.ceil(self.hosts * self.calibration.cores / each) - 1 if each else math.inf
        return {"files": files, "cores": cores}

    def with_files_for(self, ranks: int) -> Model:
        """Return the model of so many accelerators: where files are assumed, with enough for an epoch's middle."""
        if not self.assumes_files:
            return self
        data, batch_size = self.workload.dataset, self.workload.reader.batch_size
        steps = max(self.least_steps, LEAST_STEPS + planned_job(self.workload, ranks).batches_ahead)
        files = max(data.num_files_train, math.ceil(ranks * batch_size * steps / data.num_samples_per_file))
        enough = replace(self.workload, dataset=replace(data, num_files_train=files))
        return Model(enough, self.calibration, hosts=self.hosts)

    def run(
        self,
        ranks: int,
        *,
        speed: float = 1.0,
        most_rows: int = MOST_ROWS,
        shrinks: bool = False,
        seed: int = 0,
        as_it_is: bool = False,
    ) -> ModelRun:
        """Simulate so many accelerators, on a storage that is `speed` times as fast as calibrated.

        `shrinks`: of so many that even a short epoch has more than `most_rows`, every so-many-th is simulated, on as
        small a part of the storage and the hosts. `as_it_is`: where epochs are short, the sustained AU is not looked
        for in a longer one.

        Raises UserError where the samples do not fill the steps that an AU needs.
        """
        job = planned_job(self.workload, ranks)
        part = max(1, ranks * (LEAST_STEPS + job.batches_ahead) // most_rows) if shrinks else 1
        if self.assumes_files and part == 1:
            run = self.with_files_for(ranks).run
            return run(ranks, speed=speed, most_rows=most_rows, seed=seed, as_it_is=as_it_is)
        plan = job.train_plan
        if plan.steps_per_epoch < self.least_steps and not self.assumes_files:
            most = min(self.most_ranks().values())
            steps = f"{self.least_steps} {'step' if self.least_steps == 1 else 'steps'}"
            raise UserError(
                f"{plan.num_samples} samples do not fill {steps} of {ranks} accelerators x batch "
                f"{plan.batch_size}, the fewest that have an AU: predict at most {most:g}, or set "
                "dataset.num_files_train to what the dataset will have"
            )
        reader, calibration = self.workload.reader, self.calibration
        if part > 1:
            return self._every(part, ranks, speed=speed, most_rows=most_rows, seed=seed, as_it_is=as_it_is)
        workers, cores = reader.read_threads, self._cores_for_readers(ranks)
        window = job.batches_ahead
        epochs = _cut(job.schedule, ranks, most_rows, LEAST_STEPS + window)
        # Where latency keeps readers from all that there is, others take of what is left over first.
        alone = speed * rates(calibration.curve, ranks * max(1, workers))
        rate = np.minimum(alone, 1e6 * calibration.left_mb_per_second(speed))
        random = np.random.default_rng([seed, ranks])
        parts, start, costs = [], 0.0, calibration.costs
        for epoch in epochs:
            app = calibration.bytes_factor * batch_bytes(plan, self._by_file, epoch.number, epoch.steps)
            work = app * _draws(calibration, plan.batch_size, app.shape, random)
            decode = plan.batch_size * calibration.decode_seconds_per_sample
            pause = preprocessing_seconds(self.workload, app.shape, random)
            burns = reader.preprocess == "burn" and bool(pause.any())
            scene = Scene(
                app_bytes=app,
                work_bytes=work,
                after_seconds=decode + pause + costs.between_seconds,
                compute_seconds=computation_seconds(self.workload, ranks, epoch.number, epoch.steps),
                rate=rate,
                workers=workers,
                window=window,
                in_turn=job.traits.in_turn,
                synchronous=self.workload.train.synchronous,
                cores=cores if decode or burns else np.inf,
                costs=replace(costs, hand_over_seconds=max(0.0, costs.hand_over_seconds - costs.between_seconds)),
            )
            times = simulate(scene)
            parts.append(step_rows(epoch, scene, times, start_seconds=start, batch_size=plan.batch_size))
            start += float(times.free[-1]) + EPOCH_GAP_SECONDS
        rows: StepRows = np.concatenate(parts)
        longer, shortest = None, LEAST_STEPS + window
        if not as_it_is and job.schedule[0].steps < shortest:
            # The batches read ahead in so short an epoch say nothing of one that goes on.
            lasting = self._lasting(math.ceil(shortest / job.schedule[0].steps))
            rows_of_it = min(most_rows, SUSTAINED_ROWS)
            longer = lasting.run(ranks, speed=speed, most_rows=rows_of_it, shrinks=True, seed=seed, as_it_is=True)
        metric, synchronous = self.workload.metric, self.workload.train.synchronous
        counted = min(block.steps for epoch in job.schedule for block in epoch.blocks)
        counted -= metric.exclude_start_steps + metric.exclude_end_steps
        return ModelRun(
            ranks=ranks,
            rows=rows,
            workload=self.workload,
            simulated_steps=sum(epoch.steps for epoch in epochs),
            planned_steps=sum(epoch.steps for epoch in job.schedule),
            read_ahead=counted <= (window + 1 if window and not synchronous else window),
            storage_percent=100.0 * float(rate.max()) / self._demand(ranks),
            longer=longer,
        )

    def _cores_for_readers(self, ranks: int) -> float:
        """Return the cores that the trainers' own computing leaves; raises UserError where it leaves none."""
        taken, cores = ranks * self._trainer_cores(), self.hosts * self.calibration.cores
        if taken >= cores:
            raise UserError(
                f"train.step_cpu_time of {ranks} accelerators needs {taken:.1f} cores, and there are {cores:g}: the "
                "trainers alone exceed this host; predict fewer, or more --hosts"
            )
        return cores - taken

    def _trainer_cores(self) -> float:
        """Return the cores that one trainer's own computing keeps busy."""
        train = self.workload.train
        seconds = mean_seconds(train.computation_time)
        return mean_seconds(train.step_cpu_time) / seconds if seconds else 0.0

    def _demand(self, ranks: int) -> float:
        """Return the bytes/s that so many accelerators take when they never wait."""
        reader, train = self.workload.reader, self.workload.train
        return ranks * reader.batch_size * self.mean_sample_bytes / mean_seconds(train.computation_time)

    def _lasting(self, times: int) -> Model:
        """Return the same with one epoch of so many times the files."""
        data, train = self.workload.dataset, self.workload.train
        more = replace(
            self.workload,
            dataset=replace(data, num_files_train=times * data.num_files_train),
            train=replace(train, epochs=1, total_training_steps=-1),
        )
        return Model(more, self.calibration, hosts=self.hosts)

    def _every(self, part: int, ranks: int, *, speed: float, most_rows: int, seed: int, as_it_is: bool) -> ModelRun:
        """Simulate a part of the accelerators, on the same part of files, storage and hosts."""
        data, calibration = self.workload.dataset, self.calibration
        fewer = replace(data, num_files_train=max(1, data.num_files_train // part))
        readers = {max(1, point.readers // part): point.mb_per_second / part for point in calibration.curve}
        curve = tuple(CurvePoint(readers=count, mb_per_second=rate) for count, rate in sorted(readers.items()))
        smaller = Model(
            replace(self.workload, dataset=fewer),
            replace(
                calibration,
                curve=curve,
                cores=calibration.cores / part,
                others_mb_per_second=calibration.others_mb_per_second / part,
            ),
            hosts=self.hosts,
            assumes_files=self.assumes_files,
        )
        return smaller.run(max(1, ranks // part), speed=speed, most_rows=most_rows, seed=seed, as_it_is=as_it_is)

    @property
    def mean_sample_bytes(self) -> float:
        """Mean bytes read of a sample."""
        return float(self._by_file.mean()) * self.calibration.bytes_factor

    def null_samples_per_second(self) -> float:
        """Return what the storage gives at most, in samples/s: the X of the null model."""
        return self.calibration.left_mb_per_second() * 1e6 / self.mean_sample_bytes

    def with_readers(self, times: int) -> Model:
        """Return the same with so many times as many readers."""
        reader = self.workload.reader
        more = replace(
            reader, read_threads=times * max(1, reader.read_threads), prefetch_size=times * reader.prefetch_size
        )
        return Model(replace(self.workload, reader=more), self.calibration, hosts=self.hosts)

    def with_cores(self, cores: float) -> Model:
        """Return the same on hosts with so many cores."""
        return Model(self.workload, replace(self.calibration, cores=cores), hosts=self.hosts)


def _draws(calibration: Calibration, batch_size: int, shape: tuple[int, ...], random: np.random.Generator) -> Floats:
    """Return how much more or less than the mean reads take; those of many samples differ less than of few."""
    quantiles = np.array(calibration.work)
    if len(quantiles) < 2:
        return np.ones(shape)
    times = batch_size / calibration.samples_per_read
    together = max(1, round(times))
    drawn: Floats = random.choice(quantiles, size=(*shape, min(together, 16))).mean(axis=-1)  # 16: memory
    wider = np.sqrt(min(together, 16) / max(times, 1 / 16))  # the spread of all, from the 16 drawn
    spread = np.maximum(0.02, 1 + (drawn - 1) * wider)  # no read takes no time: 2 % of the mean at least
    return np.asarray(spread / spread.mean())


def _cut(schedule: tuple[Epoch, ...], ranks: int, most_rows: int, least_steps: int) -> tuple[Epoch, ...]:
    """Return as many epochs, or of the first as many steps, as may be simulated."""
    kept: list[Epoch] = []
    steps = 0
    for epoch in schedule:
        if kept and (steps + epoch.steps) * ranks > most_rows:
            break
        kept.append(epoch)
        steps += epoch.steps
    first = kept[0]
    wanted = max(least_steps, most_rows // ranks)
    if len(kept) > 1 or first.steps <= wanted:
        return tuple(kept)
    return (Epoch(first.number, (Block(1, wanted, checkpoint=False),), evaluation=False),)

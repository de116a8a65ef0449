"""One rank's run: start the loader, measure the emulator's ceiling, train all epochs, collect the log on rank 0."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import psutil

from datagen.storage.storage_base import open_storage
from dlemu.accelerators.accelerator_base import Phase, draw_ns
from dlemu.config.duration import is_zero, mean_seconds
from dlemu.jobs.training.loop import BatchQueue, PrefetchQueue, StepLoop, StepRange, Watcher
from dlemu.jobs.training.measured import Journal
from dlemu.jobs.training.plan import Block, TrainingJob
from dlemu.jobs.training.scaling import try_other_readers
from dlemu.jobs.training.steplog import EVALUATION, TRAINING, StepLog, log_name
from dlemu.loaders.loader_base import Loader
from dlemu.machine.clock import BurnerThreads, Clock, MonotonicClock
from dlemu.machine.environment import describe_storage
from dlemu.metrics.au import kept_rows
from dlemu.metrics.loss import emulated_percent
from dlemu.ranks import Comm
from dlemu.results.measured import MeasuredLog
from dlemu.results.wording import count
from dlemu.runner.recording import RankRecord
from dlemu.runner.run_folder import StopFile

if TYPE_CHECKING:  # most runs save no checkpoints
    from dlemu.checkpoints.save import TrainingSaver

_MAX_FOLDERS = 64  # per split, whose devices are looked up: each may be a mount, and a dataset can have thousands
CEILING_PATIENCE_SECONDS = 20.0  # time limit of the ceiling: thousands of short steps on few cores would take minutes


def run_rank(
    job: TrainingJob,
    comm: Comm,
    record: RankRecord[Journal],
    watch: Watcher | None = None,
    on_activity: Callable[[str], None] = lambda activity: None,
) -> MeasuredLog[Journal] | None:
    """Run this rank to its end; return the log of all ranks on rank 0, None on others. Raises DlemuError.

    `on_activity` is called with a phrase for each activity before the first step and after the last. After an error the
    loader's workers still run: they end with this process, so the caller must end it.
    """
    layouts = [layout for layout in (job.dataset.train, job.dataset.valid) if layout is not None]
    folders = (folder for layout in layouts for folder in layout.folders()[:_MAX_FOLDERS])
    record.start(lambda: open_storage(job.workload.storage_spec.buffered).device_folders(folders))
    loader = job.loader_class()(job.loader_spec(comm.rank))
    try:
        ceiling = ", and measuring the AU that they reach without storage" if job.ceiling_steps else ""
        on_activity(f"starting {count(job.ranks, 'rank')}{ceiling}")
        trainer = _Trainer(job, comm, loader, record, watch)
        trainer.run()
    except Exception as error:
        explained = loader.explain(error)
        if explained is not None:
            raise explained from error
        raise
    trial = ", testing whether more readers would be faster" if job.workload.metric.scaling_seconds else ""
    on_activity(f"ending the run: stopping telemetry and loaders{trial}")
    cpu_seconds = _cpu_seconds() - trainer.cpu_seconds_before
    record.stop()
    record.journal = record.journal.noting(scaling=try_other_readers(job, comm, trainer.log.rows))
    loader.close()
    return record.collect(trainer.log.rows.copy(), cpu_seconds=cpu_seconds)


def measure_ceiling(job: TrainingJob, comm: Comm) -> float | None:
    """Measure the ceiling without a run: see `_Trainer.measure_ceiling`. Collective."""
    loader = job.loader_class()(job.loader_spec(comm.rank))
    journal = Journal(wall_clock_offset_ns=0, started_ns=time.monotonic_ns())
    trainer = _Trainer(job, comm, loader, RankRecord(job, comm, journal, job.workload.dataset.data_folder))
    loader.start()
    percent = trainer.measure_ceiling()
    comm.all_reduce_max(time.monotonic_ns())
    loader.close()
    return percent


def _cpu_seconds() -> float:
    """Return the CPU time used so far by this process and by those it started, including ended ones."""
    process = psutil.Process()
    own, *running = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(cpu.user + cpu.system for cpu in (own, *running)) + own.children_user + own.children_system


class _Trainer:
    """Runs the epochs of one rank: ceiling, eviction, training, checkpoints, evaluation."""

    def __init__(
        self, job: TrainingJob, comm: Comm, loader: Loader, record: RankRecord[Journal], watch: Watcher | None = None
    ) -> None:
        self._job, self._comm, self._loader, self._record = job, comm, loader, record
        self._clock: Clock = MonotonicClock()
        self.log = StepLog(job.rows_per_rank, job.live_path(log_name(comm.rank)))
        self._accelerator = job.accelerator_class(job.accelerator_spec(comm.rank), self._clock)
        self._loop = StepLoop(
            accelerator=self._accelerator,
            comm=comm,
            clock=self._clock,
            log=self.log,
            watch=watch,
            stop=StopFile(job.live_folder) if comm.rank == 0 else None,
            burn=lambda seconds: self._burners.burn(seconds),  # created at first use: most runs burn nothing
        )
        self._saver: TrainingSaver | None = None
        if job.saves:
            from dlemu.checkpoints import save

            workload = job.workload
            self._saver = save.TrainingSaver(
                settings=workload.checkpoint,
                model=workload.model,
                storage=open_storage(replace(job.storage_spec.buffered, direct_writes=workload.checkpoint.odirect)),
                comm=comm,
                clock=self._clock,
                seed=job.seed,
                sync_seconds=job.timeout_seconds,
            )
        self.cpu_seconds_before = 0.0

    @cached_property
    def _burners(self) -> BurnerThreads:
        """As many threads as it takes to use the mean `step_cpu_time` within the mean `computation_time`."""
        train = self._job.workload.train
        cores = mean_seconds(train.step_cpu_time) / (mean_seconds(train.computation_time) or math.inf)
        return BurnerThreads(max(1, math.ceil(cores * (1 - 1e-6))))  # less a tolerance for rounding errors

    def run(self) -> None:
        self._loader.start()
        workload = self._job.workload
        self._record.describe(lambda: describe_storage(workload.storage_spec, workload.dataset.data_folder))
        ceiling = self.measure_ceiling()
        self._record.note(ceiling_au_percent=ceiling, started_ns=self._comm.all_reduce_max(self._clock.now_ns()))
        self.cpu_seconds_before = _cpu_seconds()
        for epoch in self._job.schedule:
            if self._job.evicts_before(epoch.number):
                from dlemu.jobs.training.evict import evict  # most runs evict nothing

                evict(self._job, self._comm.local_rank, self._comm.local_size, write_first=epoch.number == 1)
                self._comm.all_reduce_max(self._clock.now_ns())  # no rank reads while another one evicts
            self._record.mark()
            stopped = self._run_epoch(self._loop, TRAINING, "train", epoch.number, epoch.blocks)
            self._record.mark()
            if stopped:
                completed = int((self.log.rows["phase"] == TRAINING).sum())
                planned = sum(scheduled.steps for scheduled in self._job.schedule)
                self._record.note(stopped_after_steps=completed if completed < planned else None)
                break
            if epoch.evaluation:
                plan = self._job.valid_plan
                assert plan is not None  # checked by make_job
                blocks = (Block(1, plan.steps_per_epoch, checkpoint=False),)
                self._run_epoch(replace(self._loop, stop=None), EVALUATION, "valid", epoch.number, blocks)
        if self._saver is not None:
            self._record.note(checkpoints=(*self._record.journal.checkpoints, *self._saver.finish()))

    def measure_ceiling(self) -> float | None:
        """Return the AU of the same loop on null storage, in percent, on rank 0; None on others or if not measured."""
        steps = self._job.ceiling_steps
        if not steps:
            return None
        log = StepLog(steps)
        ends_ns = time.monotonic_ns() + round(CEILING_PATIENCE_SECONDS * 1e9)
        stop = (lambda: time.monotonic_ns() > ends_ns) if self._comm.rank == 0 else None
        loop = replace(self._loop, log=log, watch=None, stop=stop)
        self._run_epoch(loop, TRAINING, "ceiling", 0, (Block(1, steps, checkpoint=False),))
        logs = self._comm.gather(log.rows.copy())
        percent = math.nan if logs is None else emulated_percent(kept_rows(np.concatenate(logs), 1, 0))
        return None if math.isnan(percent) else percent

    def _run_epoch(self, loop: StepLoop, phase: int, data: Phase, epoch: int, blocks: Sequence[Block]) -> bool:
        """Run an epoch, with `phase` in its log, and save its checkpoints; return whether `loop.stop` ended it."""
        workload, steps = self._job.workload, sum(block.steps for block in blocks)
        compute_ns = self._accelerator.draw_compute_ns(data, epoch, steps)
        cpu_seconds = None  # of the trainer's own process, from the same random draws as compute_ns
        if data == "train" and not is_zero(workload.train.step_cpu_time):
            spec = self._job.accelerator_spec(self._comm.rank)
            cpu_seconds = draw_ns(workload.train.step_cpu_time, spec, epoch, steps) / 1e9
        free_ns = self._comm.all_reduce_max(self._clock.now_ns())
        batches = self._loader.batches(data, epoch, steps)
        queue = BatchQueue(batches, self._clock)
        if not workload.train.synchronous and workload.reader.read_threads:
            queue = PrefetchQueue(batches, self._clock, workload.timeout_seconds, self._comm.rank)
        steps_before = 0  # steps of the epoch before the block
        with queue:
            for block in blocks:
                in_block = slice(steps_before, steps_before + block.steps)
                step_range = StepRange(
                    phase=phase,
                    epoch=epoch,
                    block=block.number,
                    first_step=steps_before + 1,
                    compute_ns=compute_ns[in_block],
                    cpu_seconds=None if cpu_seconds is None else cpu_seconds[in_block],
                )
                if loop.run(step_range, free_ns, queue):
                    return True
                steps_before += block.steps
                if block.checkpoint and self._saver is not None:
                    queue.read_ahead()
                    released_ns, complete = self._saver.save(epoch, block.number)
                    self._record.note(checkpoints=(*self._record.journal.checkpoints, *complete))
                    free_ns = max(released_ns, self._comm.all_reduce_max(self._clock.now_ns()))
        return False

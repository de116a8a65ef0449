"""One rank's run, from its loader's start to the gathered log."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import psutil
from numpy.typing import NDArray

from datagen.inspection import Dataset
from datagen.storage.storage_base import open_storage
from dlemu.accelerators.accelerator_base import Accelerator, Phase, draw_ns
from dlemu.comm import Comm, within
from dlemu.comm.burn import BurnerThreads
from dlemu.comm.clock import Clock, MonotonicClock
from dlemu.comm.environment import describe_hosts, describe_storage
from dlemu.config.duration import is_zero
from dlemu.jobs.training.evict import evict
from dlemu.jobs.training.journal import CpuApart, Journal, StoppedEarly
from dlemu.jobs.training.loop import StepLoop, StepRange, Watcher
from dlemu.jobs.training.plan import TrainingJob, accelerator_class, step_threads
from dlemu.jobs.training.prefetch import BatchQueue, OnDemandQueue, PrefetchQueue
from dlemu.jobs.training.scaling import try_other_readers
from dlemu.jobs.training.schedule import Epoch
from dlemu.jobs.training.steplog import EVALUATION, STEP_DTYPE, TRAINING, StepLog, StepRows, log_name, read_log
from dlemu.loaders.loader_base import Loader, LoaderSpec
from dlemu.metrics.au import au_percent, kept_rows
from dlemu.results.journal import read_journal
from dlemu.runner.recording import Recording, recorded, recorder_for, stopped
from dlemu.runner.request_account import requests_so_far
from dlemu.runner.stopping import StopFile
from dlemu.telemetry import Recorder, Telemetry, read_logs

if TYPE_CHECKING:  # most runs save no checkpoints
    from dlemu.checkpoints.save import TrainingSaver

_MOST_FOLDERS = 64
"""Folders of files that are looked at: any may be a mount of its own, but there can be thousands."""
CEILING_PATIENCE_SECONDS = 20.0
"""Most time for the steps of the ceiling: thousands of short ones on few cores would take minutes."""


@dataclass(frozen=True)
class RunLog:
    """What a run measured; every published number is computed from it."""

    rows: StepRows
    """The step logs of all ranks."""
    journal: Journal
    telemetry: Telemetry = ()
    """What the recorders of the hosts read."""

    def __len__(self) -> int:
        return len(self.rows)


def run_rank(
    job: TrainingJob,
    comm: Comm,
    make_loader: Callable[[LoaderSpec], Loader],
    watch: Watcher | None = None,
    doing: Callable[[str], None] = lambda what: None,
) -> RunLog | None:
    """Run this rank to its end; return the whole run's log on rank 0, None elsewhere.

    `doing` is called with what goes on before the first step and after the last.

    Raises DlemuError with a message for users. The rank's rows up to then lie in `job.live_folder`; workers die with
    the rank, so after an error the process must end.
    """
    recorder = _recorder_of(job, comm)
    loader = make_loader(job.loader_spec(comm.rank))
    try:
        doing(
            f"starting {job.ranks} rank{'s' * (job.ranks != 1)}, and measuring the AU that they reach without storage"
        )
        trainer = _Trainer(job, comm, loader, watch, recorder)
        journal = trainer.run()
    except Exception as error:
        explained = loader.explain(error)
        if explained is not None:
            raise explained from error
        raise
    doing("ending the run: telemetry, loaders, and whether other readers would get more")
    cpu_seconds = trainer.cpu_seconds()
    recording = stopped(recorder)
    ended_ns = comm.all_reduce_max(time.monotonic_ns())
    journal = journal.noting(requests=requests_so_far(job.live_folder))
    before = _cpu_seconds()
    noted = journal.noting(ended_ns=ended_ns, scaling=try_other_readers(job, comm, trainer.log.rows))
    apart = trainer.cpu_apart(trials=_cpu_seconds() - before)
    loader.close()
    return _gather(comm, noted, _RankResult(trainer.log.rows.copy(), cpu_seconds, apart, recording))


def _recorder_of(job: TrainingJob, comm: Comm) -> Recorder | None:
    """Start this host's recorder of a training run on its first rank; None elsewhere. Collective."""
    storage = open_storage(job.workload.storage_spec.buffered)
    return recorder_for(
        job.workload.telemetry,
        lambda: storage.device_folders(_dataset_folders(job.found)),
        job.live_folder,
        comm,
        timeout_seconds=job.workload.timeout_seconds,
        what=job.workload.dataset.data_folder,
        request_folder=job.request_folder if storage.is_remote else "",
    )


def _dataset_folders(found: Dataset) -> Iterator[str]:
    for layout in (found.train, found.valid):
        yield from layout.folders()[:_MOST_FOLDERS] if layout is not None else ()


def measure_ceiling(job: TrainingJob, comm: Comm, make_loader: Callable[[LoaderSpec], Loader]) -> float | None:
    """Measure nothing but the emulator's own ceiling; return its AU in percent on rank 0, None elsewhere."""
    loader = make_loader(job.loader_spec(comm.rank))
    trainer = _Trainer(job, comm, loader, None, None)
    loader.start()
    percent = trainer.measure_ceiling()
    comm.all_reduce_max(time.monotonic_ns())
    loader.close()
    return percent


def salvage(live_folder: str) -> RunLog | None:
    """Return what the ranks of a failed run left in its live folder; None when nothing was measured yet."""
    journal = read_journal(live_folder, Journal)
    if journal is None:
        return None
    logs = sorted(name for name in os.listdir(live_folder) if name.startswith("rank_"))
    rows = [np.empty(0, STEP_DTYPE), *(read_log(os.path.join(live_folder, name)) for name in logs)]
    return RunLog(np.concatenate(rows), journal.noting(requests=requests_so_far(live_folder)), read_logs(live_folder))


class _RankResult(NamedTuple):
    """What a rank has to hand over at its end."""

    rows: StepRows
    cpu_seconds: float
    cpu_apart: CpuApart
    recording: Recording


def _gather(comm: Comm, journal: Journal, own: _RankResult) -> RunLog | None:
    parts: list[_RankResult] | None = comm.gather(own)
    if parts is None:
        return None
    lost, telemetry = recorded([part.recording for part in parts], journal)
    noted = journal.noting(
        cpu_seconds=tuple(part.cpu_seconds for part in parts),
        cpu_apart=tuple(part.cpu_apart for part in parts),
        lost_recorders=lost,
    )
    return RunLog(np.concatenate([part.rows for part in parts]), noted, telemetry)


def _cpu_seconds() -> float:
    """Return the CPU time so far of this process and those it started, alive or ended."""
    rank = psutil.Process()
    times = [process.cpu_times() for process in (rank, *rank.children(recursive=True))]
    return sum(time.user + time.system for time in times) + times[0].children_user + times[0].children_system


class _Trainer:
    """One rank's epochs, and what their parts share."""

    def __init__(
        self, job: TrainingJob, comm: Comm, loader: Loader, watch: Watcher | None, recorder: Recorder | None
    ) -> None:
        self._job, self._comm, self._loader, self._recorder = job, comm, loader, recorder
        self._clock: Clock = MonotonicClock()
        self._journal = Journal(
            wall_clock_offset_ns=time.time_ns() - time.monotonic_ns(), started_ns=self._clock.now_ns()
        )
        # Into memory alone where the run's folder can't be seen from this host.
        there = os.path.isdir(job.live_folder)
        path = os.path.join(job.live_folder, log_name(comm.rank)) if there else None
        self.log = StepLog(job.rows_per_rank, path)
        self._accelerator: Accelerator = accelerator_class(job.workload)(job.accelerator_spec(comm.rank), self._clock)
        self._loop = StepLoop(
            accelerator=self._accelerator,
            comm=comm,
            clock=self._clock,
            log=self.log,
            watch=watch,
            stop=StopFile(job.live_folder) if comm.rank == 0 else None,
            burn=self._burn_step,
        )
        self._saver = _saver(job, comm, self._clock) if job.saves else None
        self._start_cpu_seconds = self._cpu_seconds_before = 0.0
        self._step_cpu_ns = 0

    def run(self) -> Journal:
        """Run all epochs; return what was noted, which is rank 0's to keep."""
        self._loader.start()
        self._describe()
        self._start_cpu_seconds = _cpu_seconds()
        ceiling = self.measure_ceiling()
        self._note(ceiling_au_percent=ceiling, started_ns=self._comm.all_reduce_max(self._clock.now_ns()))
        self._cpu_seconds_before = _cpu_seconds()
        for epoch in self._job.schedule:
            if self._job.evicts_before(epoch.number):
                self._evict(write_first=epoch.number == 1)
            self._synchronise_clocks()
            self._mark(training=True)
            stopped = self._train(epoch)
            self._mark(training=False)
            if stopped:
                self._note(stopped_early=self._stopped_early())
                break
            if epoch.evaluation:
                self._evaluate(epoch)
        if self._saver is not None:
            self._note(checkpoints=(*self._journal.checkpoints, *self._saver.finish()))
        return self._journal

    def measure_ceiling(self) -> float | None:
        """Run the same loop against null storage and return its AU in percent on rank 0.

        None when not asked for, and where a host gets through no step that counts within CEILING_PATIENCE_SECONDS.
        """
        steps = self._job.ceiling_steps
        if not steps:
            return None
        log = StepLog(steps)
        ends_ns = time.monotonic_ns() + round(CEILING_PATIENCE_SECONDS * 1e9)
        stop = (lambda: time.monotonic_ns() > ends_ns) if self._comm.rank == 0 else None
        loop = replace(self._loop, log=log, watch=None, stop=stop)
        compute_ns = self._accelerator.draw_compute_ns("ceiling", 0, steps)
        step_range = StepRange(phase=TRAINING, epoch=0, block=1, first_step=1, compute_ns=compute_ns)
        free_ns = self._comm.all_reduce_max(self._clock.now_ns())
        with self._batch_queue("ceiling", 0, steps) as batch_queue:
            loop.run(step_range, free_ns, batch_queue)
        logs = self._comm.gather(log.rows.copy())
        percent = math.nan if logs is None else au_percent(kept_rows(np.concatenate(logs), 1, 0))
        return None if math.isnan(percent) else percent

    def cpu_seconds(self) -> float:
        """Return the CPU time of this rank and its workers since the first epoch began."""
        return _cpu_seconds() - self._cpu_seconds_before

    def cpu_apart(self, *, trials: float) -> CpuApart:
        """Return the CPU time of what is no reading; `trials` is that of those after the last epoch."""
        ceiling = self._cpu_seconds_before - self._start_cpu_seconds
        return CpuApart(
            start=self._start_cpu_seconds,
            trials=ceiling + trials,
            checkpoints=0.0 if self._saver is None else self._saver.cpu_ns / 1e9,
            preprocessing=float(self.log.rows["preprocess_cpu_ns"].sum()) / 1e9,
            steps=self._step_cpu_ns / 1e9,
        )

    @cached_property
    def _burners(self) -> BurnerThreads:
        return BurnerThreads(step_threads(self._job.workload.train))

    def _burn_step(self, seconds: float) -> None:
        self._step_cpu_ns += self._burners.burn(seconds)

    def _describe(self) -> None:
        described = describe_hosts(self._comm)
        if described is not None:
            workload, (hosts, rank_nodes) = self._job.workload, described
            storage = within(
                workload.timeout_seconds,
                lambda: describe_storage(workload.storage_spec, workload.dataset.data_folder),
                f"finding the devices behind {workload.dataset.data_folder}",
            )
            self._note(hosts=hosts, rank_nodes=rank_nodes, storage=storage)

    def _evict(self, *, write_first: bool) -> None:
        """Drop the dataset's pages from this host's memory, the files shared among its ranks."""
        began_ns = self._clock.now_ns()
        evict(self._job, self._comm.local_rank, self._comm.local_size, write_first=write_first)
        seconds = (self._comm.all_reduce_max(self._clock.now_ns()) - began_ns) / 1e9
        self._note(eviction_seconds=(*self._journal.eviction_seconds, seconds))

    def _synchronise_clocks(self) -> None:
        offsets_ns = self._comm.synchronise_clocks()
        if len(offsets_ns) > 1:
            with contextlib.suppress(OSError):  # a disk that is full now is named when the results are written
                self._note(clock_offsets_ns=(*self._journal.clock_offsets_ns, offsets_ns))

    def _mark(self, *, training: bool) -> None:
        """Have the recorder read now, so that what an epoch did is not mixed with what went before or came after."""
        if self._recorder is not None:
            self._recorder.mark(training=training)

    def _note(self, **changes: object) -> None:
        self._journal = self._journal.noting(**changes)
        if self._comm.rank == 0:
            self._journal.save(self._job.live_folder)

    def _batch_queue(self, phase: Phase, epoch: int, steps: int) -> BatchQueue:
        batches = self._loader.batches(phase, epoch, steps)
        reader, train = self._job.workload.reader, self._job.workload.train
        if train.synchronous or reader.read_threads == 0:
            return OnDemandQueue(batches, self._clock)
        return PrefetchQueue(batches, self._clock, self._job.workload.timeout_seconds, self._comm.rank)

    def _train(self, epoch: Epoch) -> bool:
        """Train one epoch; return whether the run was asked to end in it."""
        compute_ns = self._accelerator.draw_compute_ns("train", epoch.number, epoch.steps)
        cpu_seconds = self._draw_step_cpu(epoch)
        first_step = 1
        free_ns = self._comm.all_reduce_max(self._clock.now_ns())
        with self._batch_queue("train", epoch.number, epoch.steps) as batch_queue:
            for block in epoch.blocks:
                step_range = StepRange(
                    phase=TRAINING,
                    epoch=epoch.number,
                    block=block.number,
                    first_step=first_step,
                    compute_ns=compute_ns[first_step - 1 :][: block.steps],
                    cpu_seconds=None if cpu_seconds is None else cpu_seconds[first_step - 1 :][: block.steps],
                )
                if self._loop.run(step_range, free_ns, batch_queue):
                    return True
                first_step += block.steps
                if block.checkpoint:
                    free_ns = self._checkpoint(epoch.number, block.number)
        return False

    def _draw_step_cpu(self, epoch: Epoch) -> NDArray[np.float64] | None:
        """Return the trainer's CPU time of each step, from the same draws as the accelerator's: long ones are both."""
        duration = self._job.workload.train.step_cpu_time
        if is_zero(duration):
            return None
        spec = self._job.accelerator_spec(self._comm.rank)
        return draw_ns(duration, spec, epoch.number, epoch.steps) / 1e9

    def _stopped_early(self) -> StoppedEarly | None:
        taken = int((self.log.rows["phase"] == TRAINING).sum())
        planned = sum(epoch.steps for epoch in self._job.schedule)
        return StoppedEarly(steps=taken, planned_steps=planned) if taken < planned else None

    def _checkpoint(self, epoch: int, block: int) -> int:
        """Save a checkpoint; return when training goes on."""
        assert self._saver is not None  # this block is one of the schedule
        released_ns, complete = self._saver.save(epoch, block)
        self._note(checkpoints=(*self._journal.checkpoints, *complete))
        return max(released_ns, self._comm.all_reduce_max(self._clock.now_ns()))

    def _evaluate(self, epoch: Epoch) -> None:
        plan = self._job.valid_plan
        assert plan is not None  # checked by make_job
        steps = plan.steps_per_epoch
        compute_ns = self._accelerator.draw_compute_ns("valid", epoch.number, steps)
        step_range = StepRange(phase=EVALUATION, epoch=epoch.number, block=1, first_step=1, compute_ns=compute_ns)
        free_ns = self._comm.all_reduce_max(self._clock.now_ns())
        with self._batch_queue("valid", epoch.number, steps) as batch_queue:
            replace(self._loop, stop=None).run(step_range, free_ns, batch_queue)


def _saver(job: TrainingJob, comm: Comm, clock: Clock) -> TrainingSaver:
    from dlemu.checkpoints.save import TrainingSaver

    workload = job.workload
    return TrainingSaver(
        settings=workload.checkpoint,
        model=workload.model,
        storage=open_storage(replace(job.storage_spec.buffered, direct_writes=workload.checkpoint.odirect)),
        comm=comm,
        clock=clock,
        seed=job.seed,
        sync_seconds=workload.timeout_seconds,
    )

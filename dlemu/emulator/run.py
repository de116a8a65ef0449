"""One rank's run, from its loader's start to the gathered log."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import psutil

from dlemu.comm import Comm
from dlemu.config.schema import Duration
from dlemu.emulator.accelerator import compute_times_ns
from dlemu.emulator.checkpoint import save_checkpoint
from dlemu.emulator.clock import Clock, MonotonicClock
from dlemu.emulator.environment import describe_folder, describe_host
from dlemu.emulator.evict import evict, evicts_before
from dlemu.emulator.job import Job
from dlemu.emulator.journal import Journal, StoppedEarly, read_journal
from dlemu.emulator.loop import StepRange, Watcher, run_steps
from dlemu.emulator.prefetch import BatchQueue, OnDemandQueue, PrefetchQueue
from dlemu.emulator.recording import recorder_of
from dlemu.emulator.scaling import try_more_readers
from dlemu.emulator.schedule import Epoch
from dlemu.emulator.steplog import EVALUATION, TRAINING, StepLog, StepRows, read_log
from dlemu.emulator.stopping import StopFile
from dlemu.loaders.loader_base import Loader, LoaderSpec
from dlemu.metrics.au import au_percent, kept_rows
from dlemu.telemetry import HostTelemetry, Recorder, Telemetry, read_logs


@dataclass(frozen=True)
class RunLog:
    """What a run measured; every published number is computed from it."""

    rows: StepRows
    """The step logs of all ranks."""
    journal: Journal
    telemetry: Telemetry = ()
    """What the recorders of the hosts read."""


def run_rank(
    job: Job, comm: Comm, make_loader: Callable[[LoaderSpec], Loader], watch: Watcher | None = None
) -> RunLog | None:
    """Run this rank to its end; return the whole run's log on rank 0, None elsewhere.

    Raises DlemuError with a message for users. The rank's rows up to then lie in `job.live_folder`; workers die with
    the rank, so after an error the process must end.
    """
    recorder = recorder_of(job, comm)
    loader = make_loader(job.loader_spec(comm.rank))
    try:
        rank = _Rank(job, comm, loader, watch, recorder)
        log, journal = rank.run()
    except Exception as error:
        explained = loader.explain(error)
        if explained is not None:
            raise explained from error
        raise
    cpu_seconds = rank.cpu_seconds()
    telemetry = recorder.stop() if recorder is not None else None
    ended_ns = comm.all_reduce_max(time.monotonic_ns())
    noted = journal.noting(ended_ns=ended_ns, scaling=try_more_readers(job, comm, log.rows))
    loader.close()
    return _gather(comm, noted, _Told(log.rows.copy(), cpu_seconds, telemetry))


def measure_ceiling(job: Job, comm: Comm, make_loader: Callable[[LoaderSpec], Loader]) -> float | None:
    """Measure nothing but the emulator's own ceiling; return its AU in percent on rank 0, None elsewhere."""
    loader = make_loader(job.loader_spec(comm.rank))
    rank = _Rank(job, comm, loader, None, None)
    loader.start()
    percent = rank.measure_ceiling()
    comm.all_reduce_max(time.monotonic_ns())
    loader.close()
    return percent


def salvage(job: Job) -> RunLog | None:
    """Return what the ranks of a failed run left in its live folder; None when nothing was measured yet."""
    journal = read_journal(job.live_folder)
    if journal is None:
        return None
    logs = sorted(name for name in os.listdir(job.live_folder) if name.startswith("rank_"))
    rows = [read_log(os.path.join(job.live_folder, name)) for name in logs]
    return RunLog(np.concatenate(rows), journal, read_logs(job.live_folder))


class _Told(NamedTuple):
    """What a rank has to tell at its end."""

    rows: StepRows
    cpu_seconds: float
    telemetry: HostTelemetry | None
    """Of its host, when the rank has the recorder."""


def _gather(comm: Comm, journal: Journal, own: _Told) -> RunLog | None:
    parts: list[_Told] | None = comm.gather(own)
    if parts is None:
        return None
    noted = journal.noting(cpu_seconds=tuple(part.cpu_seconds for part in parts))
    hosts = sorted((part.telemetry for part in parts if part.telemetry is not None), key=lambda host: host.node)
    return RunLog(np.concatenate([part.rows for part in parts]), noted, tuple(hosts))


def _cpu_seconds() -> float:
    """Return the CPU time so far of this process and those it started that are alive."""
    rank = psutil.Process()
    times = [process.cpu_times() for process in (rank, *rank.children(recursive=True))]
    return sum(time.user + time.system for time in times)


class _Rank:
    """What the parts of one rank's run share."""

    def __init__(self, job: Job, comm: Comm, loader: Loader, watch: Watcher | None, recorder: Recorder | None) -> None:
        self._job, self._comm, self._loader, self._watch, self._recorder = job, comm, loader, watch, recorder
        self._clock: Clock = MonotonicClock()
        self._journal = Journal(
            wall_clock_offset_ns=time.time_ns() - time.monotonic_ns(), started_ns=self._clock.now_ns()
        )
        self._log = StepLog(job.rows_per_rank, self._log_path())
        self._cpu_seconds_before = 0.0
        self._stop = StopFile(job.live_folder) if comm.rank == 0 else None

    def _log_path(self) -> str | None:
        """Return where the rank's rows go: into memory alone where the run's folder can't be seen from this host."""
        if not os.path.isdir(self._job.live_folder):
            return None
        return os.path.join(self._job.live_folder, f"rank_{self._comm.rank:05d}.steps")

    def run(self) -> tuple[StepLog, Journal]:
        self._loader.start()
        self._describe()
        ceiling = self.measure_ceiling()
        self._note(ceiling_au_percent=ceiling, started_ns=self._comm.all_reduce_max(self._clock.now_ns()))
        self._cpu_seconds_before = _cpu_seconds()
        for epoch in self._job.schedule:
            if evicts_before(self._job, epoch.number):
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
        return self._log, self._journal

    def _evict(self, *, write_first: bool) -> None:
        """Drop the dataset's pages from this host's memory, the files shared among its ranks."""
        began_ns = self._clock.now_ns()
        evict(self._job, self._comm.local_rank, self._comm.local_size, write_first=write_first)
        seconds = (self._comm.all_reduce_max(self._clock.now_ns()) - began_ns) / 1e9
        self._note(eviction_seconds=(*self._journal.eviction_seconds, seconds))

    def _synchronise_clocks(self) -> None:
        offsets_ns = self._comm.synchronise_clocks()
        if len(offsets_ns) > 1:
            with contextlib.suppress(OSError):  # a disk that is full now is told when the results are written
                self._note(clock_offsets_ns=(*self._journal.clock_offsets_ns, offsets_ns))

    def _mark(self, *, training: bool) -> None:
        """Have the recorder read now, so that what an epoch did is not mixed with what went before or came after."""
        if self._recorder is not None:
            self._recorder.mark(training=training)

    def cpu_seconds(self) -> float:
        """Return the CPU time of this rank and its workers since the first epoch began."""
        return _cpu_seconds() - self._cpu_seconds_before

    def _note(self, **changes: object) -> None:
        self._journal = self._journal.noting(**changes)
        if self._comm.rank == 0:
            self._journal.save(self._job.live_folder)

    def _describe(self) -> None:
        host = describe_host() if self._comm.local_rank == 0 else None
        told = self._comm.gather((self._comm.node, host))
        if told is not None:
            hosts = {node: described for node, described in told if described is not None}
            self._note(
                hosts=tuple(hosts[node] for node in sorted(hosts)),
                rank_nodes=tuple(node for node, _ in told),
                storage=describe_folder(self._job.workload.dataset.data_folder),
            )

    def _handover(self, phase: str, epoch: int, steps: int) -> BatchQueue:
        batches = self._loader.batches(phase, epoch, steps)
        reader, train = self._job.workload.reader, self._job.workload.train
        if train.synchronous or reader.read_threads == 0:
            return OnDemandQueue(batches, self._clock)
        return PrefetchQueue(batches, self._clock, self._job.workload.timeout_seconds, self._comm.rank)

    def _compute_ns(self, duration: Duration, epoch: int, steps: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return compute_times_ns(duration, seed=self._job.seed, rank=self._comm.rank, epoch=epoch, steps=steps)

    def _train(self, epoch: Epoch) -> bool:
        """Train one epoch; return whether the run was asked to end in it."""
        compute_ns = self._compute_ns(self._job.workload.train.computation_time, epoch.number, epoch.steps)
        first_step = 1
        free_ns = self._comm.all_reduce_max(self._clock.now_ns())
        with self._handover("train", epoch.number, epoch.steps) as batch_queue:
            for block in epoch.blocks:
                step_range = StepRange(
                    phase=TRAINING,
                    epoch=epoch.number,
                    block=block.number,
                    first_step=first_step,
                    compute_ns=compute_ns[first_step - 1 :][: block.steps],
                )
                if run_steps(
                    step_range, free_ns, batch_queue, self._comm, self._clock, self._log, self._watch, self._stop
                ):
                    return True
                first_step += block.steps
                if block.checkpoint:
                    free_ns = self._checkpoint(epoch.number, block.number)
        return False

    def _stopped_early(self) -> StoppedEarly | None:
        taken = int((self._log.rows["phase"] == TRAINING).sum())
        planned = sum(epoch.steps for epoch in self._job.schedule)
        return StoppedEarly(steps=taken, planned_steps=planned) if taken < planned else None

    def _checkpoint(self, epoch: int, block: int) -> int:
        """Save a checkpoint; return when it was done."""
        workload = self._job.workload
        saved = save_checkpoint(
            workload.checkpoint,
            workload.checkpoint.checkpoint_folder,
            workload.model.model_size_bytes,
            self._comm,
            self._clock,
            epoch=epoch,
            block=block,
        )
        self._note(checkpoints=(*self._journal.checkpoints, saved))
        return self._comm.all_reduce_max(self._clock.now_ns())

    def _evaluate(self, epoch: Epoch) -> None:
        plan = self._job.valid_plan
        assert plan is not None  # checked by make_job
        steps = plan.steps_per_epoch
        step_range = StepRange(
            phase=EVALUATION,
            epoch=epoch.number,
            block=1,
            first_step=1,
            compute_ns=self._compute_ns(self._job.workload.evaluation.eval_time, -epoch.number, steps),
        )
        free_ns = self._comm.all_reduce_max(self._clock.now_ns())
        with self._handover("valid", epoch.number, steps) as batch_queue:
            run_steps(step_range, free_ns, batch_queue, self._comm, self._clock, self._log, self._watch)

    def measure_ceiling(self) -> float | None:
        """Run the same loop against null storage and return its AU in percent; None when not asked for."""
        steps = self._job.ceiling_steps
        if not steps:
            return None
        log = StepLog(steps)
        duration = self._job.workload.train.computation_time
        step_range = StepRange(
            phase=TRAINING, epoch=0, block=1, first_step=1, compute_ns=self._compute_ns(duration, 0, steps)
        )
        free_ns = self._comm.all_reduce_max(self._clock.now_ns())
        with self._handover("ceiling", 0, steps) as batch_queue:
            run_steps(step_range, free_ns, batch_queue, self._comm, self._clock, log)
        logs = self._comm.gather(log.rows.copy())
        return None if logs is None else au_percent(kept_rows(np.concatenate(logs), 1, 0))

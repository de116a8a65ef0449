"""A run under mpirun or srun: rank 0 prepares, all ranks run; a guardian saves what was measured if they are killed."""

from __future__ import annotations

import signal
import time
import traceback

from datagen.errors import DlemuError
from dlemu.cli.finish import finish
from dlemu.cli.last_words import cause, leave_word
from dlemu.cli.launcher import ECHO_SECONDS, under_mpi
from dlemu.cli.making import make_dataset
from dlemu.cli.manner import TrainManner
from dlemu.cli.prepare import loader_class, prepare_job
from dlemu.cli.reporting import report_result
from dlemu.cli.watching import watcher
from dlemu.comm import Comm, PeerLostError
from dlemu.comm.comm_base import Interrupted
from dlemu.comm.guardian import Guardian, watch
from dlemu.config.schema import Workload
from dlemu.emulator.files import write_text
from dlemu.emulator.job import Job
from dlemu.emulator.preflight import check_host
from dlemu.emulator.trainer import run_rank, salvage
from dlemu.report.folder import drop_folder


def train_under_mpi(manner: TrainManner) -> int:
    """Run this rank and return its exit status: rank 0's is the run's."""
    return under_mpi(manner.overrides, lambda comm: _Run(comm, manner).run())


class _Run:
    """One training run of this rank under a launcher."""

    def __init__(self, comm: Comm, manner: TrainManner) -> None:
        self._comm, self._manner = comm, manner
        self._guardian: Guardian | None = None

    def run(self) -> int:
        workload = self._configure()
        if workload.workflow.generate_data:
            self._begin(workload)
            make_dataset(workload, self._comm, fsync=False)
            if self._manner.stops_after_data(workload):
                return self._stop()
        job = self._prepare(workload)
        try:
            return self._run(job)
        except DlemuError as error:
            leave_word(job.live_folder, self._comm.rank, str(error), echo=isinstance(error, PeerLostError))
            raise
        except Interrupted as error:
            told = f"interrupted by {signal.Signals(error.signal_number).name}"
            leave_word(job.live_folder, self._comm.rank, told, echo=False)
            raise

    def _configure(self) -> Workload:
        """Compose on rank 0 alone: the others need neither hydra nor the files."""
        loaded = self._manner.load() if self._comm.rank == 0 else None
        workload: Workload = self._comm.broadcast(loaded)
        self._comm.set_timeout(workload.timeout_seconds)
        return workload

    def _begin(self, workload: Workload) -> None:
        if self._comm.rank == 0:
            self._manner.begin(workload, self._comm.size)

    def _stop(self) -> int:
        if self._comm.rank == 0:
            self._manner.made()
        return 0

    def _prepare(self, workload: Workload) -> Job:
        prepared = None
        if self._comm.rank == 0:
            prepared = prepare_job(workload, self._comm.size)
            self._guardian = watch(lambda: _save_lost(prepared, self._manner))
        job: Job = self._comm.broadcast(prepared)
        return job

    def _run(self, job: Job) -> int:
        if self._comm.local_rank == 0:
            check_host(job, self._comm.local_size)
        self._begin(job.workload)
        log = run_rank(job, self._comm, loader_class(job.workload), watcher(job, self._comm))
        if log is None:
            return 0
        summary = finish(job, log, self._manner.dlio_place(job))
        assert self._guardian is not None  # rank 0 has both
        self._guardian.release()
        self._manner.show(summary, job)
        report_result(job.workload.output.report, job.folder)
        return self._manner.exit_status(summary)


def _save_lost(job: Job, manner: TrainManner) -> None:
    """Save what the ranks had measured when rank 0 was lost. Runs in the guardian, which nobody listens to."""
    time.sleep(ECHO_SECONDS)  # other ranks may still be writing their last word
    try:
        log = salvage(job)
        if log is None:
            drop_folder(job.folder)
        else:
            finish(job, log, manner.dlio_place(job), cause(job.live_folder))
    except Exception:
        write_text(job.folder, "log.txt", f"the run was lost, and saving it failed:\n{traceback.format_exc()}")
        raise

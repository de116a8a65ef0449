"""A run without MPI: this process forks the ranks, watches over them, and saves what was measured if they fail."""

from __future__ import annotations

import json
import os
from functools import partial

from datagen.errors import DlemuError
from dlemu.cli import complain
from dlemu.cli.finish import finish
from dlemu.cli.launcher import forked
from dlemu.cli.making import make_dataset
from dlemu.cli.manner import TrainManner
from dlemu.cli.prepare import loader_class, prepare_job
from dlemu.cli.reporting import report_result
from dlemu.cli.watching import watcher
from dlemu.comm import Comm
from dlemu.comm.failure import Failure
from dlemu.emulator.job import Job
from dlemu.emulator.preflight import check_host
from dlemu.emulator.trainer import run_rank, salvage
from dlemu.loaders.loader_base import Loader
from dlemu.report.folder import drop_folder


def train_forked(manner: TrainManner) -> int:
    """Run and return the exit status; raises UserError for what is wrong before the ranks start."""
    workload = manner.load()
    if workload.workflow.generate_data:
        manner.begin(workload, workload.ranks)
        failure = forked(workload.ranks, partial(make_dataset, workload, fsync=False), workload.timeout_seconds)
        if failure is not None:
            return failure.status
        if manner.stops_after_data(workload):
            manner.made()
            return 0
    job = prepare_job(workload, workload.ranks)
    try:
        check_host(job, job.ranks)
        make_loader = loader_class(workload)
    except DlemuError:
        drop_folder(job.folder)
        raise
    manner.begin(workload, workload.ranks)
    failure = forked(job.ranks, partial(_rank, job, make_loader, manner), workload.timeout_seconds)
    if failure is not None:
        return _save_failed(job, failure, manner)
    report_result(workload.output.report, job.folder)
    with open(os.path.join(job.folder, "summary.json")) as lines:
        return manner.exit_status(json.load(lines))


def _rank(job: Job, make_loader: type[Loader], manner: TrainManner, comm: Comm) -> int:
    log = run_rank(job, comm, make_loader, watcher(job, comm))
    if log is not None:
        manner.show(finish(job, log, manner.dlio_place(job)), job)
    return 0


def _save_failed(job: Job, failure: Failure, manner: TrainManner) -> int:
    log = salvage(job)
    if log is None:
        drop_folder(job.folder)
    else:
        finish(job, log, manner.dlio_place(job), failure.message)
        complain(f"{len(log.rows)} steps were measured before that; they are kept, marked incomplete, in {job.folder}")
        report_result(job.workload.output.report, job.folder)
    return failure.status

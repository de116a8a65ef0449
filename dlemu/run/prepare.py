"""From a configuration to a job: everything is checked before data is made and before anything is measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from datagen.errors import DatasetError, SpaceError, UserError
from datagen.inspection import Dataset, inspect
from datagen.layout import layouts, nominal_sample_bytes
from datagen.owned import OwnFolder
from datagen.registry import find
from datagen.storage.storage_base import open_storage
from dlemu.checkpoints.stored import block_name, claim_blocks
from dlemu.config import check_data, check_runnable, datagen_command
from dlemu.config.schema import Workload
from dlemu.emulator.job import Job, make_job
from dlemu.emulator.journal import ADVICE, Journal
from dlemu.emulator.steplog import STEP_DTYPE
from dlemu.emulator.trainer import RunLog
from dlemu.loaders.loader_base import Loader
from dlemu.results.live import write_live_facts
from dlemu.results.live_place import KILLED
from dlemu.results.run import Facts, make_facts
from dlemu.run.enough import refuse_unjudged
from dlemu.run.prepare_checkpoints import check_checkpoint_run
from dlemu.run.run_folder import check_folder, drop_folder, make_folder, new_folder

Advice = Callable[[int], str]


@dataclass(frozen=True)
class Prepared:
    """A run that can begin."""

    job: Job
    folder: OwnFolder


def only_makes_data(workload: Workload) -> bool:
    """Say whether the workload asks for its dataset and no training."""
    return workload.workflow.generate_data and not workload.workflow.train


def only_checkpoints(workload: Workload) -> bool:
    """Say whether the workload asks for checkpoints and nothing else (DLIO's `checkpoint_only`), and for how many."""
    asked, saves = workload.workflow, workload.checkpoint
    alone = asked.checkpoint and not (asked.train or asked.generate_data)
    return alone and max(saves.num_checkpoints_write, saves.num_checkpoints_read) > 0


def check(workload: Workload) -> None:
    """Raise UserError for what the workload asks `dlemu train` to do and can't be done, as far as it says by itself."""
    if only_checkpoints(workload):
        check_checkpoint_run(workload)
        return
    if workload.workflow.train:
        check_runnable(workload)
    else:
        _check_without_training(workload)
        check_data(workload)
    if workload.workflow.train:
        check_folder(workload.output.folder or new_folder(workload.model.name))


def _check_without_training(workload: Workload) -> None:
    """Refuse a run without training that is not possible; making data alone is.

    DLIO (2.x, main.py) knows two: data, and checkpoints alone. An evaluation alone it does not know: it trains, too.
    """
    asked = workload.workflow
    if asked.evaluation or not asked.generate_data:
        what = "evaluation, which is part of training, in DLIO too" if asked.evaluation else "nothing else"
        raise UserError(
            f"workflow.train is false, and the workload asks for {what}; set workflow.train=True, or "
            "workflow.generate_data=True alone to make the dataset"
        )


def check_before_making(workload: Workload, ranks: int, advice: Advice | None = None) -> None:
    """Raise UserError for what would else show only once the dataset is made: too few samples, no framework.

    Memory is checked later: what a batch takes of it is read off the files. `advice` is as of `prepare`.
    """
    if advice is not None:
        refuse_unjudged(workload, ranks, workload.dataset.num_files_train, lambda: advice(0))
    train, valid = layouts(workload.dataset)
    size_bytes = nominal_sample_bytes(workload.dataset)
    to_be = Dataset(
        spec=workload.dataset,
        train=train,
        valid=valid if valid.num_files else None,
        manifest=None,
        max_file_bytes=size_bytes * train.num_samples_per_file,
        max_sample_bytes=size_bytes,
        total_bytes=(train.num_files + valid.num_files) * train.num_samples_per_file * size_bytes,
    )
    make_job(workload, ranks, to_be, folder=workload.output.folder, started_at="")
    loader_class(workload)


def prepare(workload: Workload, ranks: int, advice: Advice | None = None) -> Prepared:
    """Find the dataset, put the job together, make the run's folder; raises UserError.

    With `advice` a run of which no verdict can come is refused with it. It is given the files of the dataset that lies
    in the folder, 0 where there is none, and returns what leads to a verdict.
    """
    data, storage = workload.dataset, open_storage(workload.storage_spec.buffered)
    if advice is not None and not storage.is_folder(data.data_folder):
        raise DatasetError(f"there is no dataset: {data.data_folder} is no folder. {advice(0)}")
    dataset = inspect(data, command_hint=lambda: datagen_command(workload), storage=workload.storage_spec)
    if advice is not None:
        refuse_unjudged(workload, ranks, dataset.train.num_files, lambda: advice(dataset.spec.num_files_train))
    now = datetime.now().astimezone()
    folder = workload.output.folder or new_folder(workload.model.name)
    job = make_job(workload, ranks, dataset, folder=folder, started_at=now.isoformat(timespec="seconds"))
    _claim_checkpoints(job)
    made = make_folder(folder, ranks)
    try:
        write_live_facts(folder, _facts_ahead(job), advice=ADVICE)
    except SpaceError:
        drop_folder(made)
        raise
    return Prepared(job, made)


def _claim_checkpoints(job: Job) -> None:
    """Make sure that the checkpoints of this run replace nobody else's; raises UserError."""
    settings = job.workload.checkpoint
    names = {
        block_name(epoch.number, block.number) for epoch in job.schedule for block in epoch.blocks if block.checkpoint
    }
    if not names:
        return
    try:
        claim_blocks(open_storage(job.workload.storage_spec.buffered), settings.checkpoint_folder, names)
    except OSError as error:
        raise UserError(
            f"checkpoint.checkpoint_folder {settings.checkpoint_folder} can't be written: {error.strerror or error}; "
            "set it to a folder you may write"
        ) from error


def _facts_ahead(job: Job) -> Facts:
    """Return the facts of a run that has measured nothing yet, and of which nobody knows how it will end."""
    now_ns = time.monotonic_ns()
    journal = Journal(wall_clock_offset_ns=time.time_ns() - now_ns, started_ns=now_ns)
    return make_facts(job, RunLog(np.empty(0, STEP_DTYPE), journal), KILLED, recorders=())


def loader_class(workload: Workload) -> type[Loader]:
    """Return the loader; imports its framework."""
    loader: type[Loader] = find("dlemu.loaders", workload.reader.data_loader, "Loader")
    return loader

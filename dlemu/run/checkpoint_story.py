"""A run of checkpoints, from the workload to the folder of its result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from datagen.errors import DlemuError
from datagen.owned import OwnFolder
from datagen.storage.storage_base import StorageBase, open_storage
from dlemu.checkpoints.io_rows import WHOLE, WRITE
from dlemu.checkpoints.stored import files_in, read_note, remove_checkpoint
from dlemu.comm import Comm
from dlemu.config.schema import Workload
from dlemu.emulator.checkpoint_job import CheckpointJob
from dlemu.emulator.checkpoint_loop import CheckpointLog, Watcher, run_checkpoints, salvage_checkpoints
from dlemu.results.checkpoint_folder import write_checkpoint_run, write_checkpoint_summary
from dlemu.results.checkpoint_run import CheckpointRun, make_checkpoint_run
from dlemu.run.events import CheckpointProgress, Event, Frontend
from dlemu.run.prepare_checkpoints import (
    check_checkpoint_host,
    check_checkpoint_run,
    prepare_checkpoints,
    with_checkpoints,
)
from dlemu.run.ranks import Ranks, with_ranks
from dlemu.run.run_folder import drop_folder, drop_live
from dlemu.run.save_run import Kept

_PROGRESS_SECONDS = 0.5
"""Least time between two `CheckpointProgress`."""


class CheckpointFrontend(Frontend, Protocol):
    """What has checkpoints written and read. Called as those of `TrainFrontend` are."""

    def begin(self, workload: Workload, ranks: int) -> None:
        """Do what must be done once everything is checked, before the first byte."""
        ...

    def write_checkpoints(self, run: CheckpointRun) -> None:
        """Write the frontend's own files of the run; those of every run are there. Raises SpaceError."""
        ...


def checkpoint(
    frontend: CheckpointFrontend, fit: Callable[[Workload, int], Workload] = lambda workload, ranks: workload
) -> str | None:
    """Write and read checkpoints; return the result's folder, None on other ranks than rank 0.

    `fit` returns what is run once it is known by how many ranks; it is called where the frontend loads.

    Raises UserError for what is wrong before the ranks start, RunFailedError (with what was kept) after that. Under
    mpirun or srun it ends this process when a rank fails, after `RankFailed` was told.
    """

    def body(ranks: Ranks) -> str | None:
        asked = ranks.configure(lambda: _checked(frontend))
        return checkpoint_with(frontend, ranks, ranks.agree(lambda: fit(asked, ranks.count)))

    return with_ranks(frontend, body)


def checkpoint_with(frontend: CheckpointFrontend, ranks: Ranks, workload: Workload) -> str | None:
    """Do the same with ranks that are there and a workload that was checked."""
    prepared = ranks.agree(lambda: prepare_checkpoints(workload, ranks.count))
    job = prepared.job
    with ranks.guard(job, partial(_save_failed, job, prepared.folder, frontend)):
        ranks.on_each_host(lambda local_ranks: check_checkpoint_host(job, local_ranks))
        if ranks.leads:
            frontend.begin(workload, ranks.count)
        ranks.run(partial(_run_rank, job, frontend))
    return job.folder if ranks.leads else None


def _checked(frontend: CheckpointFrontend) -> Workload:
    workload = with_checkpoints(frontend.load())
    check_checkpoint_run(workload)
    return workload


def _run_rank(job: CheckpointJob, frontend: CheckpointFrontend, comm: Comm) -> None:
    log = run_checkpoints(job, comm, _progress_of(job, frontend.tell) if comm.rank == 0 else None)
    if log is not None:
        _save(job, log, frontend)


def _save(job: CheckpointJob, log: CheckpointLog, frontend: CheckpointFrontend, failure: str | None = None) -> None:
    run = make_checkpoint_run(job, log, failure)
    write_checkpoint_run(run)  # before anything is computed of it: what was measured outlives a failure of what follows
    frontend.write_checkpoints(run)
    write_checkpoint_summary(run)
    drop_live(job.folder)


def _save_failed(job: CheckpointJob, folder: OwnFolder, frontend: CheckpointFrontend, failure: str) -> Kept | None:
    """Save what the ranks of a failed run left, and remove the checkpoint that they were at: it only takes space."""
    removed = _remove_partial(job)
    log = salvage_checkpoints(job.live_folder)
    if log is None or not len(log.rows):
        drop_folder(folder)
        return None
    _save(job, log, frontend, failure)
    whole = sorted(set(log.journal.complete) - set(log.journal.removed))
    parts = int(((log.rows["file"] == WHOLE) & (log.rows["phase"] == WRITE)).sum())
    return Kept(job.folder, parts, _kept_sentence(job, whole, removed))


def _kept_sentence(job: CheckpointJob, whole: list[int], removed: list[int]) -> str:
    many, number = len(whole) > 1, ", ".join(map(str, whole))
    stay = f"checkpoint{'s' * many} {number} {'are' if many else 'is'} complete and {'stay' if many else 'stays'}"
    kept = stay if whole else "no checkpoint is complete"
    partial_one = f"; {', '.join(map(job.folder_of, removed))}, not complete, was removed" if removed else ""
    return f"{kept} in {job.settings.checkpoint_folder}{partial_one}; what was measured is kept in {job.folder}"


def _remove_partial(job: CheckpointJob) -> list[int]:
    """Remove what this run had begun to write and not completed; its note says so where that can't be done."""
    removed = []
    with contextlib.suppress(OSError, DlemuError):
        storage = open_storage(job.workload.storage_spec.buffered)
        if job.token:
            with contextlib.suppress(OSError):
                storage.remove(f"{job.settings.checkpoint_folder.rstrip('/')}/{job.token}")
        for number in range(1, job.writes + 1):
            folder = job.folder_of(number)
            note = read_note(storage, folder)
            mine = note is not None and note.seed == job.seed and not note.complete
            # A run that ends right after it made the folder leaves it empty.
            if mine or (note is None and storage.is_folder(folder) and not _has_files(storage, folder)):
                remove_checkpoint(storage, folder, job.plan.names)
                removed.append(number)
    return removed


def _has_files(storage: StorageBase, folder: str) -> bool:
    return any(not name.startswith(".") for name in files_in(storage, folder))


def _progress_of(job: CheckpointJob, tell: Callable[[Event], None]) -> Watcher:
    due = 0.0

    def look(phase: int, number: int, done: int, total: int) -> None:
        nonlocal due
        if time.monotonic() < due and done < total:
            return
        due = time.monotonic() + _PROGRESS_SECONDS
        tell(
            CheckpointProgress(
                phase="write" if phase == WRITE else "read",
                checkpoint=number,
                checkpoints=job.writes if phase == WRITE else len(job.sources),
                bytes=done * job.ranks,
                total_bytes=total * job.ranks,
            )
        )

    return look

"""The checkpoint job as the runner drives it: plan, run a rank, save, and clean up after a failure."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence

from datagen.errors import DlemuError, UserError
from datagen.storage.storage_base import StorageBase, open_storage
from dlemu.checkpoints.checkpoint_plan import CheckpointPlan, plan_checkpoint
from dlemu.checkpoints.io_rows import finished_path, rows_path
from dlemu.checkpoints.stored import files_in, folder_of, read_note, remove_checkpoint, stored_checkpoints
from dlemu.config import check_checkpoints
from dlemu.config.overrides import override
from dlemu.config.schema import Checkpoint, Workload
from dlemu.jobs.checkpoint.loop import run_checkpoints
from dlemu.jobs.checkpoint.measured import CheckpointJournal, CheckpointRunFacts
from dlemu.jobs.checkpoint.plan import CheckpointJob, check_checkpoint_host, plan_checkpoints, with_checkpoints
from dlemu.jobs.checkpoint.result import CheckpointRuns
from dlemu.ranks import Comm
from dlemu.report.units import size
from dlemu.results import FACTS, LIVE
from dlemu.results.measured import MeasuredLog, read_facts
from dlemu.results.wording import count
from dlemu.runner.job_kind import Look, Notify
from dlemu.runner.recording import RankRecord
from dlemu.runner.run_folder import Unfinished


class Checkpoints(CheckpointRuns):
    """All ranks write and read a model's files."""

    prefix = "checkpoint-"

    def complete(self, workload: Workload) -> Workload:
        completed = with_checkpoints(workload)
        check_checkpoints(completed)
        return completed

    def looks_at(self, workload: Workload) -> str:
        return workload.checkpoint.checkpoint_folder

    def plan(self, workload: Workload, ranks: int, *, wants_verdict: bool) -> CheckpointJob:
        return plan_checkpoints(workload, ranks)

    def live_names(self, rank: int) -> Iterable[str]:
        return rows_path("", rank), finished_path("", rank)  # hosts <= ranks

    def made_folder(self, job: CheckpointJob) -> str | None:
        """Return the checkpoint folder if this run writes to it and it is a local path."""
        storage = open_storage(job.workload.storage_spec.buffered)
        return storage.local_path(job.settings.checkpoint_folder) if job.writes else None

    def begin(self, job: CheckpointJob) -> None:
        """Create an empty file in the checkpoint folder, by which other hosts check that they share it."""
        if not job.writes:
            return
        storage, folder = open_storage(job.workload.storage_spec.buffered), job.settings.checkpoint_folder
        try:
            storage.make_folder(folder)
            storage.create(job.token_path).commit()
        except OSError as error:
            raise UserError(
                f"checkpoint.checkpoint_folder {folder} can't be written: {error.strerror or error}; set it to a "
                "folder that you can write to"
            ) from error

    def check_host(self, job: CheckpointJob, local_ranks: int) -> None:
        check_checkpoint_host(job, local_ranks)

    def run_rank(self, job: CheckpointJob, comm: Comm, notify: Notify | None) -> MeasuredLog[CheckpointJournal] | None:
        record = RankRecord(job, comm, self.new_journal(), job.settings.checkpoint_folder)
        reporter = None if notify is None else self.reporter(job, notify)
        log = run_checkpoints(job, comm, record, reporter or (lambda: None))
        if reporter is not None:
            reporter.look()
        return log

    def clean_up(self, job: CheckpointJob) -> str:
        """Remove incomplete checkpoints, which only take space."""
        storage, unfinished = open_storage(job.workload.storage_spec.buffered), None
        if job.writes:
            with contextlib.suppress(OSError, DlemuError):
                storage.remove(job.token_path)
        try:
            unfinished = _unfinished(storage, job.settings, job.seed, job.plan)
            if unfinished is not None:
                unfinished.remove()
        except (OSError, DlemuError):
            return f"{unfinished.what}, can't be removed and is left" if unfinished else ""
        return f"{unfinished.what}, was removed" if unfinished else ""

    def unfinished(self, folder: str) -> Unfinished | None:
        facts = read_facts(os.path.join(folder, LIVE, FACTS), CheckpointRunFacts)
        storage = open_storage(facts.workload.storage_spec.buffered)
        return _unfinished(storage, facts.workload.checkpoint, facts.seed, facts.plan)

    def look_at_points(self) -> Look:
        return lambda workload: plan_checkpoint(workload.model, workload.checkpoint, workload.ranks)

    @contextlib.contextmanager
    def own_place(self, workload: Workload, run_folder: str) -> Iterator[Sequence[str]]:
        """Let a sweep's point save into a temporary folder below the configured one, apart from other runs' files."""
        settings = with_checkpoints(workload).checkpoint
        if settings.num_checkpoints_write < 1:
            yield ()
            return
        storage = open_storage(workload.storage_spec.buffered)
        # a unique name, because everything in the folder is removed afterwards
        folder = f"{settings.checkpoint_folder.rstrip('/')}/{os.path.basename(run_folder)}-{secrets.token_hex(4)}"
        if workload.storage.has_paths:
            folder = os.path.abspath(folder)  # the configured folder already includes storage_root
        try:
            yield (override(("checkpoint", "checkpoint_folder"), folder),)
        finally:
            with contextlib.suppress(OSError, UserError):  # leftovers only take space
                names = plan_checkpoint(workload.model, settings, workload.ranks).names
                for number in stored_checkpoints(storage, folder):
                    remove_checkpoint(storage, folder_of(folder, number), names)
                storage.remove_folder(folder)


CHECKPOINTS = Checkpoints()


def _unfinished(storage: StorageBase, settings: Checkpoint, seed: int, plan: CheckpointPlan) -> Unfinished | None:
    """Return the incomplete checkpoints of the run with this seed, None if it has none. Raises UserError, OSError."""
    folders = []
    for number in range(1, settings.num_checkpoints_write + 1):
        folder = folder_of(settings.checkpoint_folder, number)
        note = read_note(storage, folder)
        # If the folder has neither a note nor files, the run ended right after it had made the folder
        is_empty = note is None and all(name.startswith(".") for name in files_in(storage, folder))
        if (is_empty and storage.is_folder(folder)) or (note and note.seed == seed and not note.complete):
            folders.append(folder)
    if not folders:
        return None
    paths = [f"{folder}/{name}" for folder in folders for name in files_in(storage, folder)]
    written = f"{count(len(paths), 'file')}, {size(sum(filter(None, storage.sizes(paths))))}"

    def remove() -> None:
        for folder in folders:
            with contextlib.suppress(OSError, UserError):  # some stores can't list multipart uploads
                storage.uploads(folder, plan.names, end=True)  # of ranks that were killed
            remove_checkpoint(storage, folder, plan.names)

    return Unfinished(f"{', '.join(folders)}, not complete: {written}", remove)

"""Implements the kind of job (`JobKind`): how checkpoint runs are planned, run, followed, cleaned up and read."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from datagen.errors import DlemuError, UserError
from datagen.storage.storage_base import open_storage
from datagen.withheld import redact_urls
from dlemu.checkpoints.checkpoint_plan import plan_checkpoint
from dlemu.checkpoints.io_rows import IO_COLUMNS, WHOLE, WRITE, IoRows, finished_name
from dlemu.checkpoints.stored import files_in, folder_of, read_note, remove_checkpoint, stored_checkpoints, user_error
from dlemu.config import check_checkpoints
from dlemu.config.overrides import override
from dlemu.config.schema import Workload
from dlemu.jobs.checkpoint.analyse import CheckpointRun
from dlemu.jobs.checkpoint.loop import CheckpointRank
from dlemu.jobs.checkpoint.measured import ROWS, CheckpointJournal, CheckpointRunFacts
from dlemu.jobs.checkpoint.plan import CheckpointJob, check_checkpoint_host, plan_checkpoints, with_checkpoints
from dlemu.ranks import Comm
from dlemu.report.units import size
from dlemu.results import FACTS, LIVE
from dlemu.results.answer_files import decode_versioned
from dlemu.results.live import Progress, seconds_left
from dlemu.results.measured import MeasuredLog
from dlemu.results.wording import count
from dlemu.runner.job_kind import DataCheck, JobKind, Notify
from dlemu.runner.recording import RankRecord
from dlemu.runner.run_folder import Unfinished
from dlemu.telemetry import Telemetry

_MAX_PARTS = 10**6  # ranks, or layers x experts: facts with more are damaged, and planning them would take long


class Checkpoints(JobKind):
    """Runs in which all ranks write and read the checkpoints of a model."""

    name, prefix, row_noun = "checkpoint", "checkpoint-", "file"
    facts_type, journal_type, columns, table = CheckpointRunFacts, CheckpointJournal, IO_COLUMNS, ROWS

    def run_of(self, folder: str, facts: CheckpointRunFacts, rows: IoRows, telemetry: Telemetry) -> CheckpointRun:
        return CheckpointRun(folder, facts, rows, telemetry)

    def progress(self, facts: CheckpointRunFacts, live_folder: str) -> Progress | None:
        """Return a run's progress, from the files that its ranks have written or read; None before the first file."""
        rows = self.live_rows(live_folder)
        settings = facts.workload.checkpoint
        if not len(rows):
            return None
        writes, reads = max(0, settings.num_checkpoints_write), max(0, settings.num_checkpoints_read)
        done = int(np.bincount(rows["rank"][rows["file"] == WHOLE], minlength=facts.ranks).min())  # by the slowest rank
        order = rows["phase"] << 32 | rows["checkpoint"]  # not by time: each host has its own clock
        current = rows[order == order.max()]
        last, files = current[-1], current[current["file"] != WHOLE]
        verb, planned = ("written", writes) if last["phase"] == WRITE else ("read", reads)
        mb_per_second = None
        if len(files):  # `began_ns` is the same moment on all hosts
            mb_per_second = float(1e3 * files["bytes"].sum() / max(1, (files["ended_ns"] - files["began_ns"]).max()))
        own = rows[rows["rank"] == last["rank"]]
        return Progress(
            at=f"checkpoint {last['checkpoint']}/{planned} {verb}",
            done=done,
            total=writes + reads,
            mb_per_second=mb_per_second,
            seconds_left=seconds_left((own["ended_ns"].max() - own["began_ns"].min()) / 1e9, done, writes + reads),
        )

    def own_facts(self, job: CheckpointJob) -> dict[str, Any]:
        return {"notes": tuple(map(redact_urls, job.notes)), "written": job.plan.sizes}

    def check(self, run: CheckpointRun) -> None:
        facts, model = run.facts, run.facts.workload.model
        if facts.ranks > _MAX_PARTS or model.num_layers * max(1, model.transformer.num_experts) > _MAX_PARTS:
            raise UserError(f"{run.folder} is damaged: its facts have more ranks, or layers and experts, than a model")
        if len(run.rows) and not 0 <= int(run.rows["rank"].min()) <= int(run.rows["rank"].max()) < facts.ranks:
            raise UserError(f"{run.folder} is damaged: it has rows of ranks that the run does not have")

    def complete(self, workload: Workload) -> Workload:
        completed = with_checkpoints(workload)
        check_checkpoints(completed)
        return completed

    def looks_at(self, workload: Workload) -> str:
        return workload.checkpoint.checkpoint_folder

    def plan(self, workload: Workload, ranks: int, *, wants_verdict: bool) -> CheckpointJob:
        return plan_checkpoints(workload, ranks)

    def live_names(self, rank: int) -> Iterable[str]:
        return *super().live_names(rank), finished_name(rank)  # hosts <= ranks

    def made_folder(self, job: CheckpointJob) -> str | None:
        """Return the checkpoint folder if this run writes to it and it is a local path."""
        storage = open_storage(job.workload.storage_spec.buffered)
        return storage.local_path(job.settings.checkpoint_folder) if job.num_writes else None

    def begin(self, job: CheckpointJob) -> None:
        """Create the empty file in the checkpoint folder by which other hosts check that they share the folder."""
        if not job.num_writes:
            return
        storage, folder = open_storage(job.workload.storage_spec.buffered), job.settings.checkpoint_folder
        try:
            storage.make_folder(folder)
            storage.create(job.token_path).commit()
        except OSError as error:
            raise user_error(error, folder) from error

    def check_host(self, job: CheckpointJob, local_ranks: int) -> None:
        check_checkpoint_host(job, local_ranks)

    def run_rank(self, job: CheckpointJob, comm: Comm, notify: Notify | None) -> MeasuredLog[CheckpointJournal] | None:
        record = RankRecord(job, comm, self.new_journal(), job.settings.checkpoint_folder)
        reporter = None if notify is None else self.reporter(job, notify)
        log = CheckpointRank(job, comm, reporter or (lambda: None), record).run()
        if reporter is not None:
            reporter.report()
        return log

    def clean_up(self, job: CheckpointJob) -> str:
        """Remove incomplete checkpoints, which only take space; return what happened as a phrase."""
        unfinished = None
        if job.num_writes:
            with contextlib.suppress(OSError, DlemuError):
                open_storage(job.workload.storage_spec.buffered).remove(job.token_path)
        try:
            unfinished = _unfinished(job)
            if unfinished is not None:
                unfinished.remove()
        except (OSError, DlemuError):
            return f"{unfinished.what}, can't be removed and is left" if unfinished else ""
        return f"{unfinished.what}, was removed" if unfinished else ""

    def unfinished(self, folder: str) -> Unfinished | None:
        return _unfinished(decode_versioned(os.path.join(folder, LIVE, FACTS), CheckpointRunFacts))

    def look_at_points(self) -> DataCheck:
        return lambda workload: plan_checkpoint(workload.model, workload.checkpoint, workload.ranks)

    @contextlib.contextmanager
    def own_place(self, workload: Workload, run_folder: str) -> Iterator[Sequence[str]]:
        """Context: yield overrides with which a point of a sweep saves into a temporary folder of its own."""
        settings = with_checkpoints(workload).checkpoint
        if settings.num_checkpoints_write < 1:
            yield ()
            return
        storage = open_storage(workload.storage_spec.buffered)
        # A unique name, because everything in the folder is removed afterwards.
        folder = f"{settings.checkpoint_folder.rstrip('/')}/{os.path.basename(run_folder)}-{secrets.token_hex(4)}"
        if workload.storage.has_paths:
            folder = os.path.abspath(folder)  # the configured folder already includes storage_root
        try:
            yield (override(("checkpoint", "checkpoint_folder"), folder),)
        finally:
            with contextlib.suppress(OSError, UserError):  # files that can't be removed only take space
                names = plan_checkpoint(workload.model, settings, workload.ranks).names
                for number in stored_checkpoints(storage, folder):
                    remove_checkpoint(storage, folder_of(folder, number), names)
                storage.remove_folder(folder)


CHECKPOINTS = Checkpoints()


def _unfinished(run: CheckpointJob | CheckpointRunFacts) -> Unfinished | None:
    """Return a run's incomplete checkpoints, known by their notes' seed; None for none. Raises UserError, OSError."""
    storage = open_storage(run.workload.storage_spec.buffered)
    settings = run.workload.checkpoint
    folders = []
    for number in range(1, settings.num_checkpoints_write + 1):
        folder = folder_of(settings.checkpoint_folder, number)
        note = read_note(storage, folder)
        # A run that ends between making the folder and writing the note leaves it empty.
        is_empty = note is None and all(name.startswith(".") for name in files_in(storage, folder))
        if (is_empty and storage.is_folder(folder)) or (note and note.seed == run.seed and not note.complete):
            folders.append(folder)
    if not folders:
        return None
    paths = [f"{folder}/{name}" for folder in folders for name in files_in(storage, folder)]
    written = f"{count(len(paths), 'file')}, {size(sum(filter(None, storage.sizes(paths))))}"

    def remove() -> None:
        names = run.plan.names
        for folder in folders:
            with contextlib.suppress(OSError, UserError):  # some stores can't list multipart uploads
                storage.uploads(folder, names, end=True)  # abort those of killed ranks
            remove_checkpoint(storage, folder, names)

    return Unfinished(f"{', '.join(folders)}, not complete: {written}", remove)

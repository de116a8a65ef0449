"""The plan of a checkpoint run: rank 0 makes and checks it before a byte is written, then sends it to all ranks."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from datagen.errors import SpaceError, UserError
from datagen.storage.storage_base import StorageBase, StorageSpec, open_storage
from datagen.withheld import redact_urls
from dlemu.checkpoints.checkpoint_plan import CheckpointPlan, plan_checkpoint
from dlemu.checkpoints.file_content import FileContent, files_of
from dlemu.checkpoints.stored import StoredNote, files_in, folder_of, is_link, read_note, stored_checkpoints
from dlemu.config.schema import Checkpoint, Workload
from dlemu.machine.cgroup_limits import host_memory
from dlemu.ranks.process_control import becomes_visible
from dlemu.report.units import size
from dlemu.results.wording import count
from dlemu.runner.run_folder import Job

_RANK_BYTES = 300 << 20  # upper bound of a rank's own memory, whatever the model's size
MLPERF_CHECKPOINTS = 10  # checkpoints that MLPerf Storage writes and reads (Rules v2.0, 2.2.3)


@dataclass(frozen=True, kw_only=True)
class CheckpointJob(Job):
    """The complete description of a checkpoint run; `seed` determines the content it writes."""

    plan: CheckpointPlan
    replaced: tuple[int, ...] = ()  # checkpoints of an earlier run to remove before writing
    sources: Mapping[int, StoredNote | None] = field(default_factory=dict)
    """The checkpoints to read, in order, with their notes; None for those of other tools, whose content is unknown."""
    notes: tuple[str, ...] = ()  # sentences for the readers of the result

    @property
    def settings(self) -> Checkpoint:
        return self.workload.checkpoint

    @property
    def num_writes(self) -> int:
        return max(0, self.settings.num_checkpoints_write)

    @property
    def token_path(self) -> str:
        """Path of an empty file that rank 0 creates; a host that sees it shares the checkpoint folder with rank 0."""
        return f"{self.settings.checkpoint_folder.rstrip('/')}/.dlemu-shared-{self.seed:012x}"

    @property
    def storage_spec(self) -> StorageSpec:
        """The storage, with O_DIRECT for reads and writes if `checkpoint.odirect` is set."""
        return replace(super().storage_spec, direct=self.settings.odirect, direct_writes=self.settings.odirect)

    @property
    def num_kept(self) -> int:
        """Number of complete checkpoints that the run leaves in the folder."""
        return min(self.num_writes, self.settings.keep_last or self.num_writes)

    @property
    def timeout_seconds(self) -> float:
        """Timeout of an fsync, and of waiting for other ranks; a rank below 10 MB/s counts as hanging."""
        return max(self.workload.timeout_seconds, self.plan.sizes.largest_rank_bytes / 10e6)

    def folder_of(self, checkpoint: int) -> str:
        return folder_of(self.settings.checkpoint_folder, checkpoint)

    def note(self, checkpoint: int) -> StoredNote:
        """Return the note of a checkpoint of this run, marked incomplete."""
        return StoredNote(
            seed=self.seed,
            checkpoint=checkpoint,
            ranks=self.ranks,
            bytes=self.plan.sizes.bytes,
            model=self.workload.model,
            settings=replace(self.settings, checkpoint_folder=redact_urls(self.settings.checkpoint_folder)),
        )

    def files(self, rank: int, checkpoint: int) -> list[FileContent]:
        """Return a rank's files of a checkpoint to write or to read, in order; `rank` is a rank of the run."""
        note = self.sources.get(checkpoint) or self.note(checkpoint)
        job_rank = self.plan.ranks[rank]
        written = plan_checkpoint(note.model, note.settings, note.ranks)  # maybe by more ranks than read it
        folder, layouts = self.folder_of(checkpoint), written.files(job_rank)
        return files_of(folder, layouts, note.settings, note.seed, checkpoint=checkpoint, rank=job_rank)


def with_checkpoints(workload: Workload) -> Workload:
    """Return the workload, with the number of checkpoints of MLPerf Storage if it sets none."""
    settings = workload.checkpoint
    if max(settings.num_checkpoints_write, settings.num_checkpoints_read) >= 0:
        return workload
    changed = replace(settings, num_checkpoints_write=MLPERF_CHECKPOINTS, num_checkpoints_read=MLPERF_CHECKPOINTS)
    return replace(workload, checkpoint=changed)


def plan_checkpoints(workload: Workload, ranks: int) -> CheckpointJob:
    """Plan a run, with the stored checkpoints that it replaces or reads; changes no files. Raises UserError."""
    settings = workload.checkpoint
    storage = open_storage(workload.storage_spec.buffered)
    job = CheckpointJob(
        workload=workload,
        ranks=ranks,
        plan=plan_checkpoint(workload.model, settings, ranks),
        seed=secrets.randbits(48),  # below 2^53: exact also where JSON numbers are read as doubles
    )
    if not job.plan.sizes.bytes:
        raise UserError(
            "a checkpoint of this model is empty: wanted a workload with model.num_layers and model.transformer, "
            "such as workload=llama3_8b; or model.model_size_bytes without model.type=transformer"
        )
    if replaced := _checkpoints_to_replace(job, storage):
        deleted = count(len(replaced), "checkpoint")
        note = f"deleted {deleted} of an earlier run of the same kind to make room in {settings.checkpoint_folder}"
        job = replace(job, replaced=tuple(replaced), notes=(note,))
    return replace(job, sources=_checkpoints_to_read(job, storage))


def check_checkpoint_host(job: CheckpointJob, local_ranks: int) -> None:
    """Raise an error if this host doesn't share the folder (UserError), or lacks memory or disk space (SpaceError)."""
    storage = open_storage(job.storage_spec)
    folder, token = os.path.split(job.token_path)

    def sees_token() -> bool:
        with contextlib.suppress(OSError):
            return token in files_in(storage, folder)
        return False

    if job.num_writes and not becomes_visible(sees_token):
        raise UserError(
            f"checkpoint.checkpoint_folder is {folder}, which this host does not share with rank 0: wanted a folder "
            "that all hosts see; for drives of each host start a run on each: ranks=RANKS_OF_A_HOST "
            "checkpoint.job_ranks=RANKS_OF_THE_JOB checkpoint.first_rank=FIRST_OF_THIS_HOST"
        )
    rank_bytes, available_bytes = _RANK_BYTES, host_memory().available_bytes
    if job.num_writes and storage.held_bytes:  # at most a file, and what is sent of it
        largest_bytes = max(layout.size_bytes for rank in job.plan.ranks for layout in job.plan.files(rank))
        rank_bytes += min(2 * largest_bytes, job.settings.writers * storage.held_bytes)
    needed_bytes = local_ranks * rank_bytes
    if needed_bytes > available_bytes:
        raise SpaceError(
            f"the buffers of {count(local_ranks, 'rank')} need {size(needed_bytes)} of memory on this host, and "
            f"{size(available_bytes)} are available: run fewer ranks on it, or use a larger host"
        )
    if job.num_writes:
        _check_space(job, storage)


def _check_space(job: CheckpointJob, storage: StorageBase) -> None:
    free_bytes = storage.free_bytes(job.settings.checkpoint_folder)
    if free_bytes is None:
        return  # unknown, as in an object store
    paths = [f"{folder}/{name}" for folder in map(job.folder_of, job.replaced) for name in files_in(storage, folder)]
    free_bytes += sum(filter(None, storage.sizes(paths)))  # replaced checkpoints are removed before writing
    max_stored = min(job.num_writes, job.num_kept + 1)  # an old checkpoint is removed after the new one is complete
    needed_bytes = max_stored * job.plan.sizes.bytes
    if needed_bytes > free_bytes:
        raise SpaceError(
            f"{count(max_stored, 'checkpoint')} of {size(job.plan.sizes.bytes)} need {size(needed_bytes)} in "
            f"{job.settings.checkpoint_folder}, and {size(free_bytes)} are free there: set "
            f"checkpoint.keep_last (each new one needs room besides those kept), write fewer "
            "(checkpoint.num_checkpoints_write), or use a larger drive"
        )


def _checkpoints_to_replace(job: CheckpointJob, storage: StorageBase) -> list[int]:
    """Return the stored checkpoints to replace; UserError if one is a link, or of another tool or other settings."""
    stored = stored_checkpoints(storage, job.settings.checkpoint_folder)
    numbers = [number for number in stored if number <= job.num_writes]
    for number in numbers:
        folder, new_note = job.folder_of(number), job.note(number)
        if is_link(storage, folder):
            raise UserError(
                f"{folder} is a link, and this run would replace what it points to: set checkpoint.checkpoint_folder "
                "to another folder, or remove the link"
            )
        note, names = read_note(storage, folder), list(files_in(storage, folder))
        content = ""
        if note is None and names:
            content = f"files that dlemu did not write ({', '.join(names[:3])})"
        elif note is not None and _identity(note) != _identity(new_note):
            content = note.description
        if content:
            raise UserError(
                f"{folder} holds the checkpoint of another run: {content}; wanted {new_note.description}: set "
                "checkpoint.checkpoint_folder to another folder, or delete that one"
            )
    return numbers


def _identity(note: StoredNote) -> tuple[object, ...]:
    """Return the settings that must be equal for a run to replace the checkpoints of another run."""
    settings = note.settings
    ranks = (note.ranks, settings.mode, settings.job_ranks, settings.first_rank, settings.type)
    return note.model, settings.format, *ranks


def _checkpoints_to_read(job: CheckpointJob, storage: StorageBase) -> dict[int, StoredNote | None]:
    """Return `CheckpointJob.sources`, oldest first: those that this run keeps or, if it writes none, stored ones."""
    reads = max(0, job.settings.num_checkpoints_read)
    if job.num_writes or not reads:
        numbers = list(range(job.num_writes - job.num_kept + 1, job.num_writes + 1))
        available = f"this run keeps {len(numbers)}"
    else:
        numbers = stored_checkpoints(storage, job.settings.checkpoint_folder)
        available = f"{job.settings.checkpoint_folder} holds {len(numbers)}"
    if len(numbers) < reads:
        raise UserError(
            f"checkpoint.num_checkpoints_read is {reads}, but {available}: wanted at most as many; "
            "checkpoint.num_checkpoints_write and checkpoint.keep_last say how many there are"
        )
    numbers = numbers[:reads]
    return {number: job.note(number) if job.num_writes else _stored_note(job, storage, number) for number in numbers}


def _stored_note(job: CheckpointJob, storage: StorageBase, number: int) -> StoredNote | None:
    """Return the note of a stored checkpoint, None for another tool's; UserError if the job's ranks can't read it."""
    folder = job.folder_of(number)
    note = read_note(storage, folder)
    if note is None:
        return None
    if not note.complete:
        raise UserError(
            f"{folder} is not complete: its run ended before all ranks were done; delete it, or write it again"
        )
    # Compare before planning: a plan imports the format's module, and a note from elsewhere could name any module.
    if (note.model, note.settings.format) == (job.workload.model, job.settings.format):
        plan = plan_checkpoint(note.model, note.settings, note.ranks)
        if plan.grid == job.plan.grid and set(job.plan.ranks) <= set(plan.ranks):
            return note
    raise UserError(
        f"{folder} holds the checkpoint of another run: {note.description}; wanted "
        f"{job.note(number).description}: read it with the settings that wrote it, if you trust them"
    )
